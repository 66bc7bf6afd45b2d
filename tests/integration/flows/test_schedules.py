"""Flows that are begun by schedules: once for each time, also when things end in between."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import ConfigError, StoreUnavailableError, UsageError
from postroad.durable.store.mutations import FunctionMutation
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows import FlowContext, FlowSession, FlowStatus, flow, responder
from postroad.flows.errors import ScheduleNotFoundError
from postroad.flows.schedules import schedule as rows
from postroad.flows.schedules import scheduler
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.durable.nodes import once, raising
from tests.support.flows.nodes import FlowNode, FlowNodes

EVERY_MINUTE = "* * * * *"


@flow
async def tick(ctx: FlowContext, text: str = "tick") -> str:
    await ctx.sleep(0.001)
    return text


@flow(concurrency=1)
async def slow(ctx: FlowContext) -> str:
    return await ctx.wait_for_signal("go", str)


@responder(tick)
async def tock(ctx: FlowContext, session: FlowSession) -> None:
    await session.close()


@flow
async def other(ctx: FlowContext) -> None:
    await ctx.sleep(0.001)


class Crash(BaseException):
    """Ends everything that comes after."""


class Clock:
    """The time that schedules see: it goes on by itself from wherever it was set."""

    def __init__(self) -> None:
        self._offset_ms = 0.0
        self.readings = 0

    def set(self, text: str) -> None:
        moment = datetime.fromisoformat(f"2026-11-16 {text}").replace(tzinfo=UTC)
        self._offset_ms = moment.timestamp() * 1000 - time.monotonic() * 1000

    def __call__(self) -> int:
        self.readings += 1
        return round(self._offset_ms + time.monotonic() * 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """It is shortly after noon, and nobody sleeps so long that a change goes unnoticed."""
    clock = Clock()
    clock.set("12:00:10")
    monkeypatch.setattr(scheduler, "now_ms", clock)
    monkeypatch.setattr(scheduler, "_RESCAN_INTERVAL_S", 0.01)
    monkeypatch.setattr(scheduler, "_STORE_RETRY_S", 0.01)
    return clock


async def times_of(node: FlowNode, name: str = "tick") -> list[str]:
    """The times that the flow of a schedule was begun for, in that order."""
    views = await node.flows.admin.list(limit=1_000)
    ids = [
        view.client_id.rpartition("T")[2] for view in reversed(views) if view.client_id is not None
    ]
    assert all(f"schedule:{name}:" in (view.client_id or "") for view in views)
    return ids


async def until_times(node: FlowNode, *times: str) -> None:
    """Wait until the flow was begun for these times, and all of it is over."""

    async def are_there() -> bool:
        views = await node.flows.admin.list()
        is_over = all(view.status is FlowStatus.COMPLETED for view in views)
        return is_over and await times_of(node) == list(times)

    await eventually(are_there, f"begun for {times}")


async def until_looked_at(clock: Clock) -> None:
    """Wait until the scheduler has looked at everything after this."""
    # It reads the clock before and perhaps after each look, and may be in the middle of one.
    enough = clock.readings + 5
    await eventually(lambda: clock.readings >= enough, "schedules are looked at")


class TestTimes:
    async def test_flow_starts_at_its_time(
        self, nodes: FlowNodes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = Clock()
        monkeypatch.setattr(scheduler, "now_ms", clock)
        node = await nodes.start("alpha", tick)
        clock.set("11:59:59.900")
        created = await node.flows.schedules.create("tick", EVERY_MINUTE, tick, "hello")
        assert created.next_at == datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()
        assert (created.arguments, created.last_at, created.problem) == (["hello"], None, None)
        await until_times(node, "12:00:00Z")
        handle = await node.flows.get_by_client_id("schedule:tick:2026-11-16T12:00:00Z")
        assert await handle.result(DEADLINE_S) == "hello"
        (view,) = await node.flows.schedules.list()
        assert view.last_at == created.next_at
        assert view.next_at == created.next_at + 60
        assert view.last_client_id == handle.client_id

    async def test_flow_starts_once_for_each_time(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        await until_looked_at(clock)
        assert await times_of(node) == []
        clock.set("12:01:00")
        await until_times(node, "12:01:00Z")
        clock.set("12:02:30")
        await until_times(node, "12:01:00Z", "12:02:00Z")
        await until_looked_at(clock)
        await node.restart()
        await until_looked_at(clock)
        await until_times(node, "12:01:00Z", "12:02:00Z")

    async def test_the_clock_of_a_zone_counts(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", "5 21 * * *", tick, timezone="Asia/Tokyo")
        clock.set("12:05:00")
        await until_times(node, "12:05:00Z")

    async def test_a_clock_set_back_brings_nothing_twice(
        self, nodes: FlowNodes, clock: Clock
    ) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        clock.set("12:01:00")
        await until_times(node, "12:01:00Z")
        clock.set("12:00:30")
        await until_looked_at(clock)
        clock.set("12:01:10")
        await until_looked_at(clock)
        clock.set("12:02:00")
        await until_times(node, "12:01:00Z", "12:02:00Z")

    async def test_recreated_schedule_does_not_repeat_times(
        self, nodes: FlowNodes, clock: Clock
    ) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        clock.set("12:01:00")
        await until_times(node, "12:01:00Z")
        await node.flows.schedules.delete("tick")
        clock.set("12:00:30")
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        clock.set("12:01:30")
        await until_looked_at(clock)
        (view,) = await node.flows.schedules.list()
        assert view.next_at == datetime(2026, 11, 16, 12, 2, tzinfo=UTC).timestamp()
        await until_times(node, "12:01:00Z")


class TestMissedTimes:
    @pytest.mark.parametrize(
        ("catch_up", "expected"),
        [
            ("last", ["12:03:00Z"]),
            ("all", ["12:01:00Z", "12:02:00Z", "12:03:00Z"]),
            # That was just now.
            ("none", ["12:03:00Z"]),
        ],
    )
    async def test_of_a_node_that_was_down(
        self, nodes: FlowNodes, clock: Clock, catch_up: str, expected: list[str]
    ) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick, catch_up=catch_up)
        await node.stop_flows()
        clock.set("12:03:20")
        await node.start_flows()
        await until_times(node, *expected)
        clock.set("12:04:00")
        await until_times(node, *expected, "12:04:00Z")

    async def test_none_is_made_up_for_unless_wanted(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", "*/30 * * * *", tick, catch_up="none")
        await node.stop_flows()
        clock.set("12:45:00")
        await node.start_flows()
        await until_looked_at(clock)
        clock.set("13:00:00")
        await until_times(node, "13:00:00Z")

    async def test_draining_node_starts_no_scheduled_flows(
        self, nodes: FlowNodes, clock: Clock
    ) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        assert await node.flows.execution.drain(DEADLINE_S) == 0
        clock.set("12:05:30")
        await until_looked_at(clock)
        assert await times_of(node) == []
        await node.flows.execution.undrain()
        await until_times(node, "12:05:00Z")


class TestEndsInBetween:
    @pytest.mark.parametrize("point", ["flows.schedule.due", "flows.schedule.started"])
    @pytest.mark.parametrize("catch_up", ["last", "all"])
    async def test_a_crash_loses_nothing_and_doubles_nothing(
        self, nodes: FlowNodes, clock: Clock, point: str, catch_up: str
    ) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick, catch_up=catch_up)
        is_reached = asyncio.Event()

        def end(**details: Any) -> None:
            is_reached.set()
            raise Crash

        with faults.arm_fault_point(point, end):
            clock.set("12:02:30")
            async with asyncio.timeout(DEADLINE_S):
                await is_reached.wait()
            await node.stop_flows()
        await node.start_flows()
        expected = ["12:02:00Z"] if catch_up == "last" else ["12:01:00Z", "12:02:00Z"]
        await until_times(node, *expected)
        await until_looked_at(clock)
        await until_times(node, *expected)

    async def test_nor_does_a_node_that_starts_again(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        await node.restart()
        clock.set("12:01:10")
        await until_times(node, "12:01:00Z")
        await node.restart()
        (view,) = await node.flows.schedules.list()
        assert view.last_client_id == "schedule:tick:2026-11-16T12:01:00Z"
        await until_looked_at(clock)
        await until_times(node, "12:01:00Z")

    async def test_a_commit_that_fails_is_made_again(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", slow)
        await node.flows.schedules.create("slow", EVERY_MINUTE, slow)
        lost = StoreUnavailableError("the disk is away")
        with faults.arm_fault_point("durable.commit.before", once(raising(lost))):
            clock.set("12:01:00")
            (begun,) = await node.until_listed("slow", FlowStatus.RUNNING)
        assert begun.client_id == "schedule:slow:2026-11-16T12:01:00Z"
        await node.flows.signal(begun.id, "go", "done")
        assert await node.result(begun.id) == "done"
        assert await node.flows.execution.drain(DEADLINE_S) == 0

    async def test_concurrently_changed_schedule_starts_nothing(
        self, nodes: FlowNodes, clock: Clock
    ) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        store = node.station.mail.store

        def pause(ledger: StoreTables) -> None:
            stored = rows.find_schedule(ledger.database, "tick")
            assert stored is not None
            paused = msgspec.structs.replace(stored, is_paused=True)
            rows.write_schedule(ledger.database, paused)

        with faults.arm_fault_point(
            "flows.schedule.due", once(lambda: store.submit(FunctionMutation(pause)))
        ):
            clock.set("12:01:00")

            async def is_paused() -> bool:
                return (await node.flows.schedules.list())[0].is_paused

            await eventually(is_paused, "the schedule is paused")
            await until_looked_at(clock)
        assert await times_of(node) == []
        assert await node.flows.execution.drain(DEADLINE_S) == 0


class TestLimits:
    async def test_no_more_run_than_may(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", slow)
        await node.flows.schedules.create("slow", EVERY_MINUTE, slow, catch_up="all")
        clock.set("12:03:10")
        ids = [view.id for view in await node.until_listed("slow", count=3)]
        await node.until(ids[0], FlowStatus.RUNNING)
        assert [(await node.flows.admin.show(id)).status for id in ids[1:]] == [
            FlowStatus.QUEUED
        ] * 2
        for id in ids:
            await node.until(id, FlowStatus.RUNNING)
            assert len(await node.flows.admin.list(FlowStatus.RUNNING)) == 1
            await node.flows.signal(id, "go", "done")
            assert await node.result(id) == "done"

    async def test_room_that_is_made_before_the_flow_is_there_is_used(
        self, nodes: FlowNodes, clock: Clock
    ) -> None:
        node = await nodes.start("alpha", slow)
        first = await node.begin(slow)
        await node.until(first.id, FlowStatus.RUNNING)
        await node.flows.schedules.create("slow", EVERY_MINUTE, slow)
        loop = asyncio.get_running_loop()
        is_committing, may_commit = asyncio.Event(), threading.Event()

        def hold() -> None:
            loop.call_soon_threadsafe(is_committing.set)
            may_commit.wait(DEADLINE_S)

        with faults.arm_fault_point("durable.commit.before", once(hold)):
            clock.set("12:01:00")
            async with asyncio.timeout(DEADLINE_S):
                await is_committing.wait()
            signalling = asyncio.ensure_future(node.flows.signal(first.id, "go", "done"))
            await eventually(
                lambda: node.flows.engine.admission.slots.free(slow) == 1, "the first one has ended"
            )
            # Whoever looked for others has looked when this is answered.
            assert len(await node.flows.admin.list()) == 1
            may_commit.set()
            await signalling
        (second,) = await node.until_listed("slow", FlowStatus.RUNNING)
        assert second.client_id == "schedule:slow:2026-11-16T12:01:00Z"


class TestProblems:
    async def test_a_flow_that_is_not_known_any_more(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        await node.restart_flows(other)
        clock.set("12:02:10")
        await until_looked_at(clock)
        (view,) = await node.flows.schedules.list()
        assert view.problem == "this node has no flow called 'tick'"
        with pytest.raises(UsageError, match="this node has no flow called 'tick'"):
            await node.flows.schedules.trigger("tick")
        await node.flows.schedules.create("other", EVERY_MINUTE, other)
        clock.set("12:03:00")
        await node.until_listed("other", FlowStatus.COMPLETED)
        assert len(await node.flows.admin.list()) == 1
        await node.restart_flows(other, tick)
        await node.until_listed("tick", FlowStatus.COMPLETED)
        assert [schedule.problem for schedule in await node.flows.schedules.list()] == [None, None]

    async def test_idle_scheduler_does_not_poll(
        self, nodes: FlowNodes, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        await node.stop_flows()
        clock.set("12:02:10")
        monkeypatch.setattr(scheduler, "_RESCAN_INTERVAL_S", 30.0)
        readings = clock.readings
        await node.start_flows(other)
        for _ in range(100):
            await node.flows.schedules.list()
        assert clock.readings - readings <= 2

    async def test_a_flow_that_only_responds_now(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)

        @responder("another", name="tick")
        async def respond(ctx: FlowContext, session: FlowSession) -> None:
            await session.close()

        await node.restart_flows(respond)
        clock.set("12:02:10")
        await until_looked_at(clock)
        (view,) = await node.flows.schedules.list()
        assert view.problem is not None and "responds to another" in view.problem
        assert await node.flows.admin.list() == []


class TestOperations:
    async def test_paused_schedule_starts_nothing(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        paused = await node.flows.schedules.pause("tick")
        assert (paused.is_paused, paused.next_at) == (True, None)
        clock.set("12:02:10")
        await until_looked_at(clock)
        await node.restart_flows()
        again = await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        assert again.is_paused
        await until_looked_at(clock)
        assert await times_of(node) == []
        resumed = await node.flows.schedules.resume("tick")
        assert resumed.next_at == datetime(2026, 11, 16, 12, 3, tzinfo=UTC).timestamp()
        assert await node.flows.schedules.resume("tick") == resumed
        clock.set("12:03:00")
        await until_times(node, "12:03:00Z")

    async def test_one_can_be_run_at_once(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", tick)
        created = await node.flows.schedules.create("tick", EVERY_MINUTE, tick, "now")
        await node.flows.schedules.pause("tick")
        handle = await node.flows.schedules.trigger("tick")
        assert await handle.result(DEADLINE_S) == "now"
        resumed = await node.flows.schedules.resume("tick")
        assert resumed == created

    async def test_deleted_schedule_starts_nothing(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", tick)
        await node.flows.schedules.create("tick", EVERY_MINUTE, tick)
        await node.flows.schedules.delete("tick")
        assert await node.flows.schedules.list() == []
        clock.set("12:02:10")
        await until_looked_at(clock)
        assert await node.flows.admin.list() == []

    async def test_create_changes_existing_schedule(self, nodes: FlowNodes, clock: Clock) -> None:
        node = await nodes.start("alpha", tick, other)
        await node.flows.schedules.create("b", EVERY_MINUTE, tick, "old")
        await node.flows.schedules.create("a", "@daily", other)
        created = await node.flows.schedules.create("b", "@hourly", tick, "new", catch_up="all")
        assert (created.cron, created.arguments, created.catch_up) == ("@hourly", ["new"], "all")
        assert created.next_at == datetime(2026, 11, 16, 13, tzinfo=UTC).timestamp()
        views = await node.flows.schedules.list()
        assert [schedule.name for schedule in views] == ["a", "b"]
        assert views[1] == created

    @pytest.mark.parametrize("operation", ["delete", "pause", "resume", "trigger"])
    async def test_there_is_no_such_schedule(self, nodes: FlowNodes, operation: str) -> None:
        node = await nodes.start("alpha", tick)
        with pytest.raises(ScheduleNotFoundError, match="this node has no schedule 'tock'"):
            await getattr(node.flows.schedules, operation)("tock")

    async def test_invalid_schedules_are_rejected(self, nodes: FlowNodes) -> None:
        node = await nodes.start("alpha", tick, tock)
        schedule = node.flows.schedules.create
        with pytest.raises(ConfigError, match="minute '61' of the cron expression"):
            await schedule("tick", "61 * * * *", tick)
        with pytest.raises(ConfigError, match="time zone 'Mars' is unknown"):
            await schedule("tick", EVERY_MINUTE, tick, timezone="Mars")
        with pytest.raises(ConfigError, match="catch_up='some' is unknown; there are: last"):
            await schedule("tick", EVERY_MINUTE, tick, catch_up="some")
        with pytest.raises(ConfigError, match="schedule name '' must have"):
            await schedule("", EVERY_MINUTE, tick)
        with pytest.raises(UsageError, match="is no flow of this node"):
            await schedule("tick", EVERY_MINUTE, other)
        with pytest.raises(UsageError, match="responds to tick; only that flow starts it"):
            await schedule("tick", EVERY_MINUTE, tock)
        with pytest.raises(UsageError, match="flow 'tick': too many positional arguments"):
            await schedule("tick", EVERY_MINUTE, tick, "one", "two")
        assert await node.flows.schedules.list() == []
