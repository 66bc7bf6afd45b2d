"""Scenario `brokers`: it passes with many seeds, and finds bugs that are planted."""

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any

import pytest

from postroad.services import running, serving
from postroad.services.context import Context
from postroad.services.engine import Engine
from postroad.services.event_acks import EventAcks
from postroad.services.eventing import Eventing
from postroad.services.events import EventCatalog, EventPlan
from postroad.services.hosting import Hosting
from postroad.services.incoming_streams import IncomingStreams
from postroad.services.inflow import Inflow, StreamKey
from postroad.services.nodes import Change
from postroad.services.packets import Event, Request
from postroad.services.presence import AnnouncedPresence
from postroad.services.registry import Registry
from postroad.services.remote_calls import RemoteCalls
from postroad.services.serving import Serving
from postroad.services.streams import Chunk, Part
from postroad.services.waiting import Waiting
from postroad.testing import CRASH, CorrectnessFailure, LivenessFailure
from tests.simulation.planting import Plant, check_found, check_passed, runner_of

SEEDS = 100
# A planted bug must show within so many.
PLANTED_SEEDS = 30

run = runner_of("brokers")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_seed(seed: int) -> None:
    check_passed(run(seed))


def test_same_seed_gives_the_same_run() -> None:
    first, second = run(7), run(7)
    assert first.log == second.log
    assert first.log


# The simulation finds what it is there for.


def plant_calls_that_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: RemoteCalls, deadline: float) -> None:
        """Set no timer."""

    monkeypatch.setattr(RemoteCalls, "_set_timer", forget)


def plant_actions_that_take_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(ctx: Context, result: Awaitable[Any]) -> Any:
        return await result

    monkeypatch.setattr(running, "within_time", wait)
    monkeypatch.setattr(serving, "within_time", wait)


def plant_results_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    respond = Serving._respond
    results: list[Any] = []

    def respond_late(self: Serving, request: Request, ctx: Context, result: Any) -> None:
        results.append(result)
        respond(self, request, ctx, results[-2:][0])

    monkeypatch.setattr(Serving, "_respond", respond_late)


def plant_requests_that_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Serving.receive

    def receive_twice(self: Serving, request: Request, done: Any) -> None:
        receive(self, request, done)
        if not request.seq:
            receive(self, request, None)

    monkeypatch.setattr(Serving, "receive", receive_twice)


def plant_untyped_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Waiting, kind: type[Exception]) -> None:
        if not self.future.done():
            self.future.set_exception(KeyError(self.context.action))

    monkeypatch.setattr(Waiting, "fail", fail)


def plant_a_stop_that_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hurry(self: object, timeout_s: float) -> int:
        await asyncio.sleep(0)
        return 0

    monkeypatch.setattr(Hosting, "idle", hurry)
    monkeypatch.setattr(Engine, "finish", hurry)


def plant_services_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: Engine, full_name: str) -> None:
        """Go on with it."""

    monkeypatch.setattr(Engine, "withhold", keep)


def plant_acks_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = EventAcks._answer_for

    def answer_early(self: EventAcks, packet: Event, ctx: Context, group: str) -> Any:
        self._tell(packet, group, None)
        return answer(self, packet, ctx, group)

    monkeypatch.setattr(EventAcks, "_answer_for", answer_early)


def plant_events_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan_all(
        self: EventCatalog, name: str, groups: Collection[str] = (), *args: Any
    ) -> EventPlan:
        return self.plan_broadcast(name, groups)

    monkeypatch.setattr(EventCatalog, "plan_emit", plan_all)


def plant_chunks_that_get_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Inflow._take

    def take_some(self: Inflow, part: Part) -> None:
        if not (isinstance(part, Chunk) and self._due == 2):
            take(self, part)
        else:
            self._due += 1

    monkeypatch.setattr(Inflow, "_take", take_some)


def plant_streams_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: IncomingStreams, key: StreamKey) -> None:
        """Remember it for ever."""

    monkeypatch.setattr(IncomingStreams, "forget", keep)


def plant_nodes_that_nobody_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    def trust(self: Registry, now: float) -> list[Change]:
        for node in self.nodes():
            node.last_seen = now
        return []

    def ignore(self: Registry, *args: Any, **options: Any) -> list[Change]:
        return []

    monkeypatch.setattr(Registry, "tick", trust)
    monkeypatch.setattr(Registry, "lose_node", ignore)


def plant_news_that_nobody_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(self: object, *args: Any) -> None:
        """What was missed stays unknown."""

    monkeypatch.setattr(Engine, "_ask", ignore)
    monkeypatch.setattr(AnnouncedPresence, "reconnected", ignore)


def plant_heartbeats_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = AnnouncedPresence.leave

    async def leave_and_beat(self: AnnouncedPresence, *, says_goodbye: bool = True) -> None:
        await leave(self, says_goodbye=says_goodbye)
        self._schedule_beat()

    monkeypatch.setattr(AnnouncedPresence, "leave", leave_and_beat)


def plant_packets_that_are_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Eventing.receive

    def receive_few(self: Eventing, packet: Event, done: Any) -> None:
        if len(self) > 3:
            raise IndexError("so many events")
        receive(self, packet, done)

    monkeypatch.setattr(Eventing, "receive", receive_few)


def plant_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    expire = RemoteCalls._expire

    def expire_one(self: RemoteCalls) -> None:
        if len(self) > 1:
            raise IndexError("so many calls")
        expire(self)

    monkeypatch.setattr(RemoteCalls, "_expire", expire_one)


@pytest.mark.parametrize(
    ("plant", "exit_code"),
    [
        (plant_calls_that_wait_for_ever, CorrectnessFailure.exit_code),
        (plant_actions_that_take_any_time, CorrectnessFailure.exit_code),
        (plant_results_of_others, CorrectnessFailure.exit_code),
        (plant_requests_that_run_twice, CorrectnessFailure.exit_code),
        (plant_untyped_errors, CRASH),
        (plant_a_stop_that_waits_for_nobody, CorrectnessFailure.exit_code),
        (plant_services_that_stay, CorrectnessFailure.exit_code),
        (plant_acks_before_the_work, CorrectnessFailure.exit_code),
        (plant_events_for_everybody, CorrectnessFailure.exit_code),
        (plant_chunks_that_get_lost, CorrectnessFailure.exit_code),
        (plant_streams_that_are_kept, CorrectnessFailure.exit_code),
        (plant_nodes_that_nobody_misses, LivenessFailure.exit_code),
        (plant_news_that_nobody_asks_for, LivenessFailure.exit_code),
        (plant_heartbeats_after_the_end, CorrectnessFailure.exit_code),
        (plant_packets_that_are_too_much, CorrectnessFailure.exit_code),
        (plant_exception, CRASH),
    ],
)
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, exit_code: int
) -> None:
    plant(monkeypatch)
    check_found(run, range(PLANTED_SEEDS), exit_code)
