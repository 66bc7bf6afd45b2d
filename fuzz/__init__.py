"""Fuzzers of everything that reads bytes from a peer: `python -m fuzz`, or `make fuzz`.

Whatever a peer sends is either understood or ends in a RemoteProtocolError. Each target states
that, and what else must hold, in one function over bytes; atheris looks for bytes that break it.
"""
