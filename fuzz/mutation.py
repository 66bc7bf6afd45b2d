"""Random changes to valid inputs, for looking around without atheris."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Mutation = Callable[[Random, bytes], bytes]

# Where lengths, types and signs turn over.
_BOUNDARIES = [
    value.to_bytes(size, "big", signed=value < 0)
    for size, values in {
        1: (0, 1, 2, 127, 128, 255),
        2: (0, 255, 32_767, -32_768, -1),
        4: (0, 16, 2_048, 2_049, 2**31 - 1, -(2**31), -1),
    }.items()
    for value in values
]


def flip_bit(rng: Random, data: bytes) -> bytes:
    """One bit differs."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def cut(rng: Random, data: bytes) -> bytes:
    """A stretch is missing."""
    start = rng.randrange(len(data))
    return data[:start] + data[rng.randint(start, len(data)) :]


def truncate(rng: Random, data: bytes) -> bytes:
    """The end is missing."""
    return data[: rng.randrange(len(data))]


def repeat(rng: Random, data: bytes) -> bytes:
    """A stretch comes twice."""
    start = rng.randrange(len(data))
    stop = rng.randint(start, len(data))
    return data[:stop] + data[start:]


def insert(rng: Random, data: bytes) -> bytes:
    """Some random bytes are in between."""
    at = rng.randint(0, len(data))
    return data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at:]


def overwrite(rng: Random, data: bytes) -> bytes:
    """A number has a value at which something turns over."""
    at = rng.randrange(len(data))
    number = rng.choice(_BOUNDARIES)
    return data[:at] + number + data[at + len(number) :]


MUTATIONS: list[Mutation] = [flip_bit, cut, truncate, repeat, insert, overwrite]


def mutate(rng: Random, data: bytes) -> bytes:
    """The input after one to four random changes."""
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(MUTATIONS)(rng, data or b"\0")
    return data
