"""Values as people read them: the name of a field says what its number means."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

from .screen import visible

_PLAIN = frozenset({"code", "epoch", "number", "pid", "port", "run", "version"})
"""Numbers that are names, so that nothing stands between their digits."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_UNIT = 1024
_EXCERPT = 40
_EXACT_MS = 10
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def tell(name: str, value: Any) -> str:
    """The value of a field, as text that may have several lines.

    Args:
        name: of the field: `_at`, `_s`, `_ms`, `_bytes`, `_per_s` and `_share` are understood.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _tell_number(name, value)
    return visible(value if isinstance(value, str) else _tell_many(value))


def _tell_number(name: str, value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if name == "at" or name.endswith("_at"):
        return tell_time(value)
    if name.endswith("_per_s"):
        return f"{value:,.1f}/s"
    if name.endswith("_s"):
        return tell_seconds(value)
    if name.endswith("_ms"):
        return f"{value:,.1f} ms" if value >= _EXACT_MS else f"{value:.2f} ms"
    if name.endswith("_bytes") or name == "size":
        return tell_bytes(value)
    if name.endswith("_share"):
        return f"{value:.0%}"
    if isinstance(value, int):
        return str(value) if name in _PLAIN else f"{value:,}"
    return f"{value:,.2f}"


def _tell_many(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_tell_inner(it)}" for key, it in value.items())
    return ", ".join(_tell_inner(it) for it in value)


def _tell_inner(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tell_time(seconds: float) -> str:
    """A moment, by the clock on the wall here."""
    return f"{datetime.datetime.fromtimestamp(seconds).astimezone():%F %T}"


def tell_seconds(seconds: float) -> str:
    """How long, in its two largest units."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def tell_bytes(count: float) -> str:
    """How much, in the unit that needs the fewest digits."""
    step = 0
    while count >= _UNIT and step < len(_UNITS) - 1:
        count /= _UNIT
        step += 1
    return f"{count:,.0f} {_UNITS[step]}" if step == 0 else f"{count:,.1f} {_UNITS[step]}"


def tell_count(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural(noun)}"


def plural(noun: str) -> str:
    """Several of them."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def parse_json(text: str) -> Any:
    """What a person wrote as JSON; raises ValueError that tells where it is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what = error.msg[0].lower() + error.msg[1:]
        rest = text[error.pos :].strip()
        place = f"at character {error.pos + 1}, before {_short(rest)!r}" if rest else "at its end"
        raise ValueError(f"{_short(text)!r} is no JSON: {what}, {place}") from None
    except RecursionError:
        raise ValueError("this JSON is nested too deeply") from None


def _short(text: str) -> str:
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}…"


def parse_said(text: str) -> Any:
    """What a person wrote for a value: JSON if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
