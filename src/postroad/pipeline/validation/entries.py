"""One entry of a job, read key by key: a bad value hides no other.

A misspelt key or word is reported once and then taken for what was probably meant, so that the
rules need not complain of it again. A value that cannot be read leaves its key in doubt.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from .problems import JobIssue, fields_of, nearest, suggestion

Entry = TypeVar("Entry", bound=msgspec.Struct)


class IssueCollector:
    """What went wrong while reading."""

    def __init__(self) -> None:
        self.problems: list[JobIssue] = []
        self.doubtful: set[tuple[str, str]] = set()

    def report(self, entry: str, text: str, *keys: str) -> None:
        """Add a problem."""
        self.problems.append(JobIssue(entry, text, keys))

    def doubt(self, entry: str, key: str) -> None:
        """Remember that nothing is known of a value."""
        self.doubtful.add((entry, key))

    def has_doubts_about(self, problem: JobIssue) -> bool:
        """Whether it is about a value that could not be read, and was reported for that."""
        return any((problem.entry, key) in self.doubtful for key in problem.keys)


def as_mapping(data: Any) -> Mapping[str, Any] | None:
    """The keys and values of a structure or table, under the names they have in data."""
    if isinstance(data, msgspec.Struct):
        return {it.encode_name: getattr(data, it.name) for it in fields_of(type(data))}
    return data if isinstance(data, Mapping) else None


def type_name(value: Any) -> str:
    """What a value is, in the words of a data file."""
    if value is None:
        return "null"
    return "a table" if isinstance(value, Mapping) else type(value).__name__


def repair(
    raw: Mapping[str, Any], kind: type[msgspec.Struct], prefix: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """The known keys, with values of misspelt ones where they were meant to be; and complaints."""
    known = [field.encode_name for field in fields_of(kind)]
    repaired = {key: value for key, value in raw.items() if key in known}
    complaints = []
    for key in (key for key in raw if key not in known):
        complaints.append(f"unknown key '{prefix}{key}'{suggestion(str(key), known)}")
        meant = nearest(str(key), known)
        if meant is not None:
            repaired.setdefault(meant, raw[key])
    return repaired, complaints


def read_entry(
    notes: IssueCollector, entry: str, raw: Mapping[str, Any], kind: type[Entry], prefix: str = ""
) -> Entry | None:
    """The entry with what could be read of it, or None where that is too little."""
    repaired, complaints = repair(raw, kind, prefix)
    for complaint in complaints:
        notes.report(entry, complaint)
    fields = fields_of(kind)
    values = {field.name: _read_field(notes, entry, repaired, field, prefix) for field in fields}
    read = {name: value for name, value in values.items() if value is not msgspec.UNSET}
    if any(field.required and field.name not in read for field in fields):
        return None
    return kind(**read)


def _read_field(
    notes: IssueCollector,
    entry: str,
    raw: Mapping[str, Any],
    field: msgspec.structs.FieldInfo,
    prefix: str,
) -> Any:
    """The value of a field, or UNSET."""
    if field.encode_name in raw:
        return read_value(notes, entry, prefix + field.encode_name, raw[field.encode_name], field)
    if field.required:
        notes.report(entry, f"{prefix}{field.encode_name} is missing", prefix + field.encode_name)
    return msgspec.UNSET


def read_value(
    notes: IssueCollector, entry: str, key: str, value: Any, field: msgspec.structs.FieldInfo
) -> Any:
    """A value as a field wants it, or UNSET when it cannot be one."""
    nested = as_mapping(value)
    if nested is not None and _is_struct(field.type):
        found = read_entry(notes, entry, nested, field.type, f"{key}.")
        return msgspec.UNSET if found is None else found
    words = _words(field.type)
    if words and isinstance(value, str) and value not in words:
        notes.report(entry, f"unknown {key} {value!r}{suggestion(value, words)}", key)
        meant = nearest(value, words)
        if meant is None:
            notes.doubt(entry, key)
            return msgspec.UNSET
        value = meant
    try:
        return msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        notes.report(entry, _reason(key, error), key)
        notes.doubt(entry, key)
        return msgspec.UNSET


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _words(type_: Any) -> list[str]:
    """The words a value may be, where it is an enumeration."""
    choices = (type_, *typing.get_args(type_))
    return [
        str(word)
        for choice in choices
        if isinstance(choice, type) and issubclass(choice, enum.Enum)
        for word in choice
    ]


def _reason(key: str, error: msgspec.ValidationError) -> str:
    """Say `key: expected int, got str`, with the place inside the value where there is one."""
    text, _, place = str(error).partition(" - at ")
    inside = f" at {place.replace('$', key)}" if place else ""
    return f"{key}: {text[:1].lower()}{text[1:]}{inside}".replace("`", "")
