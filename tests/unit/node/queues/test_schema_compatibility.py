"""Two versions of a type: what breaks, where, and a value that proves it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from msgspec import UNSET, Meta, Struct

from postroad.core.errors import ConfigError
from postroad.node.queues.codec import Codec
from postroad.node.queues.schema_compatibility import find_breaks


class Line(Struct):
    item: str
    count: int = 1


class Order(Struct):
    lines: list[Line]
    customer: str
    note: str | None = None


class TextLine(Struct):
    item: str
    count: str = "1"


class TextOrder(Struct):
    lines: list[TextLine]
    customer: str
    note: str | None = None


class NamedOrder(Struct):
    lines: list[Line]
    customer: str
    address: str


class StrictLine(Struct, forbid_unknown_fields=True):
    item: str


class Card(Struct, tag=True):
    number: str


class Cash(Struct, tag=True):
    amount: int


class BigCash(Struct, tag="Cash"):
    amount: Annotated[int, Meta(ge=5)]


class Tree(Struct):
    children: list[Tree]
    name: str = ""


class NumberedTree(Struct):
    children: list[NumberedTree]
    name: int = 0


class Model(pydantic.BaseModel):
    total: int
    state: Literal["new", "paid"] = "new"


class LaterModel(pydantic.BaseModel):
    total: int
    state: Literal["new", "paid", "sent"] = "new"


def breaks(old: Any, new: Any) -> list[tuple[str, str, Any]]:
    found = find_breaks(
        Codec(old).schema(), Codec(new).schema(), writer_name="old", reader_name="new"
    )
    return [(each.place, each.reason, each.example) for each in found]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Order, Order),
        (Line, TypedLine := msgspec.defstruct("TypedLine", [("item", str)])),
        (TypedLine, Line),
        (int, float),
        (Literal["a"], Literal["a", "b"]),
        (Literal["a", "b"], str),
        (bool, Literal[True, False]),
        (Cash, Cash | Card),
        (Cash | Card, Cash | Card | None),
        (Tree, Tree),
        (Annotated[int, Meta(ge=1)], Annotated[int, Meta(gt=0)]),
        (Annotated[str, Meta(max_length=2)], Annotated[str, Meta(max_length=3)]),
        (dict[str, int], dict[str, float]),
        (Line, dict[str, Any]),
        (tuple[int, int], list[int]),
        (Model, LaterModel),
        (Line, bytes),
    ],
    ids=str,
)
def test_version_that_reads_all_is_compatible(old: Any, new: Any) -> None:
    assert breaks(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "place", "reason", "example"),
    [
        (
            Order, TextOrder, "$.lines[...].count", "old may send integer, new takes string",
            {"lines": [{"item": "", "count": -1}], "customer": ""},
        ),
        (
            Order, NamedOrder, "$.address", "new requires it, old does not send it",
            {"lines": [], "customer": ""},
        ),
        (
            Line, StrictLine, "$.count", "new does not know it and forbids unknown fields",
            {"item": "", "count": -1},
        ),
        (Cash | Card, Cash, "$.type", 'old may send "Card", new takes "Cash"', None),
        (Cash | Card, BigCash | Card, "$.amount", "old may send integer, new takes integer >= 5",
         {"type": "Cash", "amount": -1}),
        (Tree, NumberedTree, "$.name", "old may send string, new takes integer", None),
        (Literal["a", "b"], Literal["a"], "$", 'old may send "b", new takes "a"', "b"),
        (LaterModel, Model, "$.state", 'old may send "sent", new takes "new" or "paid"',
         {"total": -1, "state": "sent"}),
        (str | None, str, "$", "old may send null, new takes string", None),
        (list[int], tuple[int, int], "$", "old may send 0 items, new needs 2", []),
        (tuple[int, int], Annotated[list[int], Meta(max_length=1)], "$",
         "old may send more than 1 items, which new refuses", [-1, -1]),
        (tuple[int, int], Annotated[list[int], Meta(max_length=0)], "$",
         "old may send more than 0 items, which new refuses", [-1, -1]),
        (dict[str, int], dict[int, int], "$", "names of entries: old may send string, new takes",
         None),
        (str, Annotated[str, Meta(pattern="^[a-z]{9}$")], "$", "takes string like ^[a-z]{9}$", ""),
    ],
)  # fmt: skip
def test_break_names_the_place_and_an_example(
    old: Any, new: Any, place: str, reason: str, example: Any
) -> None:
    found = breaks(old, new)
    examples = [each[2] for each in found if each[0] == place and reason in each[1]]
    assert examples, found
    if example is not None:
        Codec(old).decode(msgspec.json.encode(examples[0]))
        assert examples[0] == example


def test_patterns_that_differ_break_without_an_example() -> None:
    old, new = Annotated[str, Meta(pattern="^a+$")], Annotated[str, Meta(pattern="^a*$")]
    ((place, _, example),) = breaks(old, new)
    assert (place, example) == ("$", UNSET)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"$ref": "#/$defs/Gone"},
        {"$ref": "#"},
        {"type": "object", "properties": 5},
        {"type": "string", "pattern": "("},
        {"anyOf": 5},
    ],
)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(ConfigError, match="JSON Schema"):
        find_breaks({"type": "object", "properties": {"a": {}}, "required": ["a"]}, schema)
        find_breaks(schema, {"type": "integer"})
        find_breaks({"type": "string"}, schema)
