"""Serializers by their names."""

from __future__ import annotations

from typing import Any

from postroad.core.errors import ConfigError

from .cbor import CborSerializer
from .json import JsonSerializer
from .msgpack import MsgPackSerializer
from .serializer import Serializer

_CLASSES: dict[str, type[Serializer]] = {
    it.name.lower(): it for it in (CborSerializer, JsonSerializer, MsgPackSerializer)
}


def make_serializer(name: str, **options: Any) -> Serializer:
    """The serializer of a name, as `JSON`, in any letter case; raises ConfigError for others."""
    found = _CLASSES.get(name.lower())
    if found is None:
        known = ", ".join(sorted(it.name for it in _CLASSES.values()))
        raise ConfigError(f"serializer {name!r} is not known; known are {known}")
    return found(**options)
