"""Starts flows at the times of their schedules, exactly once for each time.

The start of a flow and the advance of its schedule are one commit. A flow that was committed and
not started when the process ended is resumed by the next process, like every running flow.

Which times are due, made up for or skipped, `plan_schedule` decides (schedule.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from postroad.core import fault_points as faults
from postroad.core.errors import ConfigError, PostroadError, StoreError, UsageError
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.flows.definition import FlowDefinition
from postroad.flows.engine import tables
from postroad.flows.engine.background import now_ms
from postroad.flows.engine.engine import FlowEngine
from postroad.flows.errors import ScheduleNotFoundError
from postroad.flows.machine import values
from postroad.flows.machine.state import FlowState
from postroad.flows.machine.status import FlowStatus
from postroad.flows.schedules import schedule as rows
from postroad.flows.schedules.cron import CronExpression
from postroad.flows.schedules.schedule import (
    CatchUpPolicy,
    Schedule,
    ScheduleAdvance,
    format_time,
    plan_schedule,
    schedule_client_id,
)
from postroad.flows.tracing import start_scheduled_flow_span, store_trace

if TYPE_CHECKING:
    from postroad.flows.service import FlowHandle, FlowService

logger = logging.getLogger("postroad.flows")

DUE = faults.declare_fault_point("flows.schedule.due")
STARTED = faults.declare_fault_point("flows.schedule.started")

# A wall clock may jump, and flows may be registered later; periodic scans make up for it.
_RESCAN_INTERVAL_S = 30.0
_STORE_RETRY_S = 1.0
_NAME_CHARS_MAX = 200


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as operators see it."""

    name: str
    flow: str
    arguments: list[Any]
    cron: str
    timezone: str
    catch_up: CatchUpPolicy
    is_paused: bool
    next_at: float | None
    """None while it is paused."""
    last_at: float | None
    """The last time for which its flow was started."""
    last_client_id: str | None
    """The client id of that flow."""
    problem: str | None
    """Why its flow cannot be started; None if it can."""


_Views: TypeAlias = list[ScheduleView]
_Start: TypeAlias = Callable[[FlowDefinition[Any, Any], bytes], Awaitable["FlowHandle[Any]"]]


