"""Schemas of params as JSON Schema."""

import re
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.services.params_json import json_schema_of
from tests.support.cases import each

NULL = {"type": "null"}


@each(
    ("any", {}),
    ("boolean", {"type": "boolean"}),
    ("boolean|convert", {}),
    ("string", {"type": "string"}),
    ("string|min:2|max:5", {"type": "string", "maxLength": 5}),
    ("string|length:5", {"type": "string", "maxLength": 5}),
    ("string|no-empty", {"type": "string", "minLength": 1}),
    ("string|trim|max:5", {"type": "string"}),
    ({"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^a"}),
    ({"type": "string", "pattern": "^a", "patternFlags": "i"}, {"type": "string"}),
    ({"type": "string", "pattern": re.compile("^a")}, {"type": "string", "pattern": "^a"}),
    ({"type": "string", "pattern": re.compile("^a", re.I)}, {"type": "string"}),
    ({"type": "string", "enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}),
    ("email", {"type": "string", "format": "email"}),
    ("email|empty", {"type": "string"}),
    ("url", {"type": "string", "format": "uri"}),
    ("uuid", {"type": "string", "format": "uuid"}),
    ("number", {"type": "number"}),
    ("number|min:1|max:9", {"type": "number", "minimum": 1, "maximum": 9}),
    ("number|integer|positive", {"type": "integer", "exclusiveMinimum": 0}),
    ("number|negative|equal:-1", {"type": "number", "exclusiveMaximum": 0, "const": -1}),
    ({"type": "enum", "values": ["a", 1]}, {"enum": ["a", 1]}),
    ({"type": "equal", "value": 5, "strict": True}, {"const": 5}),
    ({"type": "equal", "value": 5}, {}),
    ({"type": "equal", "field": "other"}, {}),
    ("forbidden", NULL),
    ("array", {"type": "array"}),
    ("number[]", {"type": "array", "items": {"type": "number"}}),
    (
        {"type": "array", "min": 1, "max": 2, "unique": True},
        {"type": "array", "minItems": 1, "maxItems": 2, "uniqueItems": True},
    ),
    ({"type": "array", "length": 3}, {"type": "array", "minItems": 3, "maxItems": 3}),
    ({"type": "array", "empty": False}, {"type": "array", "minItems": 1}),
    ("object", {"type": "object"}),
    (
        {"type": "object", "props": {"a": "string", "b": "string|optional"}, "strict": True},
        {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"anyOf": [{"type": "string"}, NULL]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    ),
    (["string", "number"], {"anyOf": [{"type": "string"}, {"type": "number"}]}),
    ("string|nullable", {"anyOf": [{"type": "string"}, NULL]}),
    ({"type": "number", "default": 5}, {"anyOf": [{"type": "number"}, NULL], "default": 5}),
    ({"type": "number", "default": lambda: 5}, {"anyOf": [{"type": "number"}, NULL]}),
)
def test_rules(rule: Any, expected: Any) -> None:
    assert json_schema_of({"x": rule})["properties"]["x"] == expected


def test_schema_tells_required_and_strict_fields() -> None:
    schema = {
        "needed": "any",
        "nullable": "any|nullable",
        "optional": "any|optional",
        "given": {"type": "any", "default": 1},
        "forbidden": "forbidden",
    }
    assert json_schema_of(schema)["required"] == ["needed", "nullable"]
    assert json_schema_of({"$$strict": True, "a": "any"})["additionalProperties"] is False
    assert "additionalProperties" not in json_schema_of({"$$strict": "remove", "a": "any"})
    with pytest.raises(ConfigError, match="type"):
        json_schema_of({"a": "nothing"})
