"""Durations for people."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """A duration for people: `0.35 ms`, `12 ms`, `1.5 s`."""
    if seconds < 0.001:
        return f"{seconds * 1000:.2f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
