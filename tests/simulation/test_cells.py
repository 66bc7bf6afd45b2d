"""Scenario `cells`: it passes with many seeds, and finds bugs that are planted."""

from collections.abc import Collection
from typing import Any

import pytest

from postroad.cells import Announcer, Learner, Offer, Origin, Role, RouteTable, offer_of
from postroad.cells import spreading as spreading_module
from postroad.cells.calls import Calls
from postroad.cells.dialing import Dialer
from postroad.cells.directory import Parcel
from postroad.cells.domain import Domain
from postroad.cells.exchange import Exchange
from postroad.cells.fair_queue import FairQueue
from postroad.cells.learning import RouteChanges
from postroad.cells.runner import CellRunner
from postroad.testing import CRASH, CorrectnessFailure, LivenessFailure
from tests.simulation.planting import Plant, check_found, check_passed, runner_of

SEEDS = 100
# A planted bug must show within so many.
PLANTED_SEEDS = 40

run = runner_of("cells")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_seed(seed: int) -> None:
    check_passed(run(seed))


# The simulation finds what it is there for.


def plant_routes_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Learner.take_changes

    def add_only(self: Learner) -> RouteChanges:
        return RouteChanges(take(self).added)

    monkeypatch.setattr(Learner, "take_changes", add_only)


def plant_consumers_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the system this follows: a stopped consumer of a living domain is not withdrawn."""
    ever: dict[str, set[str]] = {}

    def offer_all(table: RouteTable, domain: Domain, *, without: Collection[str] = ()) -> Offer:
        offer = offer_of(table, domain, without=without)
        queues = ever.setdefault(domain.name, set())
        queues.update(offer.queues)
        return Offer.of(queues, offer.topics, offer.zone, offer.domains)

    monkeypatch.setattr(spreading_module, "offer_of", offer_all)


def plant_untold_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_quiet(self: Announcer, offer: Offer, now: float) -> None:
        """Offer for ever what was offered at the start, which is nothing."""

    monkeypatch.setattr(Announcer, "offer", keep_quiet)


def plant_one_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_on(self: Learner, now: float) -> None:
        """Let no further core become a default."""

    monkeypatch.setattr(Learner, "tick", wait_on)
    monkeypatch.setattr(Learner, "deadline", lambda self: float("inf"))


def plant_no_detours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "_detours", lambda self, peer: iter(()))


def plant_dialing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dial_once(self: Dialer, name: str) -> None:
        await self._dial(name)

    monkeypatch.setattr(Dialer, "_keep_dialing", dial_once)


def plant_cores_that_pass_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from a core is offered to everybody again."""

    def from_anybody(peer: str, role: Role) -> Origin:
        return Origin(peer=peer)

    monkeypatch.setattr(Origin, "from_peer", from_anybody)


def plant_copies_for_all_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that finds its tunnel gone has all others made once more."""

    def send_all(self: Exchange, parcel: Parcel, choices: list[str] | None = None) -> Any:
        avoid = parcel.avoid | {parcel.forward.choice or ""}
        return self.dispatch(parcel.envelope, parcel.origin, avoid, choices=choices)

    monkeypatch.setattr(Exchange, "try_another_way", send_all)


def plant_one_core_alone_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(self: Calls, id: bytes, failure: object) -> bool:
        return self._resends.take(id) is not None

    monkeypatch.setattr(Calls, "_send_again", give_up)


def plant_endless_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_on(self: Calls, *args: object) -> None:
        """Give everybody all the time in the world."""

    monkeypatch.setattr(Calls, "_expire", wait_on)


def plant_calls_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    expect = Calls._expect

    def keep(self: Calls, id: bytes, deadline: float) -> Any:
        expect(self, id + b" for ever", deadline)
        return expect(self, id, deadline)

    monkeypatch.setattr(Calls, "_expect", keep)


def plant_late_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CellRunner, "_is_too_late", lambda self, *args: False)


def plant_work_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = CellRunner.deliver

    def deliver_twice(self: CellRunner, *args: Any) -> bool:
        return deliver(self, *args) and deliver(self, *args)

    monkeypatch.setattr(CellRunner, "deliver", deliver_twice)


def plant_refused_and_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the system this follows: a busy cell refuses a message and keeps it all the same."""
    offer = FairQueue.offer

    def offer_anyway(
        self: FairQueue[Any], item: Any, size: int, source: str, *, is_owed: bool = False
    ) -> bool:
        if offer(self, item, size, source, is_owed=is_owed):
            return True
        self._items.append((item, size, source))
        items, held_bytes = self._held.get(source, (0, 0))
        self._held[source] = (items + 1, held_bytes + size)
        self._bytes += size
        return False

    monkeypatch.setattr(FairQueue, "offer", offer_anyway)


def plant_last_in_first_out(monkeypatch: pytest.MonkeyPatch) -> None:
    take = FairQueue.take

    def take_newest(self: FairQueue[Any]) -> Any:
        self._items.rotate(1)
        return take(self)

    monkeypatch.setattr(FairQueue, "take", take_newest)


def plant_dialing_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave_them(self: Dialer) -> None:
        """Let all tasks go on."""

    monkeypatch.setattr(Dialer, "close", leave_them)


def plant_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Exchange.change_routes

    def fragile(self: Exchange, **changes: Any) -> None:
        if len(self.table) > 15:
            raise IndexError("so many routes")
        change(self, **changes)

    monkeypatch.setattr(Exchange, "change_routes", fragile)


@pytest.mark.parametrize(
    ("plant", "exit_code"),
    [
        (plant_routes_that_stay, LivenessFailure.exit_code),
        (plant_consumers_that_stay, LivenessFailure.exit_code),
        (plant_untold_changes, LivenessFailure.exit_code),
        (plant_one_default, LivenessFailure.exit_code),
        (plant_no_detours, LivenessFailure.exit_code),
        (plant_dialing_once, LivenessFailure.exit_code),
        (plant_cores_that_pass_on, CorrectnessFailure.exit_code),
        (plant_copies_for_all_again, CorrectnessFailure.exit_code),
        (plant_one_core_alone_is_asked, CorrectnessFailure.exit_code),
        (plant_endless_calls, CorrectnessFailure.exit_code),
        (plant_calls_that_are_kept, CorrectnessFailure.exit_code),
        (plant_late_work, CorrectnessFailure.exit_code),
        (plant_work_done_twice, CorrectnessFailure.exit_code),
        (plant_refused_and_queued, CorrectnessFailure.exit_code),
        (plant_last_in_first_out, CorrectnessFailure.exit_code),
        (plant_dialing_after_the_end, CorrectnessFailure.exit_code),
        (plant_exception, CRASH),
    ],
)
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, exit_code: int
) -> None:
    plant(monkeypatch)
    check_found(run, range(PLANTED_SEEDS), exit_code)