class FlowSchedules:
    """The schedules of a node; every change is durable when its method returns.

    Args:
        flows: the flow service of the node.
        start: starts a flow with encoded arguments.

    Attributes:
        scheduler: starts them at their times; None while the flows do not run.
    """

    def __init__(self, flows: FlowService, start: _Start) -> None:
        self._flows = flows
        self._start = start
        self.scheduler: FlowScheduler | None = None

    async def create(
        self,
        name: str,
        cron: str,
        definition: FlowDefinition[..., Any],
        *args: Any,
        timezone: str = "UTC",
        catch_up: CatchUpPolicy | str = CatchUpPolicy.LAST,
    ) -> ScheduleView:
        """Start a flow at each time of a cron expression; creates or changes a schedule.

        Call it at each start of the program. A schedule of this name keeps its due times unless
        the expression is another one, and stays paused if it is.

        Args:
            name: the name of the schedule; its flows have client ids `schedule:<name>:<time>`.
            cron: five fields such as `30 2 * * mon-fri`, or a shortcut such as `@daily`.
            definition: the flow.
            args: its arguments.
            timezone: the time zone of the expression, such as `Europe/Berlin`.
            catch_up: for which of the times at which this node was down or draining the flow is
                started: the "last", "all" (1,000 at most), or "none".
        """
        if not 0 < len(name) <= _NAME_CHARS_MAX or not name.isprintable():
            raise ConfigError(
                f"schedule name {name!r:.220} must have 1 to {_NAME_CHARS_MAX} printable characters"
            )
        times = CronExpression.parse(cron, timezone)
        self._flows.registry.check_startable(definition)
        schedule = Schedule(
            name=name,
            flow=definition.name,
            cron=cron,
            timezone=timezone,
            arguments=definition.encode_arguments(args, {}),
            catch_up=_catch_up(catch_up),
            next_ms=0,
        )

        def write(stored: StoreTables) -> Schedule:
            existing = rows.find_schedule(stored.database, name)
            merged = rows.merge_schedule(existing, schedule, times, now_ms())
            if merged != existing:
                rows.write_schedule(stored.database, merged)
            return merged

        return await self._change(write)

    async def delete(self, name: str) -> None:
        """Delete a schedule, or raise ScheduleNotFoundError; flows that it started continue."""

        def write(stored: StoreTables) -> None:
            _find(stored.database, name)
            rows.delete_schedule(stored.database, name)

        await self._flows.engine.store.write(write)

    async def list(self) -> _Views:
        """Return all schedules, ordered by name."""
        schedules = await self._flows.engine.store.read(rows.read_schedules)
        return [self._view(schedule) for schedule in schedules]

    async def pause(self, name: str) -> ScheduleView:
        """Start nothing for a schedule until `resume`, or raise ScheduleNotFoundError."""

        def write(stored: StoreTables) -> Schedule:
            paused = msgspec.structs.replace(_find(stored.database, name), is_paused=True)
            rows.write_schedule(stored.database, paused)
            return paused

        return await self._change(write)

    async def resume(self, name: str) -> ScheduleView:
        """Resume a schedule; times while it was paused are skipped."""

        def write(stored: StoreTables) -> Schedule:
            schedule = _find(stored.database, name)
            if not schedule.is_paused:
                return schedule
            resumed = rows.resume_schedule(
                schedule, CronExpression.parse(schedule.cron, schedule.timezone), now_ms()
            )
            rows.write_schedule(stored.database, resumed)
            return resumed

        return await self._change(write)

    async def trigger(self, name: str) -> FlowHandle[Any]:
        """Start the flow of a schedule now, in addition to its times and even if it is paused."""
        schedule = await self._flows.engine.store.read(_find, name)
        definition = self._flows.registry.find(schedule.flow)
        if definition is None:
            raise UsageError(f"schedule {name!r}: {self.problem_of(schedule)}")
        return await self._start(definition, schedule.arguments)

    async def _change(self, write: Callable[[StoreTables], Schedule]) -> ScheduleView:
        changed = await self._flows.engine.store.write(write)
        self.wake()
        return self._view(changed)

    def wake(self) -> None:
        """Scan the schedules now, because something has changed."""
        if self.scheduler is not None:
            self.scheduler.wake()

    def problem_of(self, schedule: Schedule) -> str | None:
        """Return why the flow of a schedule cannot be started; None if it can."""
        definition = self._flows.registry.find(schedule.flow)
        if definition is None:
            return f"this node has no flow called {schedule.flow!r}"
        try:
            self._flows.registry.check_startable(definition)
            CronExpression.parse(schedule.cron, schedule.timezone)
        except PostroadError as error:
            return str(error)
        return None

    def _view(self, schedule: Schedule) -> ScheduleView:
        last_ms = schedule.last_ms
        args, _ = values.decode_value(schedule.arguments)
        return ScheduleView(
            name=schedule.name,
            flow=schedule.flow,
            arguments=args,
            cron=schedule.cron,
            timezone=schedule.timezone,
            catch_up=schedule.catch_up,
            is_paused=schedule.is_paused,
            next_at=None if schedule.is_paused else schedule.next_ms / 1000,
            last_at=None if last_ms is None else last_ms / 1000,
            last_client_id=None if last_ms is None else schedule_client_id(schedule.name, last_ms),
            problem=self.problem_of(schedule),
        )


