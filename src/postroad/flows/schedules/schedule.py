"""Schedules: when their flow is due, which missed times are made up for, and their table.

The decisions, above all `plan_schedule`, are pure; below them are the statements.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise

import msgspec

from postroad.durable.store.backends.backend import DatabaseRow, StoreConnection
from postroad.flows.errors import NondeterminismError
from postroad.flows.schedules.cron import CronExpression

logger = logging.getLogger("postroad.flows")

CATCH_UP_MAX = 1_000
"""At most this many missed times, the latest, are run."""
LATE_MS = 60_000
"""Grace period: a run at most this late is not missed; restarting a node takes a while."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE_MS = 60_000
_COLUMNS = "name, flow, cron, zone, arguments, catch_up, is_paused, next_ms, last_ms"


class CatchUpPolicy(StrEnum):
    """Which missed times are run later."""

    LAST = "last"
    """The last one."""
    ALL = "all"
    """Each of them, `CATCH_UP_MAX` at most."""
    NONE = "none"
    """None: they are skipped."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as it is stored."""

    name: str
    flow: str
    cron: str
    timezone: str
    arguments: bytes
    catch_up: CatchUpPolicy
    is_paused: bool = False
    next_ms: int
    """The first time that is not decided yet; it only moves forward."""
    last_ms: int | None = None
    """The last time for which the flow was started."""


class ScheduleAdvance(msgspec.Struct, frozen=True):
    """One commit that moves a schedule forward."""

    due_ms: int | None
    """The time its flow is started for; None if it is not."""
    next_ms: int


class SchedulePlan(msgspec.Struct, frozen=True):
    """The advances of a schedule that are due now, in order."""

    advances: list[ScheduleAdvance]
    skipped_ms: int | None = None
    """The first time that is skipped; None if none is."""


def plan_schedule(schedule: Schedule, cron: CronExpression, now_ms: int) -> SchedulePlan:
    """Decide which times a flow is started for, and the next time of the schedule."""
    if schedule.is_paused or schedule.next_ms > now_ms:
        return SchedulePlan([])
    limit = CATCH_UP_MAX if schedule.catch_up is CatchUpPolicy.ALL else 1
    times = last_times(cron, schedule.next_ms, now_ms, limit)
    if schedule.catch_up is CatchUpPolicy.NONE:
        times = [time_ms for time_ms in times if time_ms >= now_ms - LATE_MS]
    next_ms = cron.next_after(now_ms)
    first_ms = cron.next_after(schedule.next_ms - 1)
    is_skipping = first_ms <= now_ms and (not times or first_ms < times[0])
    advances = [
        ScheduleAdvance(due_ms, after_ms) for due_ms, after_ms in pairwise([*times, next_ms])
    ]
    return SchedulePlan(
        advances or [ScheduleAdvance(None, next_ms)], first_ms if is_skipping else None
    )


def last_times(cron: CronExpression, first_ms: int, now_ms: int, limit: int) -> list[int]:
    """Return the last times from one moment to another, both included, in order.

    It looks back from the end, ever farther: a year has half a million minutes.
    """
    times: list[int] = []
    span_ms = _MINUTE_MS
    last_ms = _last_time(cron, first_ms, now_ms)
    while last_ms is not None and len(times) < limit:
        start_ms = max(last_ms - span_ms, first_ms - 1)
        times = [*_times_between(cron, start_ms, last_ms), *times]
        last_ms = _last_time(cron, first_ms, start_ms)
        span_ms *= 2
    return times[-limit:]


def _last_time(cron: CronExpression, first_ms: int, end_ms: int) -> int | None:
    """Return the last time from one moment to another, both included."""
    span_ms = _MINUTE_MS
    while end_ms >= first_ms and cron.next_after(end_ms - span_ms) > end_ms:
        end_ms -= span_ms
        span_ms *= 2
    # Between these two there is one, if not before the first.
    while span_ms > _MINUTE_MS:
        span_ms //= 2
        if cron.next_after(end_ms - span_ms) > end_ms:
            end_ms -= span_ms
    start_ms = max(end_ms - span_ms, first_ms - 1)
    return max(_times_between(cron, start_ms, end_ms), default=None)


def _times_between(cron: CronExpression, start_ms: int, end_ms: int) -> Iterator[int]:
    """Yield the times after one moment, up to another."""
    while (start_ms := cron.next_after(start_ms)) <= end_ms:
        yield start_ms


