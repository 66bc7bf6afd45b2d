"""Operations of cells, those of `postroad.cells.shell.operations`, on any node."""

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
    """List the cells of this domain or of another; a pattern of names has `*` and `?`."""
    here = office.node.domain
    if domain is None or domain == here.name:
        return await list_local_cells(here, pattern)
    views: list[CellView] = await office.ask(domain, "cells.ps", {"pattern": pattern})
    return views


# The others run in the domain of this node.
OPERATIONS.include(CELLS, lambda office: office.node.domain)
