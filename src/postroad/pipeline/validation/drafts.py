"""A job as far as it can be read: lists of entries, each with the words that name it to people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from postroad.pipeline.job import Edge, FlowCondition, Job, TaskLifecycle, Task, Trigger, Window

from .entries import Entry, IssueCollector, as_mapping, read_entry, read_value, repair, type_name
from .problems import fields_of

Label = Callable[[int, Mapping[str, Any]], str]

JOB = "job"
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
        self.edges = self._read_edges()
        self.tasks = self._read("catalog", Task, _by_name("catalog", "catalog entry"))
        self.conditions = self._read(
            "flow_conditions", FlowCondition, _by_number("flow condition", "from", "from")
        )
        self.windows = self._read("windows", Window, _by_name("window", "window"))
        self.triggers = self._read(
            "triggers", Trigger, _by_number("trigger", "of window", "window")
        )
        self.lifecycles = self._read("lifecycles", TaskLifecycle, _by_number("lifecycle", "of", "task"))

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
        scalars = {"name": self.name, "doc": self.doc, "metadata": self.metadata}
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
        (field,) = (it for it in fields_of(Job) if it.encode_name == key)
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
