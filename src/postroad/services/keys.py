"""Cache keys: what makes two calls of an action the same.

There are two forms. That of the original system lets nodes in both languages share one cache; but
it does not escape, so whoever may choose a text can make it look like several values, and the order
of keys counts. The exact form is the same for equal values and differs for all others.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Any

from postroad.core.errors import UsageError

from .js_text import js_number
from .values import value_at

PREFIX = "MOL-"
HASH_LENGTH = 44
"""Characters of a SHA-256 digest in base 64; shorter limits cannot be kept."""

_DEPTH_MAX = 100
_INDEX_MAX = 2**32 - 2
_MISSING: Any = type("Missing", (), {"__str__": lambda self: "undefined"})()


def stored_name(key: str, namespace: str = "", prefix: str = "") -> str:
    """The name a key is stored under in a cache that many share."""
    if prefix:
        return f"{prefix}-{key}"
    return f"{PREFIX}{namespace}-{key}" if namespace else PREFIX + key


def moleculer_key(
    action: str,
    params: Any,
    meta: Mapping[str, Any] | None = None,
    headers: Mapping[str, Any] | None = None,
    *,
    keys: Sequence[str] | None = None,
    length_max: int = 0,
) -> str:
    """The key of a call as the original system makes it.

    Args:
        action: its full name.
        params, meta, headers: of the call.
        keys: the values that count, by path: of the params, after `#` of the meta, after `@` of the
            headers. None for all params and nothing else.
        length_max: a longer description of the values is cut and ends with a hash; 0 for no limit.
    """
    if keys is None:
        return f"{action}:{_shortened(_walk(params), length_max)}"
    if not keys:
        return action
    values = [_value(key, params, meta, headers) for key in keys]
    if len(values) == 1:
        return f"{action}:{_shortened(_walk(values[0]), length_max)}"
    parts = (_shortened(_walk(value), length_max if _is_nested(value) else 0) for value in values)
    return f"{action}:{_shortened('|'.join(parts), length_max)}"


def exact_key(
    action: str,
    params: Any,
    meta: Mapping[str, Any] | None = None,
    headers: Mapping[str, Any] | None = None,
    *,
    keys: Sequence[str] | None = None,
    length_max: int = 0,
) -> str:
    """The key of a call that no other call has; the arguments are those of `moleculer_key`."""
    if keys is None:
        described = _exact(params)
    else:
        described = _exact([_value(key, params, meta, headers) for key in keys])
    return f"{action}:{_shortened(described, length_max)}"


def _value(
    key: str, params: Any, meta: Mapping[str, Any] | None, headers: Mapping[str, Any] | None
) -> Any:
    if key.startswith("#"):
        return value_at(meta, key[1:], _MISSING)
    if key.startswith("@"):
        return value_at(headers, key[1:], _MISSING)
    return value_at(params, key, _MISSING)


def _shortened(text: str, length_max: int) -> str:
    if length_max < HASH_LENGTH or len(text) <= length_max:
        return text
    digest = b64encode(sha256(text.encode("utf-8", "surrogatepass")).digest()).decode("ascii")
    return text[: length_max - HASH_LENGTH] + digest


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _walk(value: Any, depth: int = 0) -> str:
    _check_depth(depth)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=_js_place)
        return "|".join(f"{key}|{_walk(item, depth + 1)}" for key, item in items)
    if isinstance(value, list | tuple):
        return "[" + "|".join(_walk(item, depth + 1) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return js_number(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return "|".join(f"{place}|{byte}" for place, byte in enumerate(bytes(value)))
    if isinstance(value, date):
        return str(_milliseconds(value))
    return "null" if value is None else str(value)


def _js_place(item: tuple[Any, Any]) -> tuple[bool, int]:
    """JavaScript lists the keys that are numbers first, in their order, then all others."""
    key = str(item[0])
    is_index = key.isascii() and key.isdecimal() and (key == "0" or key[0] != "0")
    number = int(key) if is_index and len(key) <= len(str(_INDEX_MAX)) else _INDEX_MAX + 1
    return (False, number) if number <= _INDEX_MAX else (True, 0)


def _exact(value: Any, depth: int = 0) -> str:
    """A description that could be read back: each kind has its mark, each text its length."""
    _check_depth(depth)
    if value is None or value is _MISSING:
        return "n"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, int | float):
        return f"#{_exact_number(value)};"
    if isinstance(value, str):
        return _sized("s", value)
    if isinstance(value, Mapping):
        items = sorted((_sized("s", str(key)), _exact(value[key], depth + 1)) for key in value)
        return "{" + "".join(key + item for key, item in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + "".join(_exact(item, depth + 1) for item in value) + "]"
    if isinstance(value, bytes | bytearray | memoryview):
        return _sized("b", bytes(value).hex())
    return _sized("o", type(value).__name__) + _sized("", str(value))


def _exact_number(value: int | float) -> str:
    """One text for each number: 1 and 1.0 are the same, as serializers mix them up."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    return repr(value)


def _sized(mark: str, text: str) -> str:
    return f"{mark}{len(text)}:{text}"


def _milliseconds(value: date) -> int:
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return round(value.timestamp() * 1000)


def _check_depth(depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise UsageError(f"no cache key can be made of values nested more than {_DEPTH_MAX} deep")
