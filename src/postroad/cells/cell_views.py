"""What operators see of a cell: what it is, what it takes, what waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from .errors import CellNotFoundError
from .layout import format_fields, format_names
from .route import RouteType

if TYPE_CHECKING:
    from .cell import Cell
    from .runtime import CellDomain


class CellView(msgspec.Struct, frozen=True, kw_only=True):
    """A cell at one moment."""

    name: str
    domain: str
    state: str
    """`idle`, `busy`, or `draining`: taken out of all queues and topics."""
    waiting: int
    waiting_bytes: int
    oldest_wait_s: float | None
    """How long the message has waited that came first."""
    running: int
    handled: int
    kind: str
    """Its class."""
    description: str
    """What it does."""
    is_system: bool
    """Whether it comes with every domain, or is a tunnel."""
    consumes: list[str]
    """Queues of cells that it takes messages of."""
    subscribes: list[str]
    """Topics that it gets copies of."""


def cell_view(domain: CellDomain, name: str) -> CellView:
    """Return the view of a cell; raises CellNotFoundError if the domain has none of that name."""
    exchange = domain.dispatcher
    runner = exchange.runners.get(name)
    if runner is None:
        raise CellNotFoundError(f"domain {domain.name} has no cell {name!r}")
    since = runner.waiting_since
    busy = "idle" if runner.is_idle else "busy"
    return CellView(
        name=name,
        domain=domain.name,
        state="draining" if name in exchange.draining else busy,
        waiting=len(runner.mailbox),
        waiting_bytes=runner.mailbox.bytes,
        oldest_wait_s=None if since is None else exchange.loop.time() - since,
        running=runner.running,
        handled=runner.handled,
        kind=type(runner.cell).__name__,
        description=_describe(runner.cell),
        is_system=runner.cell.is_system,
        consumes=_taken_by(domain, name, RouteType.QUEUE),
        subscribes=_taken_by(domain, name, RouteType.TOPIC),
    )


def _describe(cell: Cell) -> str:
    """What a cell says of itself; somebody else wrote that, and it must not hide the others."""
    try:
        return str(cell.describe())
    except Exception as error:
        return f"cannot describe itself: {type(error).__name__}"


def describe_cell(cell: Cell) -> str:
    """What `info` says of a cell that says nothing else."""
    domain = cell.domain
    view = cell_view(domain, cell.name)
    return format_fields(
        (
            ("cell", cell.address),
            ("class", view.kind),
            ("what", view.description),
            ("state", view.state),
            ("queues", format_names(view.consumes, 50)),
            ("topics", format_names(view.subscribes, 50)),
            ("waiting", f"{view.waiting} messages, {view.waiting_bytes} bytes"),
            ("running", f"{view.running} of {cell.concurrency} at a time"),
            ("handled", view.handled),
        )
    )


def _taken_by(domain: CellDomain, name: str, type: RouteType) -> list[str]:
    """The queues or topics whose messages a cell gets now."""
    address = domain.identity.cell(name)
    return sorted(it.cell for it in domain.table if it.type is type and it.target == address)
