"""JSON Schema of types, in one piece."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from postroad.core.json_schema import json_schema


class Item(msgspec.Struct):
    name: str


class Order(msgspec.Struct):
    items: list[Item]
    note: str = ""


class Tree(msgspec.Struct):
    children: list[Tree]


class Stranger:
    """No form in JSON is known of it."""


class Holder(msgspec.Struct):
    stranger: Stranger


def test_json_schema_nested_type_refers_to_definitions() -> None:
    schema = json_schema(Order)
    assert schema is not None
    assert schema["type"] == "object"
    assert schema["properties"]["items"]["items"] == {"$ref": "#/$defs/Item"}
    assert [*schema["$defs"]] == ["Item"]

    assert json_schema(Item) == {
        "title": "Item",
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }
    assert json_schema(list[int]) == {"type": "array", "items": {"type": "integer"}}

    schema = json_schema(Tree)
    assert schema is not None
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert "Tree" in schema["$defs"]

    for type in [list[Item] | list[int], AsyncIterator[int], Holder]:
        assert json_schema(type) is None, type
