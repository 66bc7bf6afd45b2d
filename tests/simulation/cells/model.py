"""What every domain should know and reach, from who is there and what their cells do alone.

It is written after the table of what gets installed, not after the code that installs it: a core
has routes to all it has a tunnel to, a satellite to the queues of its cores, and one default route
for each; a core without a tunnel to a domain goes through every core that has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from postroad.cells import Role, RouteTable
from tests.simulation.cells.process import Process


class Row(NamedTuple):
    type: str
    destination: str
    target: str
    zone: str | None


class Model:
    """The domains that run, and which of them are kept apart for ever."""

    def __init__(self, processes: Iterable[Process], cuts: Iterable[tuple[str, str]]) -> None:
        self.processes = list(processes)
        self._cuts = {frozenset(pair) for pair in cuts}

    # Who is connected with whom.

    def is_core(self, process: Process) -> bool:
        return process.identity.role is Role.CORE

    def has_tunnel(self, one: Process, other: Process) -> bool:
        is_allowed = self.is_core(one) or self.is_core(other)
        is_cut = frozenset((one.name, other.name)) in self._cuts
        return one is not other and is_allowed and not is_cut

    def peers(self, process: Process) -> list[Process]:
        return [it for it in self.processes if self.has_tunnel(process, it)]

    def cores_of(self, process: Process) -> list[Process]:
        return [it for it in self.peers(process) if self.is_core(it)]

    def is_whole(self) -> bool:
        """Whether everybody who runs has all the tunnels it should, and there is a core."""
        names = {it.name for it in self.processes}
        return any(map(self.is_core, self.processes)) and not any(it <= names for it in self._cuts)

    # Tables.

    def table(self, process: Process) -> set[Row]:
        rows = self._own_rows(process)
        for peer in self.peers(process):
            rows |= self._rows_to(process, peer)
        return rows

    def _own_rows(self, process: Process) -> set[Row]:
        zone = process.identity.zone
        rows: set[Row] = set()
        for name, cell in process.cells.items():
            target = f"{name}@{process.name}"
            rows |= {Row("queue", f"{it}@*", target, zone) for it in cell.queues}
            rows |= {Row("topic", f"{it}@*", target, zone) for it in cell.topics}
        return rows

    def _rows_to(self, process: Process, peer: Process) -> set[Row]:
        target, zone = f"*@{peer.name}", peer.identity.zone
        rows = {Row("domain", target, f"tunnel-{peer.name}@{process.name}", None)}
        rows |= {Row("queue", f"{it}@*", target, zone) for it in queues_of(peer)}
        if self.is_core(process):
            rows |= {Row("topic", f"{it}@*", target, zone) for it in topics_of(peer)}
        else:
            rows.add(Row("default", "*@*", target, zone))
        if self.is_core(process) and self.is_core(peer):
            rows |= {
                Row("domain", f"*@{it.name}", target, None) for it in self._detours(process, peer)
            }
        return rows

    def _detours(self, process: Process, peer: Process) -> list[Process]:
        """The domains that a core reaches through another one alone."""
        far = self.peers(peer)
        return [it for it in far if it is not process and not self.has_tunnel(process, it)]

    # What follows from them for messages.

    def reaches(self, one: Process, other: Process) -> bool:
        """Whether a message with its domain written on it finds its way."""
        if one is other or self.has_tunnel(one, other):
            return True
        return any(self._passes_on(core, other) for core in [one, *self.cores_of(one)])

    def _passes_on(self, core: Process, target: Process) -> bool:
        if not self.is_core(core):
            return False
        return self.has_tunnel(core, target) or any(
            self.has_tunnel(it, target) for it in self.cores_of(core)
        )

    def has_consumer(self, sender: Process, queue: str) -> bool:
        askers = [sender] if self.is_core(sender) else self.cores_of(sender)
        known = [sender, *askers, *(it for core in askers for it in self.peers(core))]
        return any(queue in queues_of(it) for it in known)

    def subscribers(self, topic: str) -> set[str]:
        """Everybody who gets a copy, if all domains that run are connected."""
        return {
            f"{name}@{process.label}"
            for process in self.processes
            for name, cell in process.cells.items()
            if topic in cell.topics
        }


def queues_of(process: Process) -> set[str]:
    return {queue for cell in process.cells.values() for queue in cell.queues}


def topics_of(process: Process) -> set[str]:
    return {topic for cell in process.cells.values() for topic in cell.topics}


def rows_of(table: RouteTable) -> set[Row]:
    return {Row(it.type.value, it.destination, str(it.target), it.zone) for it in table}
