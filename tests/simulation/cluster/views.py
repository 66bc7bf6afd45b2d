"""Checks what each process is told, beside the cluster: no change may contradict another.

Here it is decided what a node may believe. It may be late, but it may not be told nonsense: every
change must follow from the one before, every record must have been true of some process once, and
nobody may be given up who was there all the time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import TypeVar

from postroad.cluster import (
    Member,
    MembershipConfig,
    MembershipEvent,
    MembershipEventType,
    MemberState,
)
from postroad.core.errors import NameConflictError
from postroad.core.timing import NEVER
from postroad.testing import SimCluster, require
from tests.simulation.cluster.process import Process

K = TypeVar("K")


class Quiet:
    """Remembers since when each host is awake, and each way between two hosts is open.

    `look` must be called whenever a fault begins or ends.
    """

    def __init__(self, sim: SimCluster) -> None:
        self._sim = sim
        # Absent while a host sleeps or a way is closed.
        self._awake_since: dict[str, float] = {}
        self._open_since: dict[tuple[str, str], float] = {}
        # Hosts that are so slow that nobody can rely on them.
        self.slow: set[str] = set()

    def look(self) -> None:
        now, nodes = self._sim.now, self._sim.nodes
        for name, node in nodes.items():
            is_awake = node.is_running and not node.is_paused and name not in self.slow
            _keep(self._awake_since, name, now, holds=is_awake)
        for pair in permutations(nodes, 2):
            _keep(self._open_since, pair, now, holds=self._sim.network.links.is_reachable(*pair))

    def between(self, first: Process, second: Process) -> float:
        """Seconds for which both could talk to each other; 0 if they cannot now."""
        a, b = first.node.name, second.node.name
        since = max(
            first.started,
            second.started,
            self._awake_since.get(a, NEVER),
            self._awake_since.get(b, NEVER),
            self._open_since.get((a, b), NEVER) if a != b else 0.0,
            self._open_since.get((b, a), NEVER) if a != b else 0.0,
        )
        return max(0.0, self._sim.now - since)

    def around(self, process: Process, others: Iterable[Process]) -> float:
        """Seconds for which it could talk to all others that were awake; 0 if it cannot now."""
        name = process.node.name
        since = [process.started, self._awake_since.get(name, NEVER)]
        for other in others:
            if other is not process:
                pair = (name, other.node.name)
                since += [self._open_since.get(link, NEVER) for link in (pair, pair[::-1])]
        return max(0.0, self._sim.now - max(since))


def _keep(since: dict[K, float], key: K, now: float, *, holds: bool) -> None:
    if not holds:
        since.pop(key, None)
    elif key not in since:
        since[key] = now


CONFIG = MembershipConfig()
# Who was suspected for a reason had its whole time to speak up since that reason is gone, and some
# more, because whoever was cut off tells its suspicions late.
WELL_S = CONFIG.failure_timeout_s + CONFIG.probe_timeout_s
# Whoever is asked for its name in vain has not answered for so long.
ANSWER_S = CONFIG.probe_timeout_s * (CONFIG.local_health_max + 1)
# Probes under way: one each interval, and each takes no longer than the most patient waits.
PROBES_MAX = 64


class Views:
    """What every process was told so far, and what is wrong with it."""

    def __init__(self, sim: SimCluster, quiet: Quiet) -> None:
        self._sim = sim
        self._quiet = quiet
        # All there were, oldest first.
        self.processes: list[Process] = []
        # Others as each process was told of them.
        self._reported: dict[Process, dict[str, Member]] = {}
        # What each process has removed, by instance.
        self._removed: dict[Process, dict[int, Member]] = {}
        self.changes = 0

    def add(self, process: Process) -> None:
        self.processes.append(process)
        self._reported[process] = {}
        self._removed[process] = {}

    # What processes tell.

    def on_change(self, process: Process, change: MembershipEvent) -> None:
        self.changes += 1
        self._sim.log.add(process.node.name, "sees", str(change))
        member, reported = change.member, self._reported[process]
        if member.name == process.name:
            self._check_own(process, change)
            return
        self._check_order(process, change, reported.get(member.name))
        self._check_truth(process, member)
        if change.kind is MembershipEventType.REMOVED:
            self._check_removal(process, member)
            if not self._is_replaced(process, member):
                self._removed[process][member.instance] = member
            del reported[member.name]
        else:
            reported[member.name] = member

    def on_joined(self, process: Process) -> None:
        self._sim.log.add(process.node.name, "joined", process.name)
        for holder in self._duplicates(process):
            require(
                not (holder.is_member and self._can_know(process, holder)),
                f"{process} joined although {holder} has its name and could be reached",
            )

    def on_name_lost(self, process: Process, error: NameConflictError) -> None:
        self._sim.log.add(process.node.name, "yields", str(error))
        longest_ago = self._sim.now - ANSWER_S
        require(
            any(
                duplicate.ended is None or duplicate.ended > longest_ago
                for duplicate in self._duplicates(process)
            ),
            f"{process} gave up its name, and nobody else has it",
        )

    def _duplicates(self, process: Process) -> list[Process]:
        return [
            other for other in self.processes if other.name == process.name and other is not process
        ]

    def _can_know(self, process: Process, holder: Process) -> bool:
        """Whether since its start it could reach the holder of its name, and seeds that know it."""
        waited_s = self._sim.now - process.started
        seeds = [process for process in self.processes if process.is_seed and process.is_member]
        return bool(seeds) and all(
            self._quiet.between(process, other) >= waited_s
            and (other is holder or self._quiet.between(holder, other) >= WELL_S)
            for other in (holder, *seeds)
        )

    # What a change must be like.

    def _check_own(self, process: Process, change: MembershipEvent) -> None:
        require(
            change.kind is MembershipEventType.METADATA, f"{process} is told of itself: {change}"
        )
        process.remember_properties(change.member)

    def _check_order(
        self, process: Process, change: MembershipEvent, previous: Member | None
    ) -> None:
        is_added = change.kind is MembershipEventType.ADDED
        about = f"{process} is told: {change}"
        require(is_added == (previous is None), f"{about}, and before: {previous}")
        require(is_added == (change.previous is None), f"{about}, previous {change.previous}")
        is_active = change.member.state.is_active
        require(is_active == (change.kind is not MembershipEventType.REMOVED), about)
        if previous is None or change.previous is None:
            self._check_return(process, change.member)
            return
        require(_facts(previous) == _facts(change.previous), f"{about}, was {previous}: {change}")
        before, after = change.previous, change.member
        require(before.instance == after.instance, f"{about}, another process than before")
        if change.kind is MembershipEventType.REACHABILITY:
            require(before.state is not after.state, f"{about}, which is nothing new")
        if change.kind is MembershipEventType.METADATA:
            require(before.state is after.state, f"{about}, and its state changed too")

    def _check_return(self, process: Process, member: Member) -> None:
        """Whoever was removed comes back only by a newer word of its own."""
        removed = self._removed[process].get(member.instance)
        if removed is not None:
            require(
                removed.state is not MemberState.LEFT and member.incarnation > removed.incarnation,
                f"{process} brings back {member}, removed at incarnation {removed.incarnation}",
            )

    def _check_truth(self, process: Process, member: Member) -> None:
        """Nobody but the member itself decides about its record."""
        source = self.find(member)
        require(source is not None, f"{process} is told of {member}, which never was")
        if source is None or source.own is None:
            return
        require(
            member.address == source.own.address and member.incarnation <= source.own.incarnation,
            f"{process} is told of {member}, which {source} has never said",
        )
        self._check_properties(process, member, source)

    def _check_properties(self, process: Process, member: Member, source: Process) -> None:
        sent = source.history.get(member.version)
        is_awaited = not member.properties
        require(
            sent is not None and (is_awaited or sent == member.properties),
            f"{process} is told of properties of {member}, version {member.version}, "
            f"that it never had: {sorted(member.properties)}",
        )

    def _check_removal(self, process: Process, member: Member) -> None:
        """Nobody is given up who was there all the time, and nobody is said to have left."""
        source = self.find(member)
        if source is None or not source.is_member:
            return
        require(member.state is not MemberState.LEFT, f"{process} says that {source} left")
        if self._is_replaced(process, member):
            there_s = self._quiet.between(process, source)
            require(
                there_s < ANSWER_S,
                f"{process} replaced {member}, which was there for {there_s:.1f} s",
            )
            return
        others = [process for process in self.processes if process.is_running]
        well_s = min(self._quiet.around(source, others), self._quiet.between(process, source))
        require(
            well_s < WELL_S, f"{process} removed {member}, which all could reach for {well_s:.1f} s"
        )

    def _is_replaced(self, process: Process, member: Member) -> bool:
        """Whether another process has taken over the name of one that was removed."""
        assert process.agent is not None
        successor = process.agent.member(member.name)
        return successor is not None and successor.instance != member.instance

    def find(self, member: Member) -> Process | None:
        for process in self.processes:
            if process.own is not None and process.own.instance == member.instance:
                return process if process.name == member.name else None
        return None

    # What must always hold.

    def check(self) -> None:
        """What processes list is what they were told, and none keeps more than it needs."""
        for process in self.processes:
            if process.is_member:
                self._check_listed(process)
                self._check_memory(process)

    def _check_listed(self, process: Process) -> None:
        assert process.agent is not None
        own, *others = process.agent.members
        require(own.name == process.name, f"{process} lists {own} first")
        listed = {member.name: member for member in others}
        require(len(listed) == len(others), f"{process} lists a member twice: {others}")
        reported = self._reported[process]
        require(
            {name: _facts(member) for name, member in listed.items()}
            == {name: _facts(member) for name, member in reported.items()},
            f"{process} lists {sorted(listed)} and was told of {sorted(reported)}",
        )

    def _check_memory(self, process: Process) -> None:
        machine = process.machine
        assert machine is not None
        names = {process.name for process in self.processes}
        entries = len(machine._member_table.entries)
        require(entries < len(names), f"{process} remembers {entries} others of {len(names)}")
        gossip_queue = len(machine._context.gossip_queue)
        require(
            gossip_queue <= entries + 1, f"{process} has {gossip_queue} rumours of {entries} others"
        )
        probes = len(machine._prober._probes)
        require(probes <= PROBES_MAX, f"{process} has {probes} probes under way")


def _facts(member: Member) -> tuple[object, ...]:
    """All that a change tells of; the incarnation may rise without one."""
    return (
        member.name,
        member.address,
        member.state,
        member.instance,
        dict(member.properties),
        member.version,
    )
