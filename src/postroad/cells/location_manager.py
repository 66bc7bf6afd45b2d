"""The cell that tells where cores are, as far as this domain knows, and what became of dialing."""

from __future__ import annotations

from typing import Any

import msgspec

from postroad.core.durations import format_duration
from postroad.core.errors import UsageError

from .cell import Cell
from .commands import command
from .domain import Role
from .layout import format_fields, format_milliseconds, format_table
from .message import CellMessage

_HEADINGS = ("CORE", "ZONE", "TUNNEL", "ROUND TRIP", "DIALED BY", "ENDPOINTS", "STATE")


class LocationManager(Cell):
    """Where the cores are."""

    is_system = True

    def __init__(self, name: str = "lm") -> None:
        super().__init__(name)

    def handle(self, message: CellMessage) -> Any:
        """It takes commands only."""
        raise UsageError(f"{self.name} takes commands only; try 'help'")

    @command("ls", help="The cores that are known, and the tunnels to them.", is_read=True)
    def show_cores(self) -> str:
        """A line for each core, and why it could not be reached."""
        links = self.domain.links.by_domain
        untold = {name for name, link in links.items() if link.domain.role is Role.CORE}
        known = sorted(untold | self.domain.dialer.cores.keys())
        return format_table(_HEADINGS, map(self._row, known)) if known else "no cores are known"

    def _row(self, name: str) -> tuple[object, ...]:
        domain = self.domain
        location = domain.dialer.cores.get(name)
        link = domain.links.by_domain.get(name)
        zone = location.zone if location is not None else None
        if zone is None and link is not None:
            zone = link.domain.zone
        return (
            name,
            zone,
            "no" if link is None else "yes",
            format_milliseconds(None if link is None else link.tunnel.round_trip_s),
            "us" if domain.dialer.should_dial(name) else "it",
            location,
            self._state_of(name),
        )

    def _state_of(self, name: str) -> str:
        """What is wrong, if anything."""
        dialer = self.domain.dialer
        failure = dialer.failures.get(name)
        troubles = []
        if name not in dialer.cores:
            troubles.append("nobody told of it")
        elif (missing_s := dialer.unlisted_s(name)) is not None:
            troubles.append(f"nobody has told of it for {format_duration(missing_s)}")
        if failure is not None:
            troubles.append(failure)
        return "; ".join(troubles) or "ok"

    @command("info", help="Where this domain hears of cores, and how that goes.", is_read=True)
    def info(self) -> str:
        """The statistics of the locations."""
        locations = self.domain.core_discovery
        counts = msgspec.structs.asdict(locations.statistics())
        told = ((name.removeprefix("is_").replace("_", " "), it) for name, it in counts.items())
        return format_fields(
            [("source", type(locations).__name__), *((k, _said(v)) for k, v in told)]
        )


def _said(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value == "" else value
