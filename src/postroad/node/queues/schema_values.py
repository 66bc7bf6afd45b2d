"""JSON values and JSON Schemas: whether a schema accepts a value, and values that one accepts.

Covers what Python types become: types, enums, bounds, objects, arrays, unions and references.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from postroad.core.errors import ConfigError

Schema: TypeAlias = Mapping[str, Any]

ANY: Schema = {}
_DEPTH_MAX = 64
_EXAMPLES_OF_FORMATS = {  # Of those not named here no string is known.
    "date-time": "2026-01-31T12:00:00Z",
    "date-time-local": "2026-01-31T12:00:00",
    "iso-date-time": "2026-01-31T12:00:00",
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "partial-time": "12:00:00",
    "iso-time": "12:00:00",
    "duration": "PT1S",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "decimal": "1234567890.5",
    "base64": "AAAA",
    "email": "ann@example.com",
    "uri": "https://example.com/",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}
_EMPTY = {"base64": ""}
"""Formats that an empty string has."""
_NARROWER_FORMATS = {
    "iso-date-time": {"date-time", "date-time-local"},
    "iso-time": {"time", "partial-time"},
}
_PROBES = ("", "x", "xx", "0")
_TYPES: dict[str, Any] = {
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": list,
    "object": dict,
}
_ALL_TYPES = [name for name in _TYPES if name != "integer"]  # Numbers include them.
_UNCHECKED_FORMATS = {"binary", "password", "path", "file-path", "directory-path"}


class NoExample(Exception):  # Caught by whoever asks for one.
    """No value is known that fits."""


class Root:
    """A schema with the definitions that it refers to."""

    def __init__(self, schema: Any) -> None:
        if not isinstance(schema, Mapping | bool):
            raise ConfigError(f"a JSON Schema is an object, not {schema!r:.60}")
        self.schema = schema

    def branches(self, schema: Any, depth: int = 0) -> Iterator[Schema]:
        """The alternatives of a schema, each with one type, or with one constant value."""
        if depth > _DEPTH_MAX:
            raise ConfigError("the JSON Schema refers to itself without an end")
        if schema is True:
            schema = ANY
        if schema is False:
            return
        if "$ref" in schema:
            yield from self.branches(self._resolve(schema["$ref"]), depth + 1)
        elif (parts := schema.get("anyOf", schema.get("oneOf"))) is not None:
            for part in parts:
                yield from self.branches(part, depth + 1)
        elif "allOf" in schema:
            yield from self.branches(self._merge(schema["allOf"]), depth + 1)
        elif "const" in schema:
            yield {"const": schema["const"]}
        elif "enum" in schema:
            for value in schema["enum"]:
                yield {"const": value}
        else:
            yield from _branches_of_types(schema)

    def follow(self, schema: Any) -> Any:
        """The schema that a reference stands for, or the schema itself."""
        for _ in range(_DEPTH_MAX):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                return schema
            schema = self._resolve(schema["$ref"])
        raise ConfigError("the JSON Schema refers to itself without an end")

    def _merge(self, parts: Iterable[Any]) -> Schema:
        merged: dict[str, Any] = {}
        for part in parts:
            merged |= self._resolve(part["$ref"]) if "$ref" in part else part
        return merged

    def _resolve(self, reference: str) -> Any:
        target: Any = self.schema
        for name in reference.removeprefix("#").strip("/").split("/"):
            name = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or name not in target:
                raise ConfigError(f"the JSON Schema has no {reference!r}")
            target = target[name]
        return target

    # Whether it accepts.

    def accepts(self, schema: Any, value: Any) -> bool:
        """Whether a value fits a schema."""
        return any(self.branch_accepts(branch, value) for branch in self.branches(schema))

    def branch_accepts(self, branch: Schema, value: Any) -> bool:
        """Whether a value fits one alternative."""
        if "const" in branch:
            const = branch["const"]
            return bool(const == value) and isinstance(const, bool) is isinstance(value, bool)
        type_: str = branch["type"]
        if branch.get("format") == "decimal" and is_number(value):
            return True  # Decimals are read from numbers, too.
        if isinstance(value, bool) or not isinstance(value, _TYPES[type_]):
            return False
        if type_ in ("integer", "number"):
            return number_fits(branch, value)
        if type_ == "string":
            return string_fits(branch, value)
        if type_ == "array":
            return self._array_fits(branch, value)
        return type_ != "object" or self._object_fits(branch, value)

    def _array_fits(self, branch: Schema, value: list[Any]) -> bool:
        low, high = bounds_of(branch, "Items")
        return low <= len(value) <= high and all(
            self.accepts(item_of(branch, index), item) for index, item in enumerate(value)
        )

    def _object_fits(self, branch: Schema, value: dict[str, Any]) -> bool:
        low, high = bounds_of(branch, "Properties")
        properties, extra = branch.get("properties", {}), branch.get("additionalProperties", ANY)
        return (
            low <= len(value) <= high
            and all(name in value for name in branch.get("required", ()))
            and all(self.accepts(names_of(branch), name) for name in value)
            and all(self.accepts(properties.get(name, extra), part) for name, part in value.items())
        )

    # Values that fit.

    def example(self, schema: Any, depth: int = 0) -> Any:
        """A small value that fits a schema.

        Raises:
            NoExample: none is known.
        """
        if depth > _DEPTH_MAX:
            raise NoExample
        order = ("const", "null", "boolean", "integer", "number", "string", "array", "object")
        branches = sorted(
            self.branches(schema),
            key=lambda branch: 0 if "const" in branch else order.index(branch["type"]),
        )
        for branch in branches:
            try:
                return self.branch_example(branch, depth)
            except NoExample:
                continue
        raise NoExample

    def branch_example(self, branch: Schema, depth: int = 0) -> Any:
        """A small value that fits one alternative."""
        if "const" in branch:
            return branch["const"]
        type_ = branch["type"]
        if type_ == "object":
            value = {
                name: self.example(branch.get("properties", {}).get(name, ANY), depth + 1)
                for name in branch.get("required", ())
            }
            self.fill(branch, value, int(bounds_of(branch, "Properties")[0]), depth)
            return value
        if type_ == "array":
            return self.array_example(branch, int(bounds_of(branch, "Items")[0]), depth)
        for candidate in scalars(branch, branch):
            if self.branch_accepts(branch, candidate):
                return candidate
        raise NoExample

    def fill(self, branch: Schema, value: dict[str, Any], size: int, depth: int = 0) -> None:
        """Add entries to a dict until it has a size."""
        extra = branch.get("additionalProperties", ANY)
        for number in range(size - len(value)):
            value[self._free_name(branch, value, number)] = self.example(extra, depth + 1)

    def _free_name(self, branch: Schema, value: dict[str, Any], number: int) -> str:
        names = names_of(branch)
        constants = [part["const"] for part in self.branches(names) if "const" in part]
        for name in (*constants, f"key{number}", str(number)):
            if name not in value and self.accepts(names, name):
                return str(name)
        raise NoExample

    def array_example(self, branch: Schema, size: int, depth: int = 0) -> list[Any]:
        """A list of some length."""
        return [self.example(item_of(branch, index), depth + 1) for index in range(size)]


def _branches_of_types(schema: Schema) -> Iterator[Schema]:
    types = schema.get("type", _ALL_TYPES)
    for type_ in [types] if isinstance(types, str) else types:
        if type_ not in _TYPES:
            raise ConfigError(f"a JSON Schema has no type {type_!r:.60}")
        if type_ == "null":
            yield {"const": None}
        elif type_ == "boolean":
            yield {"const": False}
            yield {"const": True}
        else:
            yield {**schema, "type": type_}


def is_number(value: Any) -> bool:
    """Whether it is a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def bounds_of(branch: Schema, what: str) -> tuple[float, float]:
    """The least and the largest size: of `Items`, `Length` or `Properties`."""
    low, high = branch.get(f"min{what}", 0), branch.get(f"max{what}", math.inf)
    if what == "Items" and branch.get("items") is False:
        high = min(high, len(branch.get("prefixItems", ())))
    if what == "Length" and format_of(branch) in _EXAMPLES_OF_FORMATS:
        low = max(low, len(_EMPTY.get(str(format_of(branch)), "x")))
    return low, high