def resume_schedule(schedule: Schedule, cron: CronExpression, now_ms: int) -> Schedule:
    """Return a resumed schedule; times during the pause are not made up for."""
    next_ms = schedule.next_ms if schedule.next_ms > now_ms else cron.next_after(now_ms)
    return msgspec.structs.replace(schedule, is_paused=False, next_ms=next_ms)


def merge_schedule(
    stored: Schedule | None, schedule: Schedule, cron: CronExpression, now_ms: int
) -> Schedule:
    """Return a schedule that a program has set, with the progress of the stored one of its name.

    Programs set their schedules at each start. Times that are due under the same expression stay
    due, and a schedule that an operator paused stays paused.
    """
    if stored is None:
        return msgspec.structs.replace(schedule, next_ms=cron.next_after(now_ms))
    if (stored.cron, stored.timezone) == (schedule.cron, schedule.timezone):
        next_ms = stored.next_ms
    else:
        # The clock may have been set back since it was last due.
        next_ms = cron.next_after(now_ms if stored.last_ms is None else max(now_ms, stored.last_ms))
    return msgspec.structs.replace(
        schedule, is_paused=stored.is_paused, next_ms=next_ms, last_ms=stored.last_ms
    )


def schedule_client_id(name: str, due_ms: int) -> str:
    """Return the client id of the flow for one time of a schedule."""
    return f"schedule:{name}:{format_time(due_ms)}"


def format_time(ms: int) -> str:
    """Format a time, as it is shown."""
    return f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%dT%H:%M:%SZ}"


# In the store.


def find_schedule(database: StoreConnection, name: str) -> Schedule | None:
    rows = database.execute(
        f"SELECT {_COLUMNS} FROM postroad_flow_schedules WHERE name = ?", (name,)
    )
    return _read(rows[0]) if rows else None


def read_schedules(database: StoreConnection) -> list[Schedule]:
    """Return all schedules, by name."""
    rows = database.execute(f"SELECT {_COLUMNS} FROM postroad_flow_schedules ORDER BY name")
    return _read_all(rows)


def read_due_schedules(database: StoreConnection, now_ms: int) -> list[Schedule]:
    """Return the schedules that are due, the earliest first."""
    rows = database.execute(
        f"SELECT {_COLUMNS} FROM postroad_flow_schedules"
        " WHERE next_ms <= ? AND is_paused = 0 ORDER BY next_ms, name",
        (now_ms,),
    )
    return _read_all(rows)


def next_schedule_ms(database: StoreConnection, now_ms: int) -> int | None:
    """Return when the next schedule is due after some moment."""
    rows = database.execute(
        "SELECT MIN(next_ms) FROM postroad_flow_schedules WHERE next_ms > ? AND is_paused = 0",
        (now_ms,),
    )
    next_ms: int | None = rows[0][0]
    return next_ms


def write_schedule(database: StoreConnection, schedule: Schedule) -> None:
    """Store a schedule, in place of another of its name."""
    delete_schedule(database, schedule.name)
    database.execute(
        f"INSERT INTO postroad_flow_schedules ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            schedule.name,
            schedule.flow,
            schedule.cron,
            schedule.timezone,
            schedule.arguments,
            schedule.catch_up.value,
            int(schedule.is_paused),
            schedule.next_ms,
            schedule.last_ms,
        ),
    )


def delete_schedule(database: StoreConnection, name: str) -> None:
    database.execute("DELETE FROM postroad_flow_schedules WHERE name = ?", (name,))


def _read_all(rows: Iterable[DatabaseRow]) -> list[Schedule]:
    """Return the schedules that can be read; those of newer versions are left out."""
    schedules = []
    for row in rows:
        try:
            schedules.append(_read(row))
        except NondeterminismError as error:
            logger.warning("%s: the schedule is left unchanged", error)
    return schedules


def _read(row: DatabaseRow) -> Schedule:
    name, flow, cron, timezone, arguments, catch_up, is_paused, next_ms, last_ms = row
    if catch_up not in {policy.value for policy in CatchUpPolicy}:
        raise NondeterminismError(
            f"schedule {name!r} was written by a newer version of Postroad: catch_up={catch_up!r}"
        )
    return Schedule(
        name=name,
        flow=flow,
        cron=cron,
        timezone=timezone,
        arguments=bytes(arguments),
        catch_up=CatchUpPolicy(catch_up),
        is_paused=bool(is_paused),
        next_ms=next_ms,
        last_ms=last_ms,
    )
