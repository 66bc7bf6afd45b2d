"""Validation of params: a schema or a type is compiled once, and then checks every call.

Schemas are those of the original system, and their problems are told as it tells them, all at once.
A type is anything msgspec understands; it gives the params back as an object of that type, or tells
the first problem. What is checked is never changed: trimmed or converted values are in a copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import msgspec

from .js_text import js_text
from .params_checks import (
    Check,
    compile_any,
    compile_boolean,
    compile_enum,
    compile_equal,
    compile_forbidden,
    compile_number,
    listed,
    same,
)
from .params_messages import MESSAGES
from .params_schema import MISSING, Problem, Rule, read_schema
from .params_texts import compile_email, compile_string, compile_url, compile_uuid

MESSAGE = "Parameters validation error!"
"""The message of the error that carries the problems."""

_IDENTIFIER = re.compile(r"[_$a-zA-Z][_$a-zA-Z0-9]*")


class Checked(NamedTuple):
    """What a check gives: the params to go on with, or why not."""

    value: Any
    problems: tuple[Problem, ...]


Checker = Callable[[Any], Checked]


def compile_params(schema: Mapping[str, Any] | Sequence[Any]) -> Checker:
    """A checker for a schema of the original system; raises ConfigError if it is none."""
    check = _compile(read_schema(schema))

    def check_params(params: Any) -> Checked:
        problems: list[Problem] = []
        value = check({} if params is None else params, None, None, problems)
        return Checked(value, tuple(problems))

    return check_params


def compile_type(type: Any, *, is_strict: bool = True) -> Checker:
    """A checker for a type that msgspec understands.

    Args:
        type: a Struct, dataclass, TypedDict or anything else.
        is_strict: whether numbers written as texts are refused.
    """

    def check_params(params: Any) -> Checked:
        try:
            value = msgspec.convert({} if params is None else params, type, strict=is_strict)
        except msgspec.ValidationError as error:
            return Checked(params, (_problem_of(str(error)),))
        return Checked(value, ())

    return check_params


# Rules within rules.


def _compile(rule: Rule) -> Check:
    return _with_presence(rule, _COMPILERS[rule.type](rule))


def _with_presence(rule: Rule, check: Check) -> Check:
    """What happens without a value: it is allowed, there is a default, or that is a problem."""
    default = rule.options.get("default")
    has_default = default is not None
    is_forbidden = rule.type == "forbidden"
    allows_missing = not has_default and (rule.is_optional or is_forbidden)
    allows_null = rule.is_nullable or allows_missing

    def check_presence(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        if value is not None and value is not MISSING:
            return check(value, field, parent, problems)
        if allows_missing if value is MISSING else allows_null:
            return value
        if has_default:
            return default() if callable(default) else deepcopy(default)
        problems.append(rule.problem("required", field, value))
        return value

    return check_presence


def _compile_object(rule: Rule) -> Check:
    fields = [(name, _compile(inner)) for name, inner in (rule.fields or {}).items()]
    check_size = _compile_size(rule)
    check_strict = _compile_strict(rule)

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        if not isinstance(value, Mapping):
            problems.append(rule.problem("object", field, value))
            return value
        current: Any = value
        for name, check_field in fields:
            before = current.get(name, MISSING)
            after = check_field(before, _path(field, name), current, problems)
            if after is not before:
                current = dict(value) if current is value else current
                current[name] = after
                if after is MISSING:
                    del current[name]
        return check_size(check_strict(current, field, problems), field, problems)

    return check


ObjectCheck = Callable[[Any, str | None, list[Problem]], Any]


def _compile_strict(rule: Rule) -> ObjectCheck:
    """Fields the rule does not know are ignored, removed, or a problem."""
    known, strict = rule.fields, rule.options.get("strict")
    if known is None or not strict:
        return lambda value, field, problems: value

    def check(value: Any, field: str | None, problems: list[Problem]) -> Any:
        unknown = [name for name in value if name not in known]
        if not unknown:
            return value
        if strict != "remove":
            told = rule.problem("objectStrict", field, ", ".join(unknown), ", ".join(known))
            problems.append(told)
        elif not problems:
            return {name: value[name] for name in value if name in known}
        return value

    return check


def _compile_size(rule: Rule) -> ObjectCheck:
    least, most = rule.options.get("minProps"), rule.options.get("maxProps")

    def check(value: Any, field: str | None, problems: list[Problem]) -> Any:
        if least is not None and len(value) < least:
            problems.append(rule.problem("objectMinProps", field, len(value), least))
        if most is not None and len(value) > most:
            problems.append(rule.problem("objectMaxProps", field, len(value), most))
        return value

    return check


def _compile_array(rule: Rule) -> Check:
    check_item = None if rule.items is None else _compile(rule.items)
    converts = rule.options.get("convert") is True

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        if not isinstance(value, list | tuple):
            if not converts:
                problems.append(rule.problem("array", field, value))
                return value
            value = [value]
        problems += _array_problems(rule, value, field)
        if check_item is None:
            return value
        items = [
            check_item(item, _item_path(item, field, place), parent, problems)
            for place, item in enumerate(value)
        ]
        if all(one is other for one, other in zip(items, value, strict=True)):
            return value
        return [None if item is MISSING else item for item in items]

    return check


def _array_problems(rule: Rule, value: Sequence[Any], field: str | None) -> list[Problem]:
    options, size = rule.options, len(value)
    problems: list[Problem] = []
    if options.get("empty") is False and not size:
        problems.append(rule.problem("arrayEmpty", field, value))
    least, most, length = (options.get(name) for name in ("min", "max", "length"))
    if least is not None and size < least:
        problems.append(rule.problem("arrayMin", field, size, least))
    if most is not None and size > most:
        problems.append(rule.problem("arrayMax", field, size, most))
    if length is not None and size != length:
        problems.append(rule.problem("arrayLength", field, size, length))
    wanted = options.get("contains")
    if wanted is not None and not any(same(item, wanted) for item in value):
        problems.append(rule.problem("arrayContains", field, value, wanted))
    if options.get("unique") is True and (doubled := _doubled(value)):
        problems.append(rule.problem("arrayUnique", field, value, doubled))
    if options.get("enum") is not None:
        allowed = list(options["enum"])
        strangers = (item for item in value if not any(same(item, it) for it in allowed))
        problems += [rule.problem("arrayEnum", field, item, listed(allowed)) for item in strangers]
    return problems


def _doubled(value: Sequence[Any]) -> list[Any]:
    """The items that are there more than once; objects are never the same."""
    seen: set[Any] = set()
    doubled: dict[Any, Any] = {}
    for item in value:
        key = (isinstance(item, bool), item) if _is_scalar(item) else id(item)
        if key in seen:
            doubled[key] = item
        seen.add(key)
    return list(doubled.values())


def _is_scalar(item: Any) -> bool:
    return item is None or isinstance(item, bool | int | float | str | bytes)


def _compile_multi(rule: Rule) -> Check:
    checks = [_compile(choice) for choice in rule.choices]

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        refused: list[Problem] = []
        for check_choice in checks:
            found: list[Problem] = []
            after = check_choice(value, field, parent, found)
            if not found:
                return after
            refused += found
        problems += refused
        return value

    return check


_COMPILERS: dict[str, Callable[[Rule], Check]] = {
    "any": compile_any,
    "array": _compile_array,
    "boolean": compile_boolean,
    "email": compile_email,
    "enum": compile_enum,
    "equal": compile_equal,
    "forbidden": compile_forbidden,
    "multi": _compile_multi,
    "number": compile_number,
    "object": _compile_object,
    "string": compile_string,
    "url": compile_url,
    "uuid": compile_uuid,
}


def _path(field: str | None, name: str) -> str:
    if not field:
        return name
    return f"{field}.{name}" if _IDENTIFIER.fullmatch(name) else f"{field}['{name}']"


def _item_path(item: Any, field: str | None, place: int) -> str | None:
    """The original names the array itself when an item is not there."""
    return field if item is None else f"{field or ''}[{place}]"


# Types.

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_LACKS = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_EXPECTED = re.compile(r"Expected `(?P<type>[^`]*)`")
_TYPES = {
    "str": "string",
    "int": "number",
    "float": "number",
    "bool": "boolean",
    "array": "array",
    "object": "object",
}


def _problem_of(text: str) -> Problem:
    """What msgspec says, told like a problem of a schema."""
    found = _AT.match(text)
    what, path = (found["what"], found["path"]) if found else (text, None)
    field = (path or "$")[1:].lstrip(".") or None
    if lacks := _LACKS.match(what):
        field = _path(field, lacks["name"])
        message = MESSAGES["required"].replace("{field}", field)
        return Problem(type="required", message=message, field=field)
    expected = _EXPECTED.match(what)
    type = _TYPES.get(expected["type"].split(" ")[0], "invalid") if expected else "invalid"
    return Problem(type=type, message=f"The '{js_text(field)}' field: {what}.", field=field)
