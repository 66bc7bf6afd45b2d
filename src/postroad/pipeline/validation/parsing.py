"""Lenient parsing of job data."""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from postroad.pipeline.job import Edge, FlowCondition, Job, Task, TaskLifecycle, Trigger, Window
from postroad.pipeline.validation.issues import JobIssue, fields_of, nearest, suggestion

Label = Callable[[int, Mapping[str, Any]], str]

JOB = "job"
# What keys were called before 0.2; jobs may still call them so.
_OLD_KEYS: Mapping[tuple[type, str], str] = {
    (Task, "medium"): "connector",
    (TaskLifecycle, "calls"): "hooks",
    (Window, "keep_s"): "allowed_lateness_s",
}
SECTIONS = ("workflow", "catalog", "flow_conditions", "windows", "triggers", "lifecycles")


class ParsedJob:
    """What could be read of a job."""

    def __init__(self, data: Job | Mapping[str, Any]) -> None:
        self.notes = IssueCollector()
        # Sections that are missing or no lists, and those with entries that could not be read.
        self.unreadable: set[str] = set()
        self.incomplete: set[str] = set()
        # By section; of entries that could not be read, too.
        self.names: dict[str, list[str]] = {"catalog": [], "windows": []}
        self._raw = self._repaired(data)
        self.name = self._read_scalar("name")
        self.doc = self._read_scalar("doc")
        self.metadata = self._read_scalar("metadata")
        self.functions = self._read_scalar("functions")
        self.edges = self._read_edges()
        self.tasks = self._read("catalog", Task, _by_name("catalog", "catalog entry"))
        self.conditions = self._read(
            "flow_conditions", FlowCondition, _by_number("flow condition", "from", "from")
        )
        self.windows = self._read("windows", Window, _by_name("window", "window"))
        self.triggers = self._read(
            "triggers", Trigger, _by_number("trigger", "of window", "window")
        )
        self.lifecycles = self._read(
            "lifecycles", TaskLifecycle, _by_number("lifecycle", "of", "task")
        )

    @property
    def task_names(self) -> list[str]:
        """Names in the catalog, in its order."""
        return self.names["catalog"]

    @property
    def window_names(self) -> list[str]:
        """Names of windows, in their order."""
        return self.names["windows"]

    def to_job(self) -> Job:
        """The whole of it. Only for one without problems."""
        scalars = {
            "name": self.name,
            "doc": self.doc,
            "metadata": self.metadata,
            "functions": self.functions,
        }
        return Job(
            **{key: value for key, value in scalars.items() if value is not msgspec.UNSET},
            workflow=[edge for _, edge in self.edges],
            catalog=[task for _, task in self.tasks],
            flow_conditions=[condition for _, condition in self.conditions],
            windows=[window for _, window in self.windows],
            triggers=[trigger for _, trigger in self.triggers],
            lifecycles=[lifecycle for _, lifecycle in self.lifecycles],
        )

    def _repaired(self, data: Any) -> dict[str, Any]:
        raw = as_mapping(data)
        if raw is None:
            self.notes.report(JOB, f"must be a table, not {type_name(data)}")
            self.unreadable.update(SECTIONS)
            return {}
        repaired, complaints = repair(raw, Job)
        for complaint in complaints:
            self.notes.report(JOB, complaint)
        for field in fields_of(Job):
            if field.required and field.encode_name not in repaired:
                self.notes.report(JOB, f"{field.encode_name} is missing", field.encode_name)
                self._give_up(field.encode_name)
        return repaired

    def _give_up(self, section: str) -> None:
        self.unreadable.add(section)
        self.incomplete.add(section)

    def _read_scalar(self, key: str) -> Any:
        (field,) = (known for known in fields_of(Job) if known.encode_name == key)
        if key not in self._raw:
            return msgspec.UNSET
        return read_value(self.notes, JOB, key, self._raw[key], field)

    def _items(self, section: str) -> list[Any]:
        items = self._raw.get(section, [])
        if isinstance(items, list | tuple):
            return list(items)
        self.notes.report(JOB, f"{section} must be a list, not {type_name(items)}", section)
        self._give_up(section)
        return []

    def _read_edges(self) -> list[tuple[str, Edge]]:
        edges: list[tuple[str, Edge]] = []
        for number, item in enumerate(self._items("workflow"), start=1):
            label = f"workflow edge {number}"
            try:
                edge = msgspec.convert(item, Edge)
            except msgspec.ValidationError:
                self.notes.report(label, f"{item!r} is no pair of names like ['parse', 'store']")
                self.incomplete.add("workflow")
            else:
                edges.append((f"{label} ({edge[0]!r} to {edge[1]!r})", edge))
        return edges

    def _read(self, section: str, kind: type[Entry], label: Label) -> list[tuple[str, Entry]]:
        entries: list[tuple[str, Entry]] = []
        for number, item in enumerate(self._items(section), start=1):
            raw = as_mapping(item)
            if raw is None:
                self.notes.report(label(number, {}), f"must be a table, not {type_name(item)}")
                self.incomplete.add(section)
                continue
            repaired, _ = repair(raw, kind)
            self._note_name(section, repaired)
            name = label(number, repaired)
            entry = read_entry(self.notes, name, raw, kind)
            if entry is None:
                self.incomplete.add(section)
            else:
                entries.append((name, entry))
        return entries

    def _note_name(self, section: str, raw: Mapping[str, Any]) -> None:
        name = raw.get("name")
        if section in self.names and isinstance(name, str):
            self.names[section].append(name)


def _by_name(what: str, numbered: str) -> Label:
    def label(number: int, raw: Mapping[str, Any]) -> str:
        name = raw.get("name")
        return f"{what} {name!r}" if isinstance(name, str) else f"{numbered} {number}"

    return label


def _by_number(what: str, joint: str, key: str) -> Label:
    def label(number: int, raw: Mapping[str, Any]) -> str:
        value = raw.get(key)
        about = f" ({joint} {value!r})" if isinstance(value, str) else ""
        return f"{what} {number}{about}"

    return label


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
        return {field.encode_name: getattr(data, field.name) for field in fields_of(type(data))}
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
    raw = {_new_key(raw, kind, key): value for key, value in raw.items()}
    repaired = {key: value for key, value in raw.items() if key in known}
    complaints = []
    for key in (key for key in raw if key not in known):
        complaints.append(f"unknown key '{prefix}{key}'{suggestion(str(key), known)}")
        meant = nearest(str(key), known)
        if meant is not None:
            repaired.setdefault(meant, raw[key])
    return repaired, complaints


def _new_key(raw: Mapping[str, Any], kind: type[msgspec.Struct], key: str) -> str:
    """What a key is called now; one that is there under both names is a mistake."""
    new = _OLD_KEYS.get((kind, key), key)
    return key if new in raw else new


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
