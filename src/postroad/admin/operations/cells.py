"""Cells: domains, the cells in them, the routes between them, and commands to cells."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from postroad.admin.errors import Forbidden, InvalidRequest, NotFound, nearest
from postroad.cells import (
    CellAddress,
    CellNotFoundError,
    CommandRejectedError,
    NoRouteError,
)
from postroad.cells.shell.operations import OPERATIONS as CELLS
from postroad.cells.shell.operations import HopView, Seconds, trace
from postroad.cells.shell.views import CellView, cell_view
from postroad.core.errors import (
    ConfigError,
    RemoteHandlerError,
    UsageError,
)

from .office import Office
from .table import OPERATIONS, Effect, operation

_SYSTEM = "System"


class CommandView(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell said."""

    text: str


@operation("cells.ps")
async def list_cells(
    office: Office, domain: str | None = None, pattern: str = "*"
) -> list[CellView]:
    """Cells of this domain, or of another node's; a pattern of names has `*` and `?`."""
    here = office.node.domain
    if domain is not None and domain != here.name:
        told: list[CellView] = await office.ask(domain, "cells.ps", {"pattern": pattern})
        return told
    return [cell_view(here, it) for it in here.cells if fnmatchcase(it, pattern)]


@operation("cells.traceroute")
async def traceroute(office: Office, path: str, timeout_s: Seconds = 2.0) -> list[HopView]:
    """The domains on the way to a cell and back, and how far away each is."""
    try:
        return (await trace(office.node.domain, path, timeout_s)).hops
    except NoRouteError as error:
        raise _lost(office, path, error) from None


def _lost(office: Office, cell: str, error: NoRouteError) -> NotFound:
    """Nobody has such a cell, as far as is known here."""
    return NotFound(f"{error.detail}{nearest(cell, office.node.domain.cells)}")


# Changing.


@operation("cells.run", Effect.CHANGE)
async def run_command(office: Office, cell: str, command: str) -> CommandView:
    """Have a cell run a command, and show what it says; `help` tells which it knows."""
    try:
        return CommandView(text=await office.node.domain.run_command(cell, command))
    except NoRouteError as error:
        raise _lost(office, cell, error) from None
    except RemoteHandlerError as error:
        if error.remote_code == CommandRejectedError.code:
            raise Forbidden(error.detail) from None
        raise


@operation("cells.kill", Effect.DANGER)
async def kill_cell(office: Office, cell: str) -> CommandView:
    """Stop a cell, `name` or `name@domain`, or close a tunnel."""
    return await _tell_system(office, "kill", cell)


@operation("cells.drain", Effect.CHANGE)
async def drain_cell(office: Office, cell: str) -> CommandView:
    """Take a cell, `name` or `name@domain`, out of all queues and topics; it finishes its work."""
    return await _tell_system(office, "drain", cell)


async def _tell_system(office: Office, command: str, cell: str) -> CommandView:
    domain = office.node.domain
    address = CellAddress.parse(cell if "@" in cell else f"{cell}@{domain.name}")
    if address.is_domain:
        raise InvalidRequest(f"{cell!r} is no cell: say which of its cells")
    system = f"{_SYSTEM}@{address.domain}"
    try:
        return CommandView(text=await domain.run_command(system, f"{command} {address.cell}"))
    except RemoteHandlerError as error:
        if error.remote_code == CellNotFoundError.code:
            raise NotFound(error.detail) from None
        if error.remote_code == CommandRejectedError.code:
            raise Forbidden(error.detail) from None
        if error.remote_code == ConfigError.code:
            raise UsageError(error.detail) from None
        raise


# What has no definition above is done by the domain itself.
OPERATIONS.include(CELLS, lambda office: office.node.domain)
