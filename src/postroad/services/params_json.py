"""Schemas of params, in the notation of the original system, as JSON Schema.

What JSON Schema cannot say is left out, so it may allow what the rule refuses, never the other way
round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .describing import sendable_object
from .params_schema import Rule, read_schema

JsonSchema = dict[str, Any]

_CHANGES = (
    *("trim", "trimLeft", "trimRight", "padStart", "padEnd"),
    *("lowercase", "uppercase", "localeLowercase", "localeUppercase"),
)


def json_schema_of(schema: Mapping[str, Any] | Sequence[Any]) -> JsonSchema:
    """The JSON Schema of a params schema; raises ConfigError if that is none."""
    return _told(read_schema(schema))


def _told(rule: Rule) -> JsonSchema:
    said = {} if rule.options.get("convert") is True else _TOLD[rule.type](rule)
    default = rule.options.get("default")
    if said and (rule.is_nullable or rule.is_optional or default is not None):
        said = {"anyOf": [said, {"type": "null"}]}
    if default is not None and not callable(default):
        said = {**said, **sendable_object({"default": default})}
    return said


def _any(rule: Rule) -> JsonSchema:
    return {}


def _text(rule: Rule) -> JsonSchema:
    options = rule.options
    length = options.get("length")
    # Characters beyond 16 bits count twice there and once here: a least length cannot be told.
    said = {
        "type": "string",
        "maxLength": options.get("max") if length is None else length,
        "enum": _listed(options.get("enum")),
        "pattern": _pattern(options),
    }
    if options.get("empty") is False:
        said["minLength"] = 1
    # A text is changed before it is looked at.
    is_changed = any(options.get(it) for it in _CHANGES) or options.get("empty") is True
    return {"type": "string"} if is_changed else _only(said)


def _pattern(options: Mapping[str, Any]) -> str | None:
    pattern = options.get("pattern")
    if isinstance(pattern, re.Pattern):
        return None if pattern.flags & ~re.UNICODE else str(pattern.pattern)
    return None if options.get("patternFlags") else pattern


def _formed(form: str) -> Callable[[Rule], JsonSchema]:
    def told(rule: Rule) -> JsonSchema:
        is_loose = rule.options.get("empty") or rule.options.get("normalize")
        return {"type": "string"} if is_loose else {"type": "string", "format": form}

    return told


def _number(rule: Rule) -> JsonSchema:
    options = rule.options
    return _only(
        {
            "type": "integer" if options.get("integer") is True else "number",
            "minimum": options.get("min"),
            "maximum": options.get("max"),
            "exclusiveMinimum": 0 if options.get("positive") is True else None,
            "exclusiveMaximum": 0 if options.get("negative") is True else None,
            "const": options.get("equal"),
        }
    )


def _boolean(rule: Rule) -> JsonSchema:
    return {"type": "boolean"}


def _enum(rule: Rule) -> JsonSchema:
    return _only({"enum": _listed(rule.options.get("values"))})


def _equal(rule: Rule) -> JsonSchema:
    options = rule.options
    is_fixed = not options.get("field") and options.get("strict") is True
    return _only({"const": options.get("value")}) if is_fixed else {}


def _forbidden(rule: Rule) -> JsonSchema:
    return {} if rule.options.get("remove") else {"type": "null"}


def _array(rule: Rule) -> JsonSchema:
    options, length = rule.options, rule.options.get("length")
    least = 1 if options.get("empty") is False else None
    return _only(
        {
            "type": "array",
            "items": None if rule.items is None else _told(rule.items),
            "minItems": length if length is not None else options.get("min", least),
            "maxItems": length if length is not None else options.get("max"),
            "uniqueItems": options.get("unique") is True or None,
        }
    )


def _object(rule: Rule) -> JsonSchema:
    options, fields = rule.options, rule.fields or {}
    needed = [name for name, field in fields.items() if _is_needed(field)]
    return _only(
        {
            "type": "object",
            "properties": {name: _told(field) for name, field in fields.items()} or None,
            "required": needed or None,
            "additionalProperties": False if options.get("strict") is True and fields else None,
            "minProperties": options.get("minProps"),
            "maxProperties": options.get("maxProps"),
        }
    )


def _is_needed(rule: Rule) -> bool:
    is_given = rule.options.get("default") is not None
    return not (rule.is_optional or is_given or rule.type == "forbidden")


def _choice(rule: Rule) -> JsonSchema:
    return {"anyOf": [_told(choice) for choice in rule.choices]}


def _listed(said: Any) -> list[Any] | None:
    return [*said] if isinstance(said, list | tuple | set | frozenset) else None


def _only(said: Mapping[str, Any]) -> JsonSchema:
    """What was said, as far as it can be sent."""
    return sendable_object({key: value for key, value in said.items() if value is not None})


_TOLD: dict[str, Callable[[Rule], JsonSchema]] = {
    "any": _any,
    "array": _array,
    "boolean": _boolean,
    "email": _formed("email"),
    "enum": _enum,
    "equal": _equal,
    "forbidden": _forbidden,
    "multi": _choice,
    "number": _number,
    "object": _object,
    "string": _text,
    "url": _formed("uri"),
    "uuid": _formed("uuid"),
}
