"""Schemas that nodes tell each other: carried, bounded, and looked at when they come."""

from typing import Any

from postroad.services.info_form import read_info
from postroad.services.told_schemas import (
    BYTES_MAX,
    DEPTH_MAX,
    KEY,
    SERVICE_BYTES_MAX,
    choose,
    is_tellable,
)
from tests.support.cases import each


def nested(depth: int) -> Any:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": [schema]} if depth % 2 else {"items": schema}
    return schema


@each(
    ({"type": "object", "properties": {"name": {"type": "string"}}}, True),
    ({}, True),
    (nested(DEPTH_MAX - 1), False),
    (nested(DEPTH_MAX - 2), True),
    (nested(5_000), False),
    ({"description": "x" * BYTES_MAX}, False),
    ({"default": object()}, False),
    ({"title": "\ud800"}, False),
    ([], False),
    ("object", False),
    (None, False),
)
def test_which_can_be_told(schema: Any, expected: bool) -> None:
    assert is_tellable(schema) is expected


def test_service_tells_as_many_as_there_is_room_for() -> None:
    large = {"description": "x" * (BYTES_MAX - 100)}
    schemas = {f"a{it}": large for it in range(10)} | {"small": {"type": "object"}}
    chosen = choose(schemas)
    assert len(chosen) == SERVICE_BYTES_MAX // BYTES_MAX + 1
    assert "small" in chosen


def test_what_others_tell_is_looked_at() -> None:
    def action(name: str, schema: Any) -> dict[str, Any]:
        return {"name": f"shop.{name}", "rawName": name, "description": name, KEY: schema}

    actions = {"good": action("good", {"type": "object"}), "bad": action("bad", "no schema")}
    said = {"services": [{"name": "shop", "fullName": "shop", "actions": actions}]}
    info, problems = read_info(said)
    good, bad = info.services[0].actions
    assert good.definition == {"description": "good", KEY: {"type": "object"}}
    assert bad.definition == {"description": "bad"}
    assert problems == ("actions of shop: shop.bad: its schema is none, or too large",)
