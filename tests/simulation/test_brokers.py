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
from postroad.testing import CRASH_EXIT_CODE
from tests.simulation.planting import CORRECTNESS, LIVENESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("brokers", seeds)


@BUGS.replace(RemoteCalls, "_set_timer", CORRECTNESS, 4)
def plant_calls_that_wait_for_ever(_: Any, self: RemoteCalls, deadline: float) -> None:
    """Set no timer."""


@BUGS.plant(CORRECTNESS, 3)
def plant_actions_that_take_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(ctx: Context, result: Awaitable[Any]) -> Any:
        return await result

    monkeypatch.setattr(running, "within_time", wait)
    monkeypatch.setattr(serving, "within_time", wait)


@BUGS.plant(CORRECTNESS, 1)
def plant_results_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    respond = Serving._respond
    results: list[Any] = []

    def respond_late(self: Serving, request: Request, ctx: Context, result: Any) -> None:
        results.append(result)
        respond(self, request, ctx, results[-2:][0])

    monkeypatch.setattr(Serving, "_respond", respond_late)


@BUGS.replace(Serving, "receive", CORRECTNESS, 0)
def plant_requests_that_run_twice(receive: Any, self: Serving, request: Request, done: Any) -> None:
    receive(self, request, done)
    if not request.seq:
        receive(self, request, None)


@BUGS.replace(Waiting, "fail", CRASH_EXIT_CODE, 2)
def plant_untyped_errors(_: Any, self: Waiting, kind: type[Exception]) -> None:
    if not self.future.done():
        self.future.set_exception(KeyError(self.context.action))


@BUGS.plant(CORRECTNESS, 2)
def plant_a_stop_that_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hurry(self: object, timeout_s: float) -> int:
        await asyncio.sleep(0)
        return 0

    monkeypatch.setattr(Hosting, "idle", hurry)
    monkeypatch.setattr(Engine, "finish", hurry)


@BUGS.replace(Engine, "withhold", CORRECTNESS, 6)
def plant_services_that_stay(_: Any, self: Engine, full_name: str) -> None:
    """Go on with it."""


@BUGS.replace(EventAcks, "_answer_for", CORRECTNESS, 1)
def plant_acks_before_the_work(
    answer: Any, self: EventAcks, packet: Event, ctx: Context, group: str
) -> Any:
    self._tell(packet, group, None)
    return answer(self, packet, ctx, group)


@BUGS.replace(EventCatalog, "plan_emit", CORRECTNESS, 3)
def plant_events_for_everybody(
    _: Any, self: EventCatalog, name: str, groups: Collection[str] = (), *args: Any
) -> EventPlan:
    return self.plan_broadcast(name, groups)


@BUGS.replace(Inflow, "_take", CORRECTNESS, 1)
def plant_chunks_that_get_lost(take: Any, self: Inflow, part: Part) -> None:
    if not (isinstance(part, Chunk) and self._due == 2):
        take(self, part)
    else:
        self._due += 1


@BUGS.replace(IncomingStreams, "forget", CORRECTNESS, 1)
def plant_streams_that_are_kept(_: Any, self: IncomingStreams, key: StreamKey) -> None:
    """Remember it for ever."""


@BUGS.plant(LIVENESS, 5)
def plant_nodes_that_nobody_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    def trust(self: Registry, now: float) -> list[Change]:
        for node in self.nodes():
            node.last_seen, node.doubt = now, None
        return []

    def ignore(self: Registry, *args: Any, **options: Any) -> list[Change]:
        return []

    monkeypatch.setattr(Registry, "tick", trust)
    monkeypatch.setattr(Registry, "lose_node", ignore)


@BUGS.plant(LIVENESS, 7)
def plant_news_that_nobody_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(self: object, *args: Any) -> None:
        """What was missed stays unknown."""

    monkeypatch.setattr(AnnouncedPresence, "ask", ignore)
    monkeypatch.setattr(AnnouncedPresence, "reconnected", ignore)


@BUGS.replace(AnnouncedPresence, "leave", CORRECTNESS, 0)
async def plant_heartbeats_after_the_end(
    leave: Any, self: AnnouncedPresence, *, says_goodbye: bool = True
) -> None:
    await leave(self, says_goodbye=says_goodbye)
    self._schedule_beat()


@BUGS.replace(Eventing, "receive", CORRECTNESS, 1)
def plant_packets_that_are_too_much(receive: Any, self: Eventing, packet: Event, done: Any) -> None:
    if len(self) > 3:
        raise IndexError("so many events")
    receive(self, packet, done)


@BUGS.replace(RemoteCalls, "_expire", CRASH_EXIT_CODE, 0)
def plant_exception(expire: Any, self: RemoteCalls) -> None:
    if len(self) > 1:
        raise IndexError("so many calls")
    expire(self)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("brokers", monkeypatch)