def item_of(branch: Schema, index: int) -> Any:
    """The schema of an item of an array."""
    prefix = branch.get("prefixItems", ())
    return prefix[index] if index < len(prefix) else branch.get("items", ANY)


def names_of(branch: Schema) -> Schema:
    """The schema of the names of an object's properties."""
    return {"type": "string", **branch.get("propertyNames", {})}


def format_of(branch: Schema) -> str | None:
    """What a string has to look like."""
    name: str | None = branch.get("format", branch.get("contentEncoding"))
    return None if name in _UNCHECKED_FORMATS else name


def includes_format(wide: str | None, narrow: str | None) -> bool:
    """Whether all strings of a format have another one, too."""
    return wide in (None, narrow) or narrow in _NARROWER_FORMATS.get(str(wide), ())


def number_fits(branch: Schema, value: float) -> bool:
    """Whether a number keeps to the bounds."""
    step = branch.get("multipleOf")
    return (
        value >= branch.get("minimum", -math.inf)
        and value <= branch.get("maximum", math.inf)
        and value > branch.get("exclusiveMinimum", -math.inf)
        and value < branch.get("exclusiveMaximum", math.inf)
        and (step is None or math.isclose(value / step, round(value / step), abs_tol=1e-12))
    )


def string_fits(branch: Schema, value: str) -> bool:
    """Whether a string has the length, the pattern and the format."""
    low, high = bounds_of(branch, "Length")
    if not low <= len(value) <= high:
        return False
    if "pattern" in branch and not re.search(branch["pattern"], value):
        return False
    format_name = format_of(branch)
    return format_name is None or any(
        value in (example, _EMPTY.get(name, example)) and includes_format(format_name, name)
        for name, example in _EXAMPLES_OF_FORMATS.items()
    )


