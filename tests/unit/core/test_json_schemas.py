"""JSON Schema of types, in one piece."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from postroad.core.json_schemas import json_schema


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


def test_a_struct_is_told_itself_and_what_it_needs_beside_it() -> None:
    schema = json_schema(Order)
    assert schema is not None
    assert schema["type"] == "object"
    assert schema["properties"]["items"]["items"] == {"$ref": "#/$defs/Item"}
    assert [*schema["$defs"]] == ["Item"]


def test_what_needs_nothing_else_stands_alone() -> None:
    assert json_schema(Item) == {
        "title": "Item",
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }
    assert json_schema(list[int]) == {"type": "array", "items": {"type": "integer"}}


def test_what_contains_itself_can_be_referred_to() -> None:
    schema = json_schema(Tree)
    assert schema is not None
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert "Tree" in schema["$defs"]


@pytest.mark.parametrize("type", [list[Item] | list[int], AsyncIterator[int], Holder])
def test_what_has_no_form_has_no_schema(type: Any) -> None:
    assert json_schema(type) is None
