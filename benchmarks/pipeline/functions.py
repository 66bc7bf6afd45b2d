"""The functions of the measured job: cheap ones, so that all else shows."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

Segment = dict[str, Any]


def first(segment: Segment) -> Segment | list[Segment] | None:
    """Drops one in fifty, doubles one in twenty."""
    number = segment["n"]
    if number % 50 == 0:
        return None
    segment["twice"] = number * 2
    if number % 20 == 1:
        return [segment, {"n": number, "twice": 0, "text": segment["text"]}]
    return segment


def left(segment: Segment) -> Segment:
    """Adds something."""
    segment["more"] = segment["twice"] + 1
    return segment


def right(segment: Segment) -> Segment | None:
    """Drops one in four."""
    return None if segment["n"] % 4 == 0 else segment


def with_key(segment: Segment) -> Segment:
    """Adds what segments are grouped by."""
    segment["key"] = segment["n"] % 1_000
    return segment


def slow(segment: Segment) -> Segment:
    """Takes 50 µs or so, as a function that does something would."""
    digest = segment["text"].encode()
    for _ in range(60):
        digest = sha256(digest).digest()
    segment["digest"] = digest.hex()
    return segment


def first_or_fail(segment: Segment, unlucky: int) -> Segment | list[Segment] | None:
    """As `first`, but it fails with some of a hundred: one, or none."""
    if segment["n"] % 100 == unlucky:
        raise ValueError("it does not like this one")
    return first(segment)