def scalars(branch: Schema, other: Schema) -> Iterator[Any]:
    """Numbers or strings at the edges of two schemas; some do not fit."""
    if branch["type"] == "string":
        yield from _strings(branch, other)
    else:
        yield from _numbers(branch, other)


def _numbers(branch: Schema, other: Schema) -> Iterator[float]:
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    bounds = [each[name] for each in (branch, other) for name in names if name in each]
    steps = {each["multipleOf"] for each in (branch, other) if "multipleOf" in each} or {1}
    points = [0.5, -1, 0, 1, *bounds]
    points += [bound + shift for bound in bounds for shift in (-1, -0.5, 0.5, 1)]
    points += [(one + another) / 2 for one in bounds for another in bounds]
    for step in steps:
        points += [step, 2 * step, 3 * step, -step]
        points += [round(point / step) * step + shift for point in [*points]
                   for shift in (-step, 0, step)]  # fmt: skip
    for point in points:
        if branch["type"] == "number":
            yield point
        elif point == int(point):
            yield int(point)


def _strings(branch: Schema, other: Schema) -> Iterator[str]:
    lengths = {0, 1, 2}
    for each in (branch, other):
        low, high = bounds_of(each, "Length")
        lengths |= {int(low) - 1, int(low), *((int(high), int(high) + 1) if high < 10_000 else ())}
    if format_of(branch) is None:
        yield from _PROBES
        for length in sorted(lengths - {-1}):
            yield from ("x" * length, "0" * length)
    for name, example in _EXAMPLES_OF_FORMATS.items():
        if includes_format(format_of(branch), name):
            yield from (example, _EMPTY.get(name, example))
