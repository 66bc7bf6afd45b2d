"""Seeded simulations: protocol code under virtual time and random faults, watched by checkers.

`python -m tests.simulation`, or `make sim`. Everything a run does follows from its seed, so a
failing seed can be run again. A layer adds a scenario by registering it in `scenarios.py`.
"""
