"""Side-by-side benchmarks: `python -m benchmarks [NAME ...]`, see `--help`.

Each benchmark module offers `sections(settings)`; the harness runs the contenders of a section in
interleaved rounds, reports medians and writes `benchmarks/out/<name>.json`.
"""
