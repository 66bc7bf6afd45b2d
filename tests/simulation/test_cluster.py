"""Scenario `cluster`: it passes with many seeds, and finds bugs that are planted."""

import msgspec
import pytest

from postroad.cluster import ChangeKind
from postroad.cluster.membership import Membership, Record, State
from postroad.cluster.membership.hearing import Hearing
from postroad.cluster.membership.naming import Naming
from postroad.cluster.membership.probing import Probe, Prober
from postroad.cluster.membership.roster import Entry, Roster
from postroad.cluster.membership.suspicion import Suspicion
from postroad.testing import CRASH, CorrectnessFailure, LivenessFailure
from tests.simulation.planting import Plant, check_found, check_passed, runner_of

SEEDS = 100
# A planted bug must show within so many.
PLANTED_SEEDS = 100

run = runner_of("cluster")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_seed(seed: int) -> None:
    check_passed(run(seed))


# The simulation finds what it is there for.


def plant_no_refutation(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(self: Hearing, record: Record) -> None:
        """Say nothing to what others say of this node."""

    monkeypatch.setattr(Hearing, "_hear_of_self", accept)


def plant_forgotten_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    bury = Roster.bury_silent

    def bury_and_forget(self: Roster, now: float) -> None:
        bury(self, now)
        for entry in self.tombstones.values():
            del self.entries[entry.record.name]

    monkeypatch.setattr(Roster, "bury_silent", bury_and_forget)


def plant_older_word_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def reversed_rank(self: Record) -> tuple[int, int]:
        return (-self.incarnation, self.state)

    monkeypatch.setattr(Record, "rank", property(reversed_rank))


def plant_properties_that_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Entry.take_properties

    def merge(self: Entry, record: Record) -> bool:
        if record.properties is not None and self.record.properties is not None:
            merged = {**self.record.properties, **record.properties}
            record = msgspec.structs.replace(record, properties=merged)
        return take(self, record)

    monkeypatch.setattr(Entry, "take_properties", merge)


def plant_belief_in_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(self: Naming, challenger: Record, now: float) -> None:
        self._roster.replace(challenger, now)

    monkeypatch.setattr(Naming, "contest", believe)


def plant_endless_suspicion(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_on(self: Roster, now: float) -> None:
        """Give everybody all the time in the world."""

    monkeypatch.setattr(Roster, "bury_silent", wait_on)
    monkeypatch.setattr(Roster, "deadline", lambda self: float("inf"))


def plant_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Probe.__init__

    def begin_late(
        self: Probe, entry: Entry, started: float, direct_s: float, timeout_s: float
    ) -> None:
        begin(self, entry, started, direct_s / 1_000, timeout_s / 1_000)

    monkeypatch.setattr(Probe, "__init__", begin_late)
    monkeypatch.setattr(Suspicion, "_timeout_s", lambda self: 0.0)


def plant_no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_nobody(self: Prober, entry: Entry, now: float) -> None:
        """Take everybody to be alive."""

    monkeypatch.setattr(Prober, "probe", ask_nobody)


def plant_careless_join(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(self: Naming, rival: Record, now: float) -> None:
        """Do not ask whether the other lives."""

    monkeypatch.setattr(Naming, "look_into", ignore)


def plant_untold_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Roster._report

    def keep_quiet(self: Roster, kind: ChangeKind, record: Record, before: Record | None) -> None:
        if not (kind is ChangeKind.REMOVED and record.state is State.DEAD):
            report(self, kind, record, before)

    monkeypatch.setattr(Roster, "_report", keep_quiet)


def plant_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = Membership.tick

    def fragile(self: Membership, now: float) -> None:
        if self.health > 2:
            raise IndexError("not well")
        tick(self, now)

    monkeypatch.setattr(Membership, "tick", fragile)


@pytest.mark.parametrize(
    ("plant", "exit_code"),
    [
        (plant_no_refutation, LivenessFailure.exit_code),
        (plant_forgotten_tombstones, CorrectnessFailure.exit_code),
        (plant_older_word_wins, LivenessFailure.exit_code),
        (plant_properties_that_come_back, CorrectnessFailure.exit_code),
        (plant_belief_in_newcomers, CorrectnessFailure.exit_code),
        (plant_endless_suspicion, LivenessFailure.exit_code),
        (plant_haste, CorrectnessFailure.exit_code),
        (plant_no_probes, LivenessFailure.exit_code),
        (plant_careless_join, LivenessFailure.exit_code),
        (plant_untold_removal, CorrectnessFailure.exit_code),
        (plant_exception, CRASH),
    ],
)
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, exit_code: int
) -> None:
    plant(monkeypatch)
    check_found(run, range(PLANTED_SEEDS), exit_code)
