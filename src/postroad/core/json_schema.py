"""Self-contained JSON Schema of Python types, as precise as their decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

_PREFIX = "#/$defs/"

DATE_TIME = "iso-date-time"
"""The format of a datetime whose offset may be missing, which `date-time` does not allow."""
LOCAL_DATE_TIME = "date-time-local"
TIME = "iso-time"
"""The format of a time whose offset may be missing."""
_INTEGER_KEY = {"pattern": "^-?[0-9]+$"}


def json_schema(type: Any) -> dict[str, Any] | None:
    """Return the schema of a type with its definitions in `$defs`, or None if it has no schema."""
    try:
        return make_json_schema(type)
    except (TypeError, ValueError):
        return None


def make_json_schema(type: Any) -> dict[str, Any]:
    """Like `json_schema`; raises TypeError or ValueError if a part has no form in JSON."""
    root, classes = _find_classes(type)
    (schema, *references), definitions = msgspec.json.schema_components(
        [type, *(each.cls for each in classes)]
    )
    _complete(root, schema)
    for described, reference in zip(classes, references, strict=True):
        name = str(reference.get("$ref", "")).removeprefix(_PREFIX)
        _complete_class(described, definitions.get(name, {}))
    return _inline_root(schema, definitions)


def _inline_root(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
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


# What msgspec enforces when it decodes, and does not say in its schemas.


def _find_classes(type: Any) -> tuple[inspect.Type, list[Any]]:
    """The description of a type, and of each class with fields that it mentions."""
    root = inspect.type_info(type)
    classes: dict[Any, Any] = {}
    pending = [root]
    while pending:
        described = pending.pop()
        fields = getattr(described, "fields", None)
        if fields is not None:
            cls = described.cls  # type: ignore[attr-defined] # All that have fields have it.
            if cls in classes:
                continue
            classes[cls] = described
            pending += [field.type for field in fields]
        pending += _parts_of(described)
    return root, list(classes.values())


def _parts_of(described: Any) -> Iterator[inspect.Type]:
    for name in ("type", "item_type", "key_type", "value_type"):
        part = getattr(described, name, None)
        if isinstance(part, inspect.Type):
            yield part
    for name in ("types", "item_types"):
        yield from getattr(described, name, ())


def _complete_class(described: Any, schema: dict[str, Any]) -> None:
    properties = schema.get("properties")
    items = schema.get("prefixItems", [])
    for index, field in enumerate(described.fields):
        if properties is not None:
            _complete(field.type, properties.get(getattr(field, "encode_name", ""), {}))
        elif index < len(items):
            _complete(field.type, items[index])


def _complete(described: Any, schema: dict[str, Any]) -> None:
    """Add the formats of times and the keys of dicts to the schema of a type without fields."""
    branches = list(_branches_of(schema))
    for part in described.types if isinstance(described, inspect.UnionType) else [described]:
        part = part.type if isinstance(part, inspect.Metadata) else part
        if isinstance(part, inspect.DateTimeType | inspect.TimeType):
            _set_format(part, branches)
        elif isinstance(part, inspect.DictType):
            for branch in branches:
                if branch.get("type") == "object":
                    _complete_dict(part, branch)
        elif hasattr(part, "item_type") or hasattr(part, "item_types"):
            for branch in branches:
                if branch.get("type") == "array":
                    _complete_items(part, branch)


def _branches_of(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "anyOf" not in schema:
        yield schema
    for branch in schema.get("anyOf", ()):
        yield from _branches_of(branch)


def _set_format(described: Any, branches: list[dict[str, Any]]) -> None:
    if isinstance(described, inspect.TimeType):
        name = TIME
    else:
        name = LOCAL_DATE_TIME if described.tz is False else DATE_TIME
    for branch in branches:
        if branch.get("type") == "string":
            branch.setdefault("format", name)


def _complete_dict(described: inspect.DictType, schema: dict[str, Any]) -> None:
    if isinstance(schema.get("additionalProperties"), dict):
        _complete(described.value_type, schema["additionalProperties"])
    if isinstance(described.key_type, inspect.IntType):
        schema.setdefault("propertyNames", dict(_INTEGER_KEY))
    elif isinstance(described.key_type, inspect.EnumType):
        values = [member.value for member in described.key_type.cls]
        schema.setdefault("propertyNames", {"enum": [str(value) for value in values]})
    elif isinstance(described.key_type, inspect.LiteralType):
        schema.setdefault("propertyNames", {"enum": list(map(str, described.key_type.values))})


def _complete_items(described: Any, schema: dict[str, Any]) -> None:
    if isinstance(schema.get("items"), dict):
        _complete(described.item_type, schema["items"])
    for part, item in zip(
        getattr(described, "item_types", ()), schema.get("prefixItems", ()), strict=False
    ):
        _complete(part, item)
