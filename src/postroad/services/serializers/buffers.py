"""Bytes in JSON, as the original system writes them: `{"type":"Buffer","data":[1,2,3]}`."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from postroad.core.errors import MalformedPayloadError

_BYTES = (bytes, bytearray, memoryview)
# Bytes are not within these, and JSON can be made of them.
_PLAIN = frozenset({
    str, int, float, bool, type(None), datetime, date, time, timedelta, Decimal, UUID,
    msgspec.UnsetType,
})  # fmt: skip


def with_buffers(value: Any) -> Any:
    """The value with all bytes in it replaced; the very same one if there are none."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return _mapping_with_buffers(value)
    if kind is list or kind is tuple:
        return _sequence_with_buffers(value)
    if isinstance(value, _BYTES):
        return {"type": "Buffer", "data": list(bytes(value))}
    plain = msgspec.to_builtins(value, builtin_types=_BYTES)
    return plain if type(plain) in _PLAIN else with_buffers(plain)


def without_buffer(value: Any) -> Any:
    """The bytes, if a value stands for bytes; raises MalformedPayloadError if it pretends to."""
    if type(value) is not dict or value.get("type") != "Buffer":
        return value
    data = value.get("data")
    if isinstance(data, str):
        return data.encode()
    try:
        return bytes(data) if isinstance(data, list) else value
    except (TypeError, ValueError) as error:
        raise MalformedPayloadError(f"no bytes: {error}") from None


def without_buffers(value: Any) -> Any:
    """The value with all that stands for bytes replaced by them."""
    if type(value) is list:
        return [without_buffers(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 2 and value.get("type") == "Buffer":
        return without_buffer(value)
    return {key: without_buffers(item) for key, item in value.items()}


def _mapping_with_buffers(value: dict[Any, Any]) -> dict[Any, Any]:
    changed = None
    for key, item in value.items():
        if type(item) not in _PLAIN and (other := with_buffers(item)) is not item:
            changed = changed or value.copy()
            changed[key] = other
    return changed or value


def _sequence_with_buffers(value: list[Any] | tuple[Any, ...]) -> list[Any] | tuple[Any, ...]:
    changed = None
    for number, item in enumerate(value):
        if type(item) not in _PLAIN and (other := with_buffers(item)) is not item:
            changed = changed or list(value)
            changed[number] = other
    return changed or value
