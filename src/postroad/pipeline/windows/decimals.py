"""Seconds as people write them: 0.1 + 0.2 is 0.3, and 0.3 is not closer to 0.2 than 0.1. Pure.

As floats neither holds, since a float is not quite what is written.
"""

from __future__ import annotations

from decimal import Context, Decimal

# One of its own, which nobody can change. It has room for any two floats that are times.
_context = Context(prec=60)


def plus(left: float, right: float) -> float:
    """The sum of two times."""
    if left.is_integer() and right.is_integer():
        return left + right
    return float(_context.add(Decimal(repr(left)), Decimal(repr(right))))


def is_closer(earlier: float, later: float, gap: float) -> bool:
    """Whether a time comes less than so much after another, or before it."""
    if earlier.is_integer() and later.is_integer():
        return later - earlier < gap
    return _context.subtract(Decimal(repr(later)), Decimal(repr(earlier))) < Decimal(repr(gap))
