"""Scenario `cluster`: it passes with many seeds, and finds bugs that are planted."""

from typing import Any

import msgspec
import pytest

from postroad.cluster import MembershipEventType
from postroad.cluster.membership import MemberRecord, Membership, MemberState
from postroad.cluster.membership.config import Suspicion
from postroad.cluster.membership.gossip_handler import GossipHandler
from postroad.cluster.membership.member_table import MemberEntry, MemberTable
from postroad.cluster.membership.name_conflicts import NameConflictResolver
from postroad.cluster.membership.prober import Probe, Prober
from postroad.testing import CRASH_EXIT_CODE
from tests.simulation.planting import CORRECTNESS, LIVENESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("cluster", seeds)


@BUGS.replace(GossipHandler, "_refute", LIVENESS, 1)
def plant_no_refutation(_: Any, self: GossipHandler, record: MemberRecord) -> None:
    """Say nothing to what others say of this node."""


@BUGS.replace(MemberTable, "expire_suspects", CORRECTNESS, 20)
def plant_forgotten_tombstones(expire: Any, self: MemberTable, now: float) -> None:
    expire(self, now)
    for entry in list(self.tombstones.values()):
        self._remove(entry)


@BUGS.plant(LIVENESS, 48)
def plant_older_word_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def reversed_rank(self: MemberRecord) -> tuple[int, int]:
        return (-self.incarnation, self.state)

    monkeypatch.setattr(MemberRecord, "precedence", property(reversed_rank))


@BUGS.replace(MemberEntry, "update_properties", CORRECTNESS, 9)
def plant_properties_that_come_back(take: Any, self: MemberEntry, record: MemberRecord) -> Any:
    if record.properties is not None and self.record.properties is not None:
        merged = {**self.record.properties, **record.properties}
        record = msgspec.structs.replace(record, properties=merged)
    return take(self, record)


@BUGS.replace(NameConflictResolver, "challenge", CORRECTNESS, 15)
def plant_belief_in_newcomers(
    _: Any, self: NameConflictResolver, challenger: MemberRecord, now: float
) -> None:
    self._member_table.admit(challenger, now)


@BUGS.plant(LIVENESS, 8)
def plant_endless_suspicion(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_on(self: MemberTable, now: float) -> None:
        """Give everybody all the time in the world."""

    monkeypatch.setattr(MemberTable, "expire_suspects", wait_on)
    monkeypatch.setattr(MemberTable, "deadline", lambda self: float("inf"))


@BUGS.plant(CORRECTNESS, 5)
def plant_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Probe.__init__

    def begin_late(
        self: Probe, entry: MemberEntry, started: float, direct_s: float, timeout_s: float
    ) -> None:
        begin(self, entry, started, direct_s / 1_000, timeout_s / 1_000)

    monkeypatch.setattr(Probe, "__init__", begin_late)
    monkeypatch.setattr(Suspicion, "_timeout_s", lambda self: 0.0)


@BUGS.replace(Prober, "probe", LIVENESS, 8)
def plant_no_probes(_: Any, self: Prober, entry: MemberEntry, now: float) -> None:
    """Take everybody to be alive."""


@BUGS.replace(NameConflictResolver, "probe_rival", LIVENESS, 1)
def plant_careless_join(
    _: Any, self: NameConflictResolver, rival: MemberRecord, now: float, *, is_vouched: bool
) -> None:
    """Do not ask whether the other lives."""


@BUGS.replace(MemberTable, "_report", CORRECTNESS, 1)
def plant_untold_removal(
    report: Any,
    self: MemberTable,
    kind: MembershipEventType,
    record: MemberRecord,
    before: MemberRecord | None,
) -> None:
    if not (kind is MembershipEventType.REMOVED and record.state is MemberState.DEAD):
        report(self, kind, record, before)


@BUGS.replace(Membership, "tick", CRASH_EXIT_CODE, 2)
def plant_exception(tick: Any, self: Membership, now: float) -> None:
    if self.health > 2:
        raise IndexError("not well")
    tick(self, now)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("cluster", monkeypatch)
