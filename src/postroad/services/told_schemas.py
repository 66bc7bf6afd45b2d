"""What nodes tell each other of the params of actions that are checked by type hints.

The protocol has a place for schemas in its own notation, which type hints have none of. So their
JSON Schema goes beside it, in a field that nodes of the original system carry and do not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from postroad.core.limits import KIB

KEY = "paramsJsonSchema"
"""The field of an action in INFO packets."""
BYTES_MAX = 8 * KIB
"""Of one schema; a longer one is not told, and not taken."""
SERVICE_BYTES_MAX = 32 * KIB
"""Of all that a node tells of one service; servers between nodes take packets up to a size."""
DEPTH_MAX = 32


def is_tellable(schema: Any) -> bool:
    """Whether this is a schema that others may be told, or that they may tell."""
    return _size_of(schema) <= BYTES_MAX


def choose(schemas: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The schemas of a service that others are told, by action: as many as there is room for."""
    chosen, left = {}, SERVICE_BYTES_MAX
    for name, schema in schemas.items():
        size = _size_of(schema)
        if size <= min(left, BYTES_MAX):
            chosen[name] = schema
            left -= int(size)
    return chosen


def _size_of(schema: Any) -> float:
    if not isinstance(schema, Mapping) or not _is_shallow(schema, DEPTH_MAX):
        return math.inf
    try:
        return len(msgspec.json.encode(schema))
    except (TypeError, ValueError, OverflowError):
        return math.inf


def _is_shallow(value: Any, levels: int) -> bool:
    if isinstance(value, Mapping):
        return levels > 0 and all(_is_shallow(it, levels - 1) for it in value.values())
    if isinstance(value, list | tuple):
        return levels > 0 and all(_is_shallow(it, levels - 1) for it in value)
    return True
