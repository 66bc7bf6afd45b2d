"""Results of operations for people: a table for many, fields for one, text for text."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec

from .screen import cells_of, cut, pad, paint, strong, visible, width
from .values import tell

_GAP = "  "
_COLUMN_CELLS_MIN = 8

_LISTED: dict[str, tuple[str, ...]] = {
    "ActionView": ("name", "available", "nodes", "description"),
    "BridgeView": ("peer", "phase", "depth", "oldest_age_s", "sent", "epoch", "target", "trouble"),
    "CellView": ("name", "domain", "state", "waiting", "running", "handled", "kind", "description"),
    "CheckView": ("name", "status", "detail", "next"),
    "DeadGroup": ("count", "queue", "reason", "newest_at", "detail"),
    "DeadSegment": ("id", "task", "failed_task", "attempts", "error"),
    "DeadView": ("id", "died_at", "queue", "peer", "reason", "failures", "retried", "detail"),
    "DefinitionView": ("name", "version", "running", "concurrency", "responds_to", "description"),
    "FlowView": ("id", "status", "name", "started_at", "client_id", "progress", "error"),
    "JobView": ("name", "state", "dead", "waiting", "pending", "oldest_s", "path", "problem"),
    "LetterView": ("id", "key", "posted_at", "failures", "next_try_at", "size", "error", "body"),
    "ScheduleView": (
        "name",
        "flow",
        "cron",
        "timezone",
        "is_paused",
        "next_at",
        "last_at",
        "problem",
    ),
    "ServiceView": ("name", "nodes", "actions", "events"),
    "SettingView": ("key", "value", "origin"),
    "StepView": ("number", "place", "kind", "name", "at", "value", "error"),
    "TroubleView": ("severity", "title", "detail", "command"),
}
"""Fields of a view that its tables show, in their order; all short ones of other views."""

_LONG = frozenset({"body", "detail", "encoding", "headers", "schema", "traceback"})
"""Fields that are shown only where there is room."""


class Column(NamedTuple):
    """A field of what is listed."""

    field: str
    is_number: bool

    @property
    def title(self) -> str:
        """What stands above it."""
        return title_of(self.field).upper()


def title_of(field: str) -> str:
    """The name of a field for people: the value itself tells its unit."""
    name = field.removeprefix("is_").removeprefix("has_")
    for ending in ("_at", "_per_s", "_s", "_ms", "_bytes", "_share"):
        if name.endswith(ending):
            name = name.removesuffix(ending)
            break
    return name.replace("_", " ")


def render(kind: Any, value: Any) -> str:
    """What an operation returned, as text.

    Args:
        kind: the type that the operation says it returns.
        value: as it came, made of dicts and lists.
    """
    view = item_of(kind)
    if isinstance(value, list):
        if view is not None:
            return table(columns_of(view), value) if value else "None."
        return "\n".join(_text(it) for it in value) or "None."
    if isinstance(value, Mapping):
        if set(value) == {"text"}:
            return visible(str(value["text"]))
        return record(struct_of(kind), value)
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return visible(value)
    return msgspec.json.format(msgspec.json.encode(value)).decode()


# What there is to show.


def struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a type stands for, if it does."""
    kind = unwrap(kind)
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return kind if is_struct else None


def item_of(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a type is a list of, if it is."""
    kind = unwrap(kind)
    if get_origin(kind) not in (list, tuple):
        return None
    return struct_of(get_args(kind)[0])


def unwrap(kind: Any) -> Any:
    """A type without the notes on it, and without the None that it may be."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
            continue
        if get_origin(kind) in (Union, types.UnionType):
            others = [it for it in get_args(kind) if it is not type(None)]
            if len(others) == 1:
                kind = others[0]
                continue
        return kind


def columns_of(view: type[msgspec.Struct]) -> list[Column]:
    """The columns of a table of such structs."""
    fields = {it.name: unwrap(it.type) for it in msgspec.structs.fields(view)}
    chosen = _LISTED.get(view.__name__)
    names = chosen or [name for name, kind in fields.items() if _is_short(name, kind)]
    return [Column(name, _is_number(name, fields[name])) for name in names]


def _is_number(name: str, kind: Any) -> bool:
    is_moment = name == "at" or name.endswith("_at")
    return kind in (int, float) and not is_moment


def _is_short(name: str, kind: Any) -> bool:
    holds = get_args(kind)
    return name not in _LONG and kind is not Any and not (holds and struct_of(holds[0]) is not None)


# Tables.


def table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows below one another, numbers to the right."""
    cells = [[_cell(column, row.get(column.field)) for column in columns] for row in rows]
    titles = [column.title for column in columns]
    widths = [max(map(cells_of, column)) for column in zip(titles, *cells, strict=True)]
    shown = columns[: _narrow(widths, columns)]
    lines = [strong(_line(titles, shown, widths))]
    lines += [_line(row, shown, widths, colours=True) for row in cells]
    return "\n".join(lines)


def _cell(column: Column, value: Any) -> str:
    if isinstance(value, bool) and not value:
        return ""
    lines = tell(column.field, value).splitlines()
    return lines[0] if lines else ""


def _narrow(widths: list[int], columns: Sequence[Column]) -> int:
    """Take cells from the widest texts until a line fits on the terminal, then whole columns.

    Returns:
        how many columns are left.
    """
    room = width()
    if room is None:
        return len(columns)
    texts = [index for index, column in enumerate(columns) if not column.is_number]
    while texts and _length(widths) > room:
        widest = max(texts, key=lambda index: widths[index])
        if widths[widest] <= _COLUMN_CELLS_MIN:
            break
        widths[widest] -= 1
    count = len(widths)
    while count > 1 and _length(widths[:count]) > room:
        count -= 1
    return count


def _length(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(
    cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], *, colours: bool = False
) -> str:
    parts = []
    # Columns that do not fit are missing at the end.
    for text, column, cell_width in zip(cells, columns, widths, strict=False):
        short = cut(text, cell_width)
        shown = pad(short, cell_width, to_right=column.is_number)
        parts.append(paint(text, shown) if colours else shown)
    return _GAP.join(parts).rstrip()


# One thing.


def record(view: type[msgspec.Struct] | None, value: Mapping[str, Any]) -> str:
    """The fields of one thing, those with a value, each on a line; lists in it as tables."""
    kinds = {} if view is None else {it.name: it.type for it in msgspec.structs.fields(view)}
    lines: list[str] = []
    sections: list[str] = []
    for name, it in value.items():
        if it is None or it in ({}, []):
            continue
        kind = kinds.get(name)
        if struct_of(kind) is not None or _is_table(it):
            sections.append(f"\n{strong(title_of(name))}\n{render(kind, it)}")
        else:
            lines.append(_field(name, it))
    return "\n".join([*lines, *sections])


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and isinstance(value[0], Mapping)


def _field(name: str, value: Any) -> str:
    text = paint(visible(value)) if isinstance(value, str) else tell(name, value)
    gap = "\n" if "\n" in text else " "
    return f"{title_of(name)}:{gap}{text}"
