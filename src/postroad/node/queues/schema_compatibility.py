"""Whether what one type writes can be read as another, decided by their JSON Schemas.

A writer sends the properties that its schema names; a reader ignores what it does not know, unless
it forbids that. Each break comes with a value that the writer may send and the reader refuses,
where one can be made.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from postroad.core.errors import ConfigError

from .schema_values import (
    ANY,
    NoExample,
    Root,
    Schema,
    bounds_of,
    format_of,
    includes_format,
    item_of,
    names_of,
    scalars,
)


class Mode(enum.Enum):
    """Who has to understand whom."""

    BACKWARD = "backward"
    """The new version reads what the old one wrote."""
    FORWARD = "forward"
    """The old version reads what the new one writes."""
    FULL = "full"
    """Both."""


class Break(msgspec.Struct, frozen=True):
    """Why a reader does not understand a writer."""

    place: str
    """In the value, as in `$.lines[...].count`."""
    reason: str
    example: Any = UNSET
    """What the writer may send and the reader refuses; missing where none can be made."""


def find_breaks(
    writer: Any, reader: Any, *, writer_name: str = "the writer", reader_name: str = "the reader"
) -> list[Break]:
    """What the schema of a reader does not accept of what the schema of a writer allows.

    Raises:
        ConfigError: one of them is no JSON Schema.
    """
    comparison = _Comparison(Root(writer), Root(reader), writer_name, reader_name)
    try:
        breaks = comparison.compare(writer, reader)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, re.error) as error:
        raise ConfigError(f"this is no JSON Schema: {type(error).__name__}: {error}") from error
    return [msgspec.structs.replace(each, place=f"${each.place}") for each in breaks]


class _Comparison:
    """Compares two schemas, place by place; places and examples are relative until the end."""

    def __init__(self, writer: Root, reader: Root, writer_name: str, reader_name: str) -> None:
        self._writer = writer
        self._reader = reader
        self._from = writer_name
        self._to = reader_name
        # By the two schemas; while a pair is being compared it has no breaks, as types recurse.
        self._known: dict[tuple[int, int], list[Break]] = {}

    def compare(self, writer: Any, reader: Any) -> list[Break]:
        """The breaks between two schemas."""
        key = id(self._writer.follow(writer)), id(self._reader.follow(reader))
        if key not in self._known:
            self._known[key] = []
            alternatives = [*self._reader.branches(reader)]
            self._known[key] = _unique(
                each
                for branch in self._writer.branches(writer)
                for each in self._compare_branch(branch, reader, alternatives)
            )
        return self._known[key]

    def _compare_branch(
        self, writer: Schema, reader: Any, alternatives: list[Schema]
    ) -> list[Break]:
        """The breaks between what a writer may send and all that a reader takes instead."""
        if "const" in writer:
            if self._reader.accepts(reader, writer["const"]):
                return []
            return [self._unexpected(writer, alternatives, writer["const"])]
        attempts = []
        for each in alternatives:
            if "const" not in each and _have_one_type(writer, each):
                breaks = self._compare_types(writer, each)
                if not breaks:
                    return []
                attempts.append((each.get("title") != writer.get("title"), len(breaks), breaks))
        if not attempts:
            return [self._unexpected(writer, alternatives, self._refused(writer, reader))]
        _, _, nearest = min(attempts, key=lambda attempt: attempt[:2])
        # What one alternative refuses, another may take.
        remaining = [
            each
            for each in nearest
            if each.example is UNSET or not self._reader.accepts(reader, each.example)
        ]
        return remaining or [Break("", f"no single alternative of {self._to} takes all of it")]

    def _unexpected(self, writer: Schema, alternatives: list[Schema], example: Any) -> Break:
        expected = " or ".join(dict.fromkeys(map(_describe, alternatives))) or "nothing"
        reason = f"{self._from} may send {_describe(writer)}, {self._to} takes {expected}"
        return Break("", reason, example)

    def _refused(self, writer: Schema, reader: Any) -> Any:
        """A value of a writer that a reader refuses as a whole."""
        if writer["type"] in ("array", "object"):
            return _attempt(lambda: self._writer.branch_example(writer))
        for value in scalars(writer, writer):
            if self._writer.branch_accepts(writer, value) and not self._reader.accepts(
                reader, value
            ):
                return value
        return UNSET

    def _compare_types(self, writer: Schema, reader: Schema) -> list[Break]:
        match writer["type"]:
            case "object":
                return [*self._compare_objects(writer, reader)]
            case "array":
                return [*self._compare_arrays(writer, reader)]
            case "string":
                return [*self._compare_strings(writer, reader)]
        return [*self._compare_numbers(writer, reader)]

    # Numbers and strings.

    def _compare_numbers(self, writer: Schema, reader: Schema) -> Iterator[Break]:
        if reader["type"] == "string":
            return  # A decimal.
        example = self._refused_by(writer, reader)
        step, steps = reader.get("multipleOf"), writer.get("multipleOf", math.nan)
        is_step_kept = step is None or math.isclose(steps / step % 1, 0, abs_tol=1e-12)
        if example is not UNSET or not is_step_kept:
            reason = f"{self._from} may send {_describe(writer)}, {self._to} takes"
            yield Break("", f"{reason} {_describe(reader)}", example)

    def _compare_strings(self, writer: Schema, reader: Schema) -> Iterator[Break]:
        low, high = bounds_of(writer, "Length")
        low_taken, high_taken = bounds_of(reader, "Length")
        if (
            (low < low_taken or high > high_taken)
            or reader.get("pattern") not in (None, writer.get("pattern"))
            or not includes_format(format_of(reader), format_of(writer))
        ):
            reason = f"{self._from} may send {_describe(writer)}, {self._to} takes"
            example = self._refused_by(writer, reader)
            yield Break("", f"{reason} {_describe(reader)}", example)

    def _refused_by(self, writer: Schema, reader: Schema) -> Any:
        for value in scalars(writer, reader):
            if self._writer.branch_accepts(writer, value) and not self._reader.branch_accepts(
                reader, value
            ):
                return value
        return UNSET

    # Arrays.

    def _compare_arrays(self, writer: Schema, reader: Schema) -> Iterator[Break]:
        low, high = bounds_of(writer, "Items")
        if "items" not in writer and "prefixItems" in writer:
            high = min(high, len(writer["prefixItems"]))  # A writer sends no more.
        low_taken, high_taken = bounds_of(reader, "Items")
        yield from self._compare_sizes(
            "items", (low, high), (low_taken, high_taken),
            lambda size: self._writer.array_example(writer, size),
        )  # fmt: skip
        named = max(len(each.get("prefixItems", ())) for each in (writer, reader))
        for index in range(named + 1):
            if index >= min(high, high_taken):
                return
            place = "[...]" if index == named else f"[{index}]"
            size = max(int(low), index + 1)
            for each in self.compare(item_of(writer, index), item_of(reader, index)):
                yield self._within(
                    place, each, lambda value, index=index, size=size: _with_item(  # type: ignore[misc] # Bound at once.
                        self._writer.array_example(writer, size), index, value
                    ),
                )  # fmt: skip

    def _compare_sizes(
        self,
        what: str,
        sent: tuple[float, float],
        taken: tuple[float, float],
        make: Callable[[int], Any],
    ) -> Iterator[Break]:
        if sent[0] < taken[0]:
            example = _attempt(lambda: make(int(sent[0])))
            reason = f"{self._from} may send {sent[0]} {what}, {self._to} needs {taken[0]}"
            yield Break("", reason, example)
        if sent[1] > taken[1]:
            example = _attempt(lambda: make(max(int(taken[1]) + 1, int(sent[0]))))
            reason = f"{self._from} may send more than {taken[1]} {what}, which {self._to} refuses"
            yield Break("", reason, example)

    # Objects.

    def _compare_objects(self, writer: Schema, reader: Schema) -> Iterator[Break]:
        sent, taken = writer.get("properties", {}), reader.get("properties", {})
        extra, required = _extra_of(writer), writer.get("required", ())
        low, high = bounds_of(writer, "Properties")
        yield from self._compare_required(writer, reader)
        yield from self._compare_sizes(
            "entries",
            (max(low, len(required)), min(high, math.inf if extra is not False else len(sent))),
            bounds_of(reader, "Properties"),
            lambda size: self._filled(writer, size),
        )
        extra_taken = reader.get("additionalProperties", ANY)
        pairs = [(name, schema, taken.get(name, extra_taken)) for name, schema in sent.items()]
        if extra is not False:
            pairs += [
                (name, extra, schema)
                for name, schema in taken.items()
                if name not in sent and self._writer.accepts(names_of(writer), name)
            ]
        for name, schema, accepted in pairs:
            yield from self._compare_property(writer, name, schema, accepted)
        if extra is not False:
            yield from self._compare_extra(writer, reader, extra, extra_taken)

    def _compare_required(self, writer: Schema, reader: Schema) -> Iterator[Break]:
        for name in reader.get("required", ()):
            if name not in writer.get("required", ()):
                example = _attempt(lambda: self._writer.branch_example(writer))
                is_known = name in writer.get("properties", {})
                why = "may leave it out" if is_known else "does not send it"
                yield Break(_place_of(name), f"{self._to} requires it, {self._from} {why}", example)

    def _compare_property(
        self, writer: Schema, name: str, sent: Any, taken: Any
    ) -> Iterator[Break]:
        def add(value: Any) -> Any:
            return {**self._writer.branch_example(writer), name: value}

        if taken is False:
            reason = f"{self._to} does not know it and forbids unknown fields"
            yield Break(_place_of(name), reason, _attempt(lambda: add(self._writer.example(sent))))
            return
        for each in self.compare(sent, taken):
            yield self._within(_place_of(name), each, add)

    def _compare_extra(
        self, writer: Schema, reader: Schema, sent: Any, taken: Any
    ) -> Iterator[Break]:
        """Compare entries whose names no schema lists, as of a dict."""

        def filled() -> dict[str, Any]:
            return self._filled(writer, len(writer.get("required", ())) + 1)

        if taken is False:
            reason = f"{self._to} forbids unknown fields, {self._from} may send any"
            yield Break("", reason, _attempt(filled))
            return
        for each in self.compare(sent, taken):
            yield self._within("[...]", each, lambda value: _with_last(filled(), value))
        for branch in self._writer.branches(names_of(writer)):
            names = [*self._reader.branches(names_of(reader))]
            for each in self._compare_branch(branch, names_of(reader), names):
                entry = _attempt(lambda: self._writer.example(sent))
                is_known = UNSET not in (each.example, entry)
                example = {each.example: entry} if is_known else UNSET
                yield Break("", f"names of entries: {each.reason}", example)

    def _filled(self, writer: Schema, size: int) -> dict[str, Any]:
        value: dict[str, Any] = self._writer.branch_example(writer)
        if size > len(value) and _extra_of(writer) is False:
            raise NoExample
        self._writer.fill(writer, value, size)
        return value

    def _within(self, place: str, inner: Break, wrap: Callable[[Any], Any]) -> Break:
        """A break in a part, as one of the whole."""
        example = inner.example
        if example is not UNSET:
            example = _attempt(lambda: wrap(inner.example))
        return Break(f"{place}{inner.place}", inner.reason, example)


def _attempt(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except NoExample:
        return UNSET


def _with_item(items: list[Any], index: int, value: Any) -> list[Any]:
    return [*items[:index], value, *items[index + 1 :]]


def _with_last(entries: dict[str, Any], value: Any) -> dict[str, Any]:
    return {**entries, next(reversed(entries)): value}


def _extra_of(writer: Schema) -> Any:
    """What a writer sends besides the properties that it names: nothing, unless it says so."""
    return writer.get("additionalProperties", False if "properties" in writer else ANY)


def _have_one_type(writer: Schema, reader: Schema) -> bool:
    if writer["type"] in ("integer", "number"):
        return reader["type"] in ("integer", "number") or reader.get("format") == "decimal"
    return bool(writer["type"] == reader["type"])


def _place_of(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{msgspec.json.encode(name).decode()}]"


def _unique(breaks: Iterable[Break]) -> list[Break]:
    """Without those that say the same of the same place."""
    return [*{(each.place, each.reason): each for each in breaks}.values()]


_CONSTRAINTS = {
    "title": "{}",
    "format": "{}",
    "contentEncoding": "in {}",
    "minimum": ">= {}",
    "maximum": "<= {}",
    "exclusiveMinimum": "> {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "a multiple of {}",
    "minLength": "of at least {} characters",
    "maxLength": "of at most {} characters",
    "pattern": "like {}",
}


def _describe(branch: Mapping[str, Any]) -> str:
    """An alternative in a few words."""
    if "const" in branch:
        return msgspec.json.encode(branch["const"]).decode()
    words = [
        text.format(branch[name])
        for name, text in _CONSTRAINTS.items()
        if name in branch and (name != "title" or branch["type"] in ("object", "array"))
    ]
    return " ".join([branch["type"], *words])
