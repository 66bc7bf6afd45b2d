"""Cells: domains, the cells in them, the routes between them, and commands to cells.

They are the operations of `postroad.cells.shell.operations`, which text commands are, too.
"""

from __future__ import annotations

from postroad.cells.shell.operations import OPERATIONS as CELLS
from postroad.cells.shell.operations import list_cells as list_local_cells
from postroad.cells.shell.views import CellView

from .office import Office
from .table import OPERATIONS, operation


@operation("cells.ps")
async def list_cells(
    office: Office, domain: str | None = None, pattern: str = "*"
) -> list[CellView]:
    """Cells of this domain, or of another node's; a pattern of names has `*` and `?`."""
    here = office.node.domain
    if domain is None or domain == here.name:
        return await list_local_cells(here, pattern)
    views: list[CellView] = await office.ask(domain, "cells.ps", {"pattern": pattern})
    return views


# What has no definition above is done by the domain itself.
OPERATIONS.include(CELLS, lambda office: office.node.domain)
