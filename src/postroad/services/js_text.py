"""Values as JavaScript writes them: names, cache keys and messages read alike on both sides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# JavaScript leaves plain notation outside of these.
_PLAIN_MIN = 1e-6
_PLAIN_MAX = 1e21
# Beyond this it rounds whole numbers too.
_EXACT_MAX = 2**53


def js_number(value: int | float) -> str:
    """A number as `String(value)` gives it: whole floats without a point, `1e+21`, `1e-7`."""
    if isinstance(value, int) and abs(value) <= _EXACT_MAX:
        return str(int(value))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    digits, exponent = _digits(abs(number))
    return sign + _placed(digits, exponent, abs(number))


def js_text(value: Any) -> str:
    """Any value as `String(value)` gives it; a missing one is the empty text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return js_number(value)
    if isinstance(value, list | tuple):
        return ",".join(map(js_text, value))
    return "[object Object]" if isinstance(value, Mapping) else str(value)


def _digits(number: float) -> tuple[str, int]:
    """The shortest digits that read back the same, and the place of the point after them."""
    mantissa, _, exponent = f"{number!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + ("" if fraction == "0" else fraction)).lstrip("0")
    point = int(exponent or 0) - (0 if fraction in ("", "0") else len(fraction)) + len(digits)
    return digits.rstrip("0") or "0", point


def _placed(digits: str, point: int, number: float) -> str:
    if _PLAIN_MIN <= number < _PLAIN_MAX:
        if point <= 0:
            return "0." + "0" * -point + digits
        if point >= len(digits):
            return digits + "0" * (point - len(digits))
        return digits[:point] + "." + digits[point:]
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"
