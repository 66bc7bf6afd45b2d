"""What operators can ask of a node and do to it: one table, for HTTP, CLI, shell and dashboard.

The subject of these operations is the office. `queue.pause` is `POST /api/v1/queue/pause`,
`postroad queue pause`, and a button. Those of domains are in the table of
`postroad.cells.shell.operations`, which the text commands of cells use as well.
"""

from __future__ import annotations

from postroad.admin.errors import InvalidRequest
from postroad.core.operations import Effect, Operation, Operations, Parameter, explain

__all__ = ["OPERATIONS", "Effect", "Operation", "Operations", "Parameter", "explain", "operation"]

OPERATIONS = Operations(InvalidRequest)
operation = OPERATIONS.operation
