"""Schemas of params, in the notation of the original system, read into rules.

A rule is written as a text (`"string|optional|min:3"`, `"number[]"`), as an object with a `type`,
as an object of fields with a `$$type`, or as a list of rules of which one must hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from postroad.core.errors import ConfigError

from .js_text import js_text
from .params_messages import MESSAGES

DEPTH_MAX = 32
"""Rules within rules."""

TYPES = frozenset(
    {"any", "array", "boolean", "email", "enum", "equal", "forbidden"}
    | {"multi", "number", "object", "string", "url", "uuid"}
)
MISSING: Any = msgspec.UNSET
"""Stands for what is not there, which is not the same as null."""

_META = "$$"
_NULLISH = ("optional", "nullable")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why params are refused, as it is told to the caller."""

    type: str
    message: str
    field: str | None = None
    """The path of the value; None for the params as a whole."""
    expected: Any = MISSING
    actual: Any = MISSING
    label: str | None = None

    def to_wire(self, **facts: str | None) -> dict[str, Any]:
        """As it is sent in the data of a ValidationError, with the facts that belong to it."""
        told: dict[str, Any] = {"type": self.type, "message": self.message}
        if self.field is not None:
            told["field"] = self.field
        if self.expected is not MISSING:
            told["expected"] = self.expected
        if self.actual is not MISSING:
            told["actual"] = self.actual
        if self.label:
            told["label"] = self.label
        return {**told, **facts}


class Rule(msgspec.Struct, frozen=True):
    """What must hold for one value."""

    type: str
    options: Mapping[str, Any]
    fields: Mapping[str, Rule] | None = None
    """Of an object."""
    items: Rule | None = None
    """Of an array."""
    choices: tuple[Rule, ...] = ()
    """Of a value that must fit one of several rules."""

    @property
    def is_optional(self) -> bool:
        """Whether the value may be missing, or null."""
        return self.options.get("optional") is True

    @property
    def is_nullable(self) -> bool:
        """Whether the value may be null."""
        return self.options.get("nullable") is True

    def problem(
        self, type: str, field: str | None, actual: Any = MISSING, expected: Any = MISSING
    ) -> Problem:
        """A value does not fit."""
        own = self.options.get("messages")
        text = own.get(type) if isinstance(own, Mapping) else None
        label = self.options.get("label")
        message = str(text if text is not None else MESSAGES[type])
        for word, value in (("field", label or field), ("expected", expected), ("actual", actual)):
            said = "" if value is MISSING else js_text(value)
            message = message.replace(f"{{{word}}}", said)
        return Problem(
            type=type, message=message, field=field, expected=expected, actual=actual, label=label
        )


def read_schema(schema: Mapping[str, Any] | Sequence[Any]) -> Rule:
    """The rule for params as a whole; raises ConfigError, with the place, for what is none."""
    if isinstance(schema, Mapping) and schema.get("$$root") is not True:
        options = {"strict": schema.get("$$strict")}
        return Rule("object", options, fields=_read_fields(schema, "", 0))
    if isinstance(schema, Mapping):
        schema = {key: value for key, value in schema.items() if not key.startswith(_META)}
    return _read_rule(schema, "", 0)


def read_shorthand(text: str) -> dict[str, Any]:
    """The object that `"string|optional|min:3"` stands for."""
    type, *words = (word.strip() for word in text.split("|"))
    is_array = type.endswith("[]")
    rule: dict[str, Any] = {"type": "array", "items": type[:-2]} if is_array else {"type": type}
    for word in words:
        name, colon, value = (part.strip() for part in word.partition(":"))
        if colon:
            rule[name] = _read_value(value)
        elif name.startswith("no-"):
            rule[name[3:]] = False
        else:
            rule[name] = True
    return rule


def js_to_number(text: str) -> float:
    """What JavaScript's `Number(text)` gives: 0 for no text, NaN for what is no number."""
    word = text.strip()
    if not word:
        return 0
    try:
        if word[:2].lower() in ("0x", "0o", "0b"):
            return int(word, 0)
        number = math.nan if "_" in word or word.lower().lstrip("+-")[:1] in "in" else float(word)
    except ValueError:
        return math.nan
    return int(number) if math.isfinite(number) and number.is_integer() else number


def _read_value(word: str) -> Any:
    if word in ("true", "false"):
        return word == "true"
    number = js_to_number(word)
    return word if math.isnan(number) else number


def _read_rule(said: Any, place: str, depth: int) -> Rule:
    if depth > DEPTH_MAX:
        raise ConfigError(f"params schema: {place}: rules are nested more than {DEPTH_MAX} deep")
    if isinstance(said, str):
        said = read_shorthand(said)
    if isinstance(said, Mapping):
        return _read_object(said, place, depth)
    if isinstance(said, Sequence) and said:
        return _read_choices(said, {}, place, depth)
    raise ConfigError(f"params schema: {place or 'it'}: {said!r:.60} is no rule")


def _read_object(said: Mapping[str, Any], place: str, depth: int) -> Rule:
    if "$$type" in said:
        kept = _read_rule(said["$$type"], place, depth + 1)
        return Rule(kept.type, kept.options, fields=_read_fields(said, place, depth))
    type = said.get("type")
    if type not in TYPES:
        valid = ", ".join(sorted(TYPES))
        hint = "; a group of fields needs a $$type" if type is None else ""
        raise ConfigError(f"params schema: {place or 'it'}: type {type!r} is none of {valid}{hint}")
    if type == "multi":
        return _read_choices(said.get("rules"), said, place, depth)
    fields = said.get("properties") or said.get("props")
    items = said.get("items")
    return Rule(
        type,
        said,
        fields=_read_fields(fields, place, depth) if isinstance(fields, Mapping) else None,
        items=None if items is None else _read_rule(items, f"{place}[]", depth + 1),
    )


def _read_choices(rules: Any, said: Mapping[str, Any], place: str, depth: int) -> Rule:
    if not isinstance(rules, list | tuple) or not rules:
        raise ConfigError(f"params schema: {place or 'it'}: a choice needs a list of rules")
    choices = tuple(_read_rule(rule, place, depth + 1) for rule in rules)
    options = dict(said)
    for name in _NULLISH:
        if not said and all(choice.options.get(name) is True for choice in choices):
            options[name] = True
    return Rule("multi", options, choices=choices)


def _read_fields(said: Mapping[str, Any], place: str, depth: int) -> dict[str, Rule]:
    return {
        str(name): _read_rule(rule, f"{place}.{name}" if place else str(name), depth + 1)
        for name, rule in said.items()
        if not str(name).startswith(_META)
    }