class FlowScheduler:
    """Starts the flows of due schedules; scans them when one is due or has changed."""

    def __init__(self, schedules: FlowSchedules, engine: FlowEngine) -> None:
        self._schedules = schedules
        self._engine = engine
        self._store = engine.store
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # Problems that were logged already, by schedule.
        self._problems: dict[str, str] = {}

    async def start(self) -> None:
        """Start the flows that were missed, then those that become due."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name="postroad schedules")

    async def stop(self) -> None:
        """Start no more flows."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def wake(self) -> None:
        """Scan again, because something has changed."""
        self._woken.set()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                pause_s = await self._scan()
            except StoreError as error:
                logger.debug("cannot read schedules, retrying: %s", error)
                pause_s = _STORE_RETRY_S
            except Exception:
                logger.exception("cannot scan schedules, retrying")
                pause_s = _RESCAN_INTERVAL_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _scan(self) -> float:
        """Start the flows of due schedules; return the seconds until the next scan."""
        now = now_ms()
        due: list[Schedule] = []
        if not self._engine.admission.is_draining:
            due = await self._store.read(rows.read_due_schedules, now)
        pauses_s = await asyncio.gather(*(self._run_due(schedule, now) for schedule in due))
        next_ms = await self._store.read(rows.next_schedule_ms, now)
        if next_ms is not None:
            pauses_s.append(max(next_ms - now_ms(), 0) / 1000)
        return min([*pauses_s, _RESCAN_INTERVAL_S])

    async def _run_due(self, schedule: Schedule, now: int) -> float:
        """Start the flow of a schedule for its times; return the seconds until the next scan."""
        try:
            await self._advance(schedule, now)
        except StoreError as error:
            logger.debug(
                "schedule %r cannot start its flow now, retrying: %s", schedule.name, error
            )
            return _STORE_RETRY_S
        except Exception:
            # One schedule must not block the others.
            logger.exception("schedule %r cannot start its flow, retrying", schedule.name)
        return _RESCAN_INTERVAL_S

    async def _advance(self, schedule: Schedule, now: int) -> None:
        definition = self._engine.registry.find(schedule.flow)
        if self._has_problem(schedule) or definition is None:
            return
        plan = plan_schedule(schedule, CronExpression.parse(schedule.cron, schedule.timezone), now)
        if plan.skipped_ms is not None:
            since = format_time(plan.skipped_ms)
            logger.info("schedule %r: missed times since %s are skipped", schedule.name, since)
        current: Schedule | None = schedule
        for move in plan.advances:
            if current is None or self._engine.admission.is_draining:
                return
            current = await self._advance_once(current, move, definition)

    def _has_problem(self, schedule: Schedule) -> bool:
        problem = self._schedules.problem_of(schedule)
        if problem is None:
            self._problems.pop(schedule.name, None)
            return False
        if self._problems.get(schedule.name) != problem:
            self._problems[schedule.name] = problem
            logger.warning("schedule %r waits: %s", schedule.name, problem)
        return True

    async def _advance_once(
        self, schedule: Schedule, move: ScheduleAdvance, definition: FlowDefinition[Any, Any]
    ) -> Schedule | None:
        """Commit one advance; return the schedule after it, or None if it was changed meanwhile."""
        DUE.hit(schedule=schedule.name, due_ms=move.due_ms)
        if move.due_ms is None:
            moved = msgspec.structs.replace(schedule, next_ms=move.next_ms)
            is_started = await self._store.write(lambda stored: _advance(stored, schedule, moved))
        else:
            moved = msgspec.structs.replace(schedule, next_ms=move.next_ms, last_ms=move.due_ms)
            begun_as = schedule_client_id(schedule.name, move.due_ms)
            with start_scheduled_flow_span(self._store.owner, definition.name) as span:
                state = self._engine.admission.new_state(definition, schedule.arguments, begun_as)
                store_trace(state, span)
                is_started = await self._commit_start(schedule, moved, state)
            STARTED.hit(schedule=schedule.name, due_ms=move.due_ms, flow=state.id)
            if state.status is FlowStatus.RUNNING and is_started:
                self._engine.resume(state.id)
            elif is_started:
                # A slot may have become free before the queued flow was visible.
                self._engine.admission.start_waiting(state.name)
        return None if is_started is None else moved

    async def _commit_start(
        self, schedule: Schedule, moved: Schedule, state: FlowState
    ) -> bool | None:
        """Commit a flow with the advance of its schedule; returns the result of `_advance`.

        The flow is stored as after a crash: running, and not loaded.
        """
        is_running = state.status is FlowStatus.RUNNING
        if is_running:
            state.wake_ms = 0
            # Reserves its slot during the commit.
            self._engine.admission.slots.add(state.name)
        is_started: bool | None = None
        try:
            is_started = await self._store.write(
                lambda stored: _advance(stored, schedule, moved, state)
            )
        finally:
            if is_running and not is_started:
                self._engine.admission.slots.add(state.name, -1)
                self._engine.admission.start_waiting(state.name)
        return is_started


def _advance(
    stored: StoreTables, schedule: Schedule, moved: Schedule, state: FlowState | None = None
) -> bool | None:
    """Advance a schedule and start its flow; returns whether it started, None if unchanged."""
    database = stored.database
    if rows.find_schedule(database, schedule.name) != schedule:
        return None
    rows.write_schedule(database, moved)
    if state is None:
        return False
    assert state.client_id is not None
    # The clock may have been set back: there is one flow for each time.
    if tables.find_by_client_id(database, state.client_id) is not None:
        return False
    tables.insert_state(database, tables.state_row(state))
    return True


def _find(database: StoreConnection, name: str) -> Schedule:
    schedule = rows.find_schedule(database, name)
    if schedule is None:
        raise ScheduleNotFoundError(
            f"this node has no schedule {name!r}; see flows.schedules.list()"
        )
    return schedule


def _catch_up(text: CatchUpPolicy | str) -> CatchUpPolicy:
    try:
        return CatchUpPolicy(text)
    except ValueError:
        policies = ", ".join(policy.value for policy in CatchUpPolicy)
        raise ConfigError(f"catch_up={text!r} is unknown; there are: {policies}") from None
