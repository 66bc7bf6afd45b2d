"""Scenario `cells`: it passes with many seeds, and finds bugs that are planted."""

from collections.abc import Collection
from typing import Any

import pytest

from postroad.cells import Role, RouteTable
from postroad.cells.addresses import DomainInfo
from postroad.cells.delivery import propagator as propagator_module
from postroad.cells.delivery.cell_registry import CellRegistry, ForwardedMessage
from postroad.cells.delivery.cell_runner import CellRunner
from postroad.cells.delivery.core_dialer import CoreDialer
from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.fair_queue import FairQueue
from postroad.cells.delivery.requests import CellCallTracker
from postroad.cells.routing.advertisements import RouteAdvertisement
from postroad.cells.routing.advertiser import RouteAdvertiser, build_advertisement
from postroad.cells.routing.decision import MessageOrigin
from postroad.cells.routing.neighbors import NeighborTable
from postroad.cells.routing.route_learner import RouteChanges, RouteLearner
from postroad.testing import CRASH_EXIT_CODE
from tests.simulation.planting import CORRECTNESS, LIVENESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("cells", seeds)


@BUGS.replace(RouteLearner, "drain_changes", LIVENESS, 0)
def plant_routes_that_stay(drain: Any, self: RouteLearner, *args: Any) -> RouteChanges:
    return RouteChanges(drain(self, *args).added)


@BUGS.plant(LIVENESS, 0)
def plant_consumers_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the system this follows: a stopped consumer of a living domain is not withdrawn."""
    ever: dict[str, set[str]] = {}

    def advertise_all(
        table: RouteTable, domain: DomainInfo, *, without: Collection[str] = ()
    ) -> RouteAdvertisement:
        advertisement = build_advertisement(table, domain, without=without)
        queues = ever.setdefault(domain.name, set())
        queues.update(advertisement.queues)
        return RouteAdvertisement.of(
            queues, advertisement.topics, advertisement.zone, advertisement.domains
        )

    monkeypatch.setattr(propagator_module, "build_advertisement", advertise_all)


@BUGS.replace(RouteAdvertiser, "advertise", LIVENESS, 1)
def plant_untold_changes(
    _: Any, self: RouteAdvertiser, advertisement: RouteAdvertisement, now: float
) -> None:
    """Offer for ever what was offered at the start, which is nothing."""


@BUGS.plant(LIVENESS, 0)
def plant_one_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_on(self: RouteLearner, now: float) -> None:
        """Let no further core become a default."""

    monkeypatch.setattr(RouteLearner, "tick", wait_on)
    monkeypatch.setattr(RouteLearner, "deadline", lambda self: float("inf"))


@BUGS.plant(LIVENESS, 5)
def plant_no_detours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RouteLearner, "_indirect_domains", lambda self, peer: iter(()))


@BUGS.replace(CoreDialer, "_dial_until_expired", LIVENESS, 1)
async def plant_dialing_once(_: Any, self: CoreDialer, name: str) -> None:
    await self._dial(name)


@BUGS.replace(MessageOrigin, "from_peer", CORRECTNESS, 0)
def plant_cores_that_pass_on(_: Any, peer: str, role: Role) -> MessageOrigin:
    """What comes from a core is offered to everybody again."""
    return MessageOrigin(peer=peer)


@BUGS.replace(MessageDispatcher, "reroute", CORRECTNESS, 11)
def plant_copies_for_all_again(
    _: Any,
    self: MessageDispatcher,
    forwarded: ForwardedMessage,
    selected_targets: list[str] | None = None,
) -> Any:
    """A copy that finds its tunnel gone has all others made once more."""
    avoid = forwarded.avoid | {forwarded.forward.selected_target or ""}
    return self.dispatch(
        forwarded.envelope, forwarded.origin, avoid, selected_targets=selected_targets
    )


@BUGS.replace(CellCallTracker, "_resend", CORRECTNESS, 16)
def plant_one_core_alone_is_asked(
    _: Any, self: CellCallTracker, id: bytes, failure: object
) -> bool:
    return self._resends.pop(id) is not None


@BUGS.replace(CellCallTracker, "_expire", CORRECTNESS, 0)
def plant_endless_calls(_: Any, self: CellCallTracker, *args: object) -> None:
    """Give everybody all the time in the world."""


@BUGS.replace(CellCallTracker, "_add_pending", CORRECTNESS, 0)
def plant_calls_that_are_kept(
    add_pending: Any, self: CellCallTracker, id: bytes, deadline: float
) -> Any:
    add_pending(self, id + b" for ever", deadline)
    return add_pending(self, id, deadline)


@BUGS.plant(CORRECTNESS, 0)
def plant_belief_in_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NeighborTable, "find_source_fault", lambda self, *args, **options: None)


@BUGS.plant(CORRECTNESS, 5)
def plant_late_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CellRunner, "_is_expired", lambda self, *args: False)


@BUGS.replace(CellRunner, "deliver", CORRECTNESS, 1)
def plant_work_done_twice(deliver: Any, self: CellRunner, *args: Any, **options: Any) -> Any:
    return deliver(self, *args, **options) and deliver(self, *args, **options)


@BUGS.replace(FairQueue, "try_put", CORRECTNESS, 12)
def plant_refused_and_queued(
    try_put: Any, self: FairQueue[Any], item: Any, size: int, source: str, **options: Any
) -> bool:
    """As in the system this follows: a busy cell refuses a message and keeps it all the same."""
    if try_put(self, item, size, source, **options):
        return True
    self.items.append((item, size, (source,)))
    items, used_bytes = self._usage.get(source, (0, 0))
    self._usage[source] = (items + 1, used_bytes + size)
    self.bytes += size
    return False


@BUGS.replace(FairQueue, "pop", CORRECTNESS, 1)
def plant_last_in_first_out(pop: Any, self: FairQueue[Any]) -> Any:
    self.items.rotate(1)
    return pop(self)


@BUGS.replace(CoreDialer, "close", CORRECTNESS, 0)
async def plant_dialing_after_the_end(_: Any, self: CoreDialer) -> None:
    """Let all tasks go on."""


@BUGS.replace(CellRegistry, "change_routes", CRASH_EXIT_CODE, 1)
def plant_exception(change: Any, self: CellRegistry, **changes: Any) -> None:
    if len(self.table) > 15:
        raise IndexError("so many routes")
    change(self, **changes)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("cells", monkeypatch)
