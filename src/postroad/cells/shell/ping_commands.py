"""The commands `ping` and `traceroute`: the operations of these names, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.cells.shell.commands import command
from postroad.cells.shell.operations import (
    LOST_IN_A_ROW_MAX,
    OPERATIONS,
    HopView,
    PingView,
    ping,
    trace,
)
from postroad.cells.shell.views import format_milliseconds, format_names, format_table, one_line
from postroad.core.errors import MessagingError

if TYPE_CHECKING:
    from postroad.cells.cell import Cell


class PingCommands:
    """`ping` and `traceroute`."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @command(
        "ping",
        "PATH [-count=N] [-size=BYTES] [-timeout=S]",
        help="Measure the round trip to a cell, or to a consumer of a queue.\n"
        f"Sends N pings of BYTES one by one, each with a timeout of S seconds; stops after\n"
        f"{LOST_IN_A_ROW_MAX} lost pings in a row.",
        is_read=True,
    )
    async def ping(self, path: str, *, count: int = 1, size: int = 0, timeout: float = 2.0) -> str:
        """Send pings one by one."""
        params = {"path": path, "count": count, "size": size, "timeout_s": timeout}
        OPERATIONS["cells.ping"].read_params(params)
        return _report(path, await ping(self._cell.domain, path, count, timeout, size))

    @command(
        "traceroute",
        "PATH [-timeout=S]",
        help="Show the domains on the path to a cell and back, and the round trip to each.\n"
        "Messages to other names, and the pings to each domain, may take other paths.",
        is_read=True,
    )
    async def traceroute(self, path: str, *, timeout: float = 2.0) -> str:
        """Send a ping, and another one to each domain on its path."""
        OPERATIONS["cells.traceroute"].read_params({"path": path, "timeout_s": timeout})
        try:
            traced = await trace(self._cell.domain, path, timeout)
        except MessagingError as error:
            return f"no reply from {path}: {one_line(error.detail)}"
        return "\n".join(
            (
                f"{path} replied after {format_milliseconds(traced.seconds)}",
                f"out:   {' -> '.join(traced.out)}",
                f"back:  {' -> '.join(traced.back)}",
                "",
                format_table(("DOMAIN", "ROUND TRIP"), map(_row, traced.hops)),
            )
        )


def _row(hop: HopView) -> tuple[str, str]:
    if hop.round_trip_ms is None:
        return hop.domain, f"no reply: {hop.error}"
    return hop.domain, f"{hop.round_trip_ms:.2f} ms"


def _report(path: str, pings: list[PingView]) -> str:
    times = [view.round_trip_ms for view in pings if view.round_trip_ms is not None]
    answered_by = sorted({view.answered_by for view in pings if view.answered_by is not None})
    by = f" by {format_names(answered_by)}" if answered_by else ""
    lines = [f"{path}: {len(pings)} sent, {len(times)} replied{by}"]
    if times:
        mean = sum(times) / len(times)
        lines.append(
            f"round trip: min {min(times):.2f} ms, avg {mean:.2f} ms, max {max(times):.2f} ms"
        )
    lines += dict.fromkeys(f"no reply: {view.error}" for view in pings if view.error is not None)
    return "\n".join(lines)
