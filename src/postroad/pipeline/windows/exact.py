"""Sums that are the same in whatever order they are added up. Pure.

Floats rounded at each step are not: (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3). But each float is
a whole number times a power of two, so a sum of floats is one as well, and is rounded only at the
end. A sum is a list of that whole number (in hexadecimal when it needs more than 64 bits) and the
exponent, which is the least of all that were added, and never positive.
"""

from __future__ import annotations

from typing import TypeAlias

from .segments import INT_MAX, INT_MIN

Packed: TypeAlias = list[int | str]
"""A sum as plain data."""

ZERO = (0, 0)


def encode_sum(whole: int, exponent: int) -> Packed:
    """A sum as plain data."""
    return [whole if INT_MIN <= whole <= INT_MAX else hex(whole), exponent]


def decode_sum(packed: Packed) -> tuple[int, int]:
    """The whole number and the exponent of a sum."""
    whole, exponent = packed
    return whole if isinstance(whole, int) else int(whole, 16), int(exponent)


def from_number(value: int | float) -> tuple[int, int]:
    """A number as a sum of its own."""
    whole, divisor = value.as_integer_ratio()
    return whole, 1 - divisor.bit_length()


def add(left: Packed, right: Packed) -> Packed:
    """The sum of two sums."""
    (left_whole, left_exponent), (right_whole, right_exponent) = decode_sum(left), decode_sum(right)
    exponent = min(left_exponent, right_exponent)
    whole = (left_whole << left_exponent - exponent) + (right_whole << right_exponent - exponent)
    return encode_sum(whole, exponent)


def to_float(packed: Packed, divisor: int = 1) -> float:
    """The float nearest to a sum, or to its part; infinite when it is too large for one."""
    whole, exponent = decode_sum(packed)
    try:
        return whole / (divisor << -exponent)
    except OverflowError:
        return float("inf") if whole > 0 else float("-inf")
