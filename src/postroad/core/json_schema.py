"""JSON Schema of types, in one piece."""

from __future__ import annotations

from typing import Any

import msgspec

_PREFIX = "#/$defs/"


def json_schema(type: Any) -> dict[str, Any] | None:
    """The schema of a type: itself, with those it needs in `$defs`; None if it has no such form."""
    try:
        (schema,), others = msgspec.json.schema_components([type])
    except (TypeError, ValueError):
        return None
    name = str(schema.get("$ref", "")).removeprefix(_PREFIX)
    if name not in others:
        return {**schema, "$defs": others} if others else schema
    itself = others[name]
    if _mentions(others, schema["$ref"]):
        # It contains itself.
        return {**itself, "$defs": others}
    del others[name]
    return {**itself, "$defs": others} if others else itself


def _mentions(schema: Any, reference: str) -> bool:
    if isinstance(schema, dict):
        return schema.get("$ref") == reference or any(
            _mentions(it, reference) for it in schema.values()
        )
    return isinstance(schema, list) and any(_mentions(it, reference) for it in schema)
