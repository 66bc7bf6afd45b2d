"""Self-contained JSON Schema of Python types."""

from __future__ import annotations

from typing import Any

import msgspec

_PREFIX = "#/$defs/"


def json_schema(type: Any) -> dict[str, Any] | None:
    """Return the schema of a type with its definitions in `$defs`, or None if it has no schema."""
    try:
        (schema,), definitions = msgspec.json.schema_components([type])
    except (TypeError, ValueError):
        return None
    name = str(schema.get("$ref", "")).removeprefix(_PREFIX)
    if name not in definitions:
        return {**schema, "$defs": definitions} if definitions else schema
    root = definitions[name]
    if _mentions(definitions, schema["$ref"]):
        # A recursive type refers to its own definition, which must stay in `$defs`.
        return {**root, "$defs": definitions}
    del definitions[name]
    return {**root, "$defs": definitions} if definitions else root


def _mentions(schema: Any, reference: str) -> bool:
    if isinstance(schema, dict):
        return schema.get("$ref") == reference or any(
            _mentions(value, reference) for value in schema.values()
        )
    return isinstance(schema, list) and any(_mentions(item, reference) for item in schema)
