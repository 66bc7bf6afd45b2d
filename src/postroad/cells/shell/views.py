"""Views for operators: text tables, and the view of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from postroad.cells.errors import CellNotFoundError
from postroad.cells.routing.route import RouteType

if TYPE_CHECKING:
    from postroad.cells.cell import Cell
    from postroad.cells.domain import CellDomain

# Longer texts are truncated, because names and errors may come from other domains.
_CELL_CHARACTERS_MAX = 300
_MARK = "..."


def format_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows in aligned columns below a line of headings."""
    lines = [tuple(headings), *(tuple(map(one_line, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def format_fields(pairs: Iterable[tuple[str, object]]) -> str:
    """Return a line for each name and value."""
    listed = [(f"{name}:", one_line(value)) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in listed)


def one_line(value: object, characters_max: int = _CELL_CHARACTERS_MAX) -> str:
    """Return a value as short text without control characters; None is a dash."""
    if value is None:
        return "-"
    text = " ".join(str(value).split())
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= characters_max else shown[: characters_max - len(_MARK)] + _MARK


def format_names(values: Iterable[str], count_max: int = 5) -> str:
    """Return the first names and the number of further ones; a dash if there are none."""
    listed = list(values)
    shown = ", ".join(listed[:count_max])
    more = len(listed) - count_max
    return f"{shown} and {more} more" if more > 0 else shown or "-"


def format_milliseconds(seconds: float | None) -> str:
    """Return a duration in milliseconds as text; a dash for None."""
    return "-" if seconds is None else f"{seconds * 1000:.2f} ms"


class CommandView(msgspec.Struct, frozen=True, kw_only=True):
    """Output of a command."""

    text: str


def render(value: object) -> str:
    """Return the result of a command as text: a struct as fields, structs as a table."""
    if value is None:
        return ""
    if isinstance(value, CommandView):
        return value.text
    if isinstance(value, msgspec.Struct):
        return format_fields(
            (name.replace("_", " "), _plain(getattr(value, name)))
            for name in value.__struct_fields__
        )
    if not isinstance(value, list):
        return str(value)
    if not value or not isinstance(value[0], msgspec.Struct):
        return "\n".join(map(str, value)) or "none"
    headings = [name.replace("_", " ").upper() for name in value[0].__struct_fields__]
    return format_table(headings, ([*map(_plain, msgspec.structs.astuple(row))] for row in value))


def _plain(value: object) -> object:
    """Return what a table shows of a value: numbers are rounded, an empty text is a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list | tuple):
        return format_names(map(str, value))
    return value or None if isinstance(value, str) else value


class CellView(msgspec.Struct, frozen=True, kw_only=True):
    """State of a cell, for operators."""

    name: str
    domain: str
    state: str
    """`idle`, `busy`, or `draining`: withdrawn from all queues and topics."""
    waiting: int
    waiting_bytes: int
    oldest_wait_s: float | None
    """How long the oldest message in the mailbox has waited."""
    running: int
    handled: int
    kind: str
    """Class of the cell."""
    description: str
    """Description of the cell."""
    is_system: bool
    """Whether it is a built-in cell or a tunnel."""
    consumes: list[str]
    """Queues that it consumes."""
    subscribes: list[str]
    """Topics that it subscribes to."""


def cell_view(domain: CellDomain, name: str) -> CellView:
    """Return the view of a cell; raises CellNotFoundError if the domain has none of that name."""
    dispatcher = domain.dispatcher
    runner = dispatcher.registry.runners.get(name)
    if runner is None:
        raise CellNotFoundError(f"domain {domain.name} has no cell {name!r}")
    oldest = runner.mailbox.oldest
    busy = "idle" if runner.is_idle else "busy"
    return CellView(
        name=name,
        domain=domain.name,
        state="draining" if name in dispatcher.registry.draining else busy,
        waiting=len(runner.mailbox),
        waiting_bytes=runner.mailbox.bytes,
        oldest_wait_s=None if oldest is None else dispatcher.loop.time() - oldest.arrived,
        running=runner.running,
        handled=runner.handled,
        kind=type(runner.cell).__name__,
        description=_describe(runner.cell),
        is_system=runner.cell.is_system,
        consumes=_route_names(domain, name, RouteType.QUEUE),
        subscribes=_route_names(domain, name, RouteType.TOPIC),
    )


def _describe(cell: Cell) -> str:
    """Return the description of a cell; user code may raise and must not break the listing."""
    try:
        return str(cell.describe())
    except Exception as error:
        return f"cannot describe itself: {type(error).__name__}"


async def describe_cell(cell: Cell) -> str:
    """Show description, state and mailbox of the cell."""
    domain = cell.domain
    view = cell_view(domain, cell.name)
    return format_fields(
        (
            ("cell", cell.address),
            ("class", view.kind),
            ("description", view.description),
            ("state", view.state),
            ("queues", format_names(view.consumes, 50)),
            ("topics", format_names(view.subscribes, 50)),
            ("waiting", f"{view.waiting} messages, {view.waiting_bytes} bytes"),
            ("running", f"{view.running} of {cell.concurrency} at a time"),
            ("handled", view.handled),
        )
    )


def _route_names(domain: CellDomain, name: str, type: RouteType) -> list[str]:
    """Return the queues or topics with a route to a cell."""
    address = domain.identity.cell(name)
    return sorted(
        route.cell for route in domain.table if route.type is type and route.target == address
    )
