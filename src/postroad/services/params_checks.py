"""Checks of single values that are no texts.

Each function takes a rule and gives a check: a value goes in with the name of its field, its parent
and a list for problems, and comes out, perhaps converted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from postroad.core.errors import ConfigError

from .js_text import js_text
from .params_schema import MISSING, Problem, Rule, js_to_number

Check = Callable[[Any, str | None, Any, list[Problem]], Any]
Test = Callable[[Any], bool]

_TRUE = (1, "true", "1", "on")
_FALSE = (0, "false", "0", "off")


def same(one: Any, other: Any) -> bool:
    """Equal as JavaScript's `===` has it: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def listed(values: Any) -> str:
    """Allowed values as messages tell them."""
    return ", ".join(map(js_text, values))


def compile_any(rule: Rule) -> Check:
    """Everything fits."""
    return lambda value, field, parent, problems: value


def compile_number(rule: Rule) -> Check:
    """A finite number."""
    converts = rule.options.get("convert") is True
    tests = _number_tests(rule.options)

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        number = _to_number(value) if converts else value
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not abs(number) < math.inf:
            problems.append(rule.problem("number", field, value))
            return number
        for type, fits, expected in tests:
            if not fits(number):
                problems.append(rule.problem(type, field, value, expected))
        return number

    return check


def compile_boolean(rule: Rule) -> Check:
    """A truth value."""
    converts = rule.options.get("convert") is True

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        if isinstance(value, bool):
            return value
        if converts and any(same(value, word) for word in _TRUE):
            return True
        if converts and any(same(value, word) for word in _FALSE):
            return False
        problems.append(rule.problem("boolean", field, value))
        return value

    return check


def compile_enum(rule: Rule) -> Check:
    """One of some values."""
    values = rule.options.get("values")
    if not isinstance(values, list | tuple):
        raise ConfigError(f"params schema: an enum needs a list of values, not {values!r:.60}")

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        if not any(same(value, allowed) for allowed in values):
            problems.append(rule.problem("enumValue", field, value, listed(values)))
        return value

    return check


def compile_equal(rule: Rule) -> Check:
    """The value of another field, or a fixed one."""
    other, fixed = rule.options.get("field"), rule.options.get("value")
    equal = same if rule.options.get("strict") else _alike

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        if other:
            if not (isinstance(parent, Mapping) and equal(value, parent.get(other))):
                problems.append(rule.problem("equalField", field, value, other))
        elif not equal(value, fixed):
            problems.append(rule.problem("equalValue", field, value, fixed))
        return value

    return check


def compile_forbidden(rule: Rule) -> Check:
    """Nothing may be there; what is can be removed instead."""
    removes = bool(rule.options.get("remove"))

    def check(value: Any, field: str | None, parent: Any, problems: list[Problem]) -> Any:
        if removes:
            return MISSING
        problems.append(rule.problem("forbidden", field, value))
        return value

    return check


def _alike(one: Any, other: Any) -> bool:
    """Equal as JavaScript's `==` has it, near enough: a number is also its text."""
    if isinstance(one, Mapping | list | tuple) or isinstance(other, Mapping | list | tuple):
        return same(one, other)
    return same(one, other) or (None not in (one, other) and js_text(one) == js_text(other))


def _to_number(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return js_to_number(value) if isinstance(value, str) else value


def _number_tests(options: Mapping[str, Any]) -> list[tuple[str, Test, Any]]:
    """The type of problem, the test, and what is expected."""
    least, most, fixed, banned = (options.get(it) for it in ("min", "max", "equal", "notEqual"))
    wanted: list[tuple[bool, str, Test, Any]] = [
        (least is not None, "numberMin", lambda number: number >= least, least),
        (most is not None, "numberMax", lambda number: number <= most, most),
        (fixed is not None, "numberEqual", lambda number: number == fixed, fixed),
        (banned is not None, "numberNotEqual", lambda number: number != banned, banned),
        (_is_on(options, "integer"), "numberInteger", lambda number: number % 1 == 0, MISSING),
        (_is_on(options, "positive"), "numberPositive", lambda number: number > 0, MISSING),
        (_is_on(options, "negative"), "numberNegative", lambda number: number < 0, MISSING),
    ]
    return [(type, test, told) for is_wanted, type, test, told in wanted if is_wanted]


def _is_on(options: Mapping[str, Any], name: str) -> bool:
    return options.get(name) is True
