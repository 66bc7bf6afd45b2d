"""Which times of a schedule are due, and what becomes of it when somebody says it again."""

from datetime import UTC, datetime
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.durable import MemoryStore
from postroad.durable.store.backends.backend import StoreConnection
from postroad.flows.engine.tables import create_tables
from postroad.flows.schedules import schedule as rows
from postroad.flows.schedules.cron import CronExpression
from postroad.flows.schedules.schedule import (
    CATCH_UP_MAX,
    LATE_MS,
    CatchUpPolicy,
    Schedule,
    ScheduleAdvance,
    SchedulePlan,
    last_times,
    merge_schedule,
    plan_schedule,
    resume_schedule,
    schedule_client_id,
)
from tests.support.cases import each
from tests.support.durable.nodes import opened

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def at(text: str) -> int:
    """A moment in UTC, in milliseconds since 1970."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


NOON = at("2026-11-16 12:00")
EVERY_MINUTE = CronExpression.parse("* * * * *")
NIGHTLY = CronExpression.parse("0 2 * * *")


def make(cron: CronExpression = EVERY_MINUTE, next_ms: int = NOON, **fields: object) -> Schedule:
    schedule = Schedule(
        name="report",
        flow="make_report",
        cron=cron.text,
        timezone=cron.timezone,
        arguments=b"\x92\x90\x80",
        catch_up=CatchUpPolicy.LAST,
        next_ms=next_ms,
    )
    return msgspec.structs.replace(schedule, **fields)


@each(*CatchUpPolicy)
def test_due_schedule_is_planned_once(catch_up: CatchUpPolicy) -> None:
    assert plan_schedule(make(catch_up=catch_up), EVERY_MINUTE, NOON - 1) == SchedulePlan([])
    due = plan_schedule(make(catch_up=catch_up), EVERY_MINUTE, NOON)
    assert due == SchedulePlan([ScheduleAdvance(NOON, NOON + MINUTE_MS)])
    cron = CronExpression.parse("0 12 * * *")
    late = plan_schedule(make(cron, catch_up=catch_up), cron, NOON + LATE_MS)
    assert late == SchedulePlan([ScheduleAdvance(NOON, NOON + DAY_MS)])
    paused = make(is_paused=True, catch_up=catch_up)
    assert plan_schedule(paused, EVERY_MINUTE, NOON + DAY_MS) == SchedulePlan([])


def test_last_or_none_of_those_missed_is_made_up_for() -> None:
    missed = plan_schedule(make(), EVERY_MINUTE, NOON + 10 * MINUTE_MS + 1)
    assert missed == SchedulePlan(
        [ScheduleAdvance(NOON + 10 * MINUTE_MS, NOON + 11 * MINUTE_MS)], NOON
    )
    cron = CronExpression.parse("0 12 * * *")
    missed = plan_schedule(make(cron, catch_up=CatchUpPolicy.NONE), cron, NOON + LATE_MS + 1)
    assert missed == SchedulePlan([ScheduleAdvance(None, NOON + DAY_MS)], NOON)
    # What is due just now is begun although others were missed.
    now = NOON + 10 * MINUTE_MS
    missed = plan_schedule(make(catch_up=CatchUpPolicy.NONE), EVERY_MINUTE, now)
    assert missed == SchedulePlan([ScheduleAdvance(now, now + MINUTE_MS)], NOON)


def test_all_of_those_missed_are_made_up_for_in_order_up_to_a_thousand() -> None:
    schedule = make(catch_up=CatchUpPolicy.ALL)
    missed = plan_schedule(schedule, EVERY_MINUTE, NOON + 2 * MINUTE_MS + 1)
    times = [NOON + number * MINUTE_MS for number in range(4)]
    assert missed == SchedulePlan([ScheduleAdvance(*pair) for pair in pairwise(times)])
    missed = plan_schedule(schedule, EVERY_MINUTE, NOON + (CATCH_UP_MAX - 1) * MINUTE_MS)
    assert (len(missed.advances), missed.skipped_ms) == (CATCH_UP_MAX, None)
    now = NOON + 365 * DAY_MS
    missed = plan_schedule(schedule, EVERY_MINUTE, now)
    assert (len(missed.advances), missed.skipped_ms) == (CATCH_UP_MAX, NOON)
    assert missed.advances[-1] == ScheduleAdvance(now, now + MINUTE_MS)
    assert missed.advances[0].due_ms == now - (CATCH_UP_MAX - 1) * MINUTE_MS


def test_schedule_follows_the_clock_of_its_zone() -> None:
    cron = CronExpression.parse("30 2 * * *", "Europe/Berlin")
    first = at("2026-03-28 01:30")
    missed = plan_schedule(
        make(cron, first, catch_up=CatchUpPolicy.ALL), cron, at("2026-03-30 12:00")
    )
    # In between, at two o'clock, the clock is set to three.
    expected = [first, at("2026-03-29 01:00"), at("2026-03-30 00:30")]
    assert [advance.due_ms for advance in missed.advances] == expected
    # As if the rules of the zone had been others when the schedule was written down.
    next_ms = at("2026-11-17 01:00")
    passed_over = plan_schedule(make(NIGHTLY, next_ms), NIGHTLY, next_ms)
    assert passed_over == SchedulePlan([ScheduleAdvance(None, at("2026-11-17 02:00"))])


@given(
    text=st.sampled_from(["* * * * *", "*/7 * * * *", "5,6 3 * * *", "0 12 * * mon"]),
    catch_up=st.sampled_from(CatchUpPolicy),
    looks=st.lists(
        # How far the clock goes on before each look, and how many moves are made before a crash.
        st.tuples(st.integers(-90 * MINUTE_MS, 300 * MINUTE_MS), st.integers(0, 5)),
        max_size=8,
    ),
)
def test_plan_never_repeats_a_time(
    text: str, catch_up: CatchUpPolicy, looks: list[tuple[int, int]]
) -> None:
    cron = CronExpression.parse(text)
    first = cron.next_after(NOON)
    schedule = make(cron, first, catch_up=catch_up)
    now = NOON
    begun: list[int] = []
    for passed_ms, moves_max in [*looks, (MINUTE_MS, CATCH_UP_MAX)]:
        now += passed_ms
        for move in plan_schedule(schedule, cron, now).advances[:moves_max]:
            assert move.next_ms > schedule.next_ms
            schedule = msgspec.structs.replace(schedule, next_ms=move.next_ms)
            if move.due_ms is not None:
                assert move.due_ms <= now
                begun.append(move.due_ms)
    every = last_times(cron, first, schedule.next_ms - 1, CATCH_UP_MAX * 10)
    assert begun == sorted(set(begun))
    assert set(begun) <= set(every)
    if catch_up is CatchUpPolicy.ALL and len(every) <= CATCH_UP_MAX:
        assert begun == every


@each("* * * * *", "*/7 3-5 * * mon", "0 0 29 2 *", "@monthly", "*/9 * 1-9 1 *")
def test_last_times_are_those_found_one_after_the_other(text: str) -> None:
    cron = CronExpression.parse(text, "Europe/Berlin")
    days = 3 if text.startswith("* ") else 9 * 365
    first, now = NOON, NOON + days * DAY_MS + 1_234
    every = []
    due = cron.next_after(first - 1)
    while due <= now:
        every.append(due)
        due = cron.next_after(due)
    for limit in (1, 2, 7, 1_000):
        assert last_times(cron, first, now, limit) == every[-limit:], limit


def test_last_times_count_both_ends_and_resume_leaves_out_pauses() -> None:
    assert last_times(EVERY_MINUTE, NOON, NOON, 5) == [NOON]
    assert last_times(EVERY_MINUTE, NOON, NOON + MINUTE_MS, 5) == [NOON, NOON + MINUTE_MS]
    assert last_times(EVERY_MINUTE, NOON + 1, NOON + MINUTE_MS - 1, 5) == []
    assert last_times(EVERY_MINUTE, NOON, NOON - 1, 5) == []
    result = resume_schedule(make(is_paused=True), EVERY_MINUTE, NOON + DAY_MS)
    assert result == make(next_ms=NOON + DAY_MS + MINUTE_MS)
    stored = make(NIGHTLY, NOON + 5 * DAY_MS, is_paused=True)
    assert resume_schedule(stored, NIGHTLY, NOON) == make(NIGHTLY, NOON + 5 * DAY_MS)
    assert schedule_client_id("report", NOON) == "schedule:report:2026-11-16T12:00:00Z"


def test_schedule_with_the_same_expression_keeps_what_is_due() -> None:
    assert merge_schedule(None, make(next_ms=0), EVERY_MINUTE, NOON).next_ms == NOON + MINUTE_MS
    stored = make(next_ms=NOON - DAY_MS, last_ms=NOON - 2 * DAY_MS)
    changed = make(next_ms=0, arguments=b"others", catch_up=CatchUpPolicy.ALL, flow="another")
    result = merge_schedule(stored, changed, EVERY_MINUTE, NOON)
    assert result == msgspec.structs.replace(
        changed, next_ms=stored.next_ms, last_ms=stored.last_ms
    )
    assert merge_schedule(make(is_paused=True), make(next_ms=0), EVERY_MINUTE, NOON).is_paused


def test_changed_expression_or_timezone_resets_due_time() -> None:
    result = merge_schedule(make(next_ms=NOON - DAY_MS), make(NIGHTLY, 0), NIGHTLY, NOON)
    assert result.next_ms == at("2026-11-17 02:00")
    cron = CronExpression.parse("0 2 * * *", "Asia/Tokyo")
    result = merge_schedule(make(NIGHTLY, NOON - DAY_MS), make(cron, 0), cron, NOON)
    assert result.next_ms == at("2026-11-16 17:00")
    # A clock that was set back brings no time twice.
    stored = make(NIGHTLY, NOON + DAY_MS, last_ms=NOON)
    result = merge_schedule(stored, make(next_ms=0), EVERY_MINUTE, NOON - DAY_MS)
    assert result.next_ms == NOON + MINUTE_MS


async def test_stored_schedules_round_trip() -> None:
    first = make(next_ms=NOON, last_ms=NOON - 1)
    second = make(name="audit", next_ms=NOON + 5, catch_up=CatchUpPolicy.NONE, is_paused=True)
    third = make(name="later", next_ms=NOON + 7)

    def check(database: StoreConnection) -> None:
        for schedule in (first, second, third, first):
            rows.write_schedule(database, schedule)
        assert rows.read_schedules(database) == [second, third, first]
        assert rows.find_schedule(database, "audit") == second
        assert rows.find_schedule(database, "other") is None
        assert rows.read_due_schedules(database, NOON - 1) == []
        assert rows.read_due_schedules(database, NOON + 7) == [first, third]
        assert rows.next_schedule_ms(database, NOON) == NOON + 7
        assert rows.next_schedule_ms(database, NOON + 7) is None
        rows.delete_schedule(database, "later")
        assert rows.find_schedule(database, "later") is None

    async with opened(MemoryStore()) as store:
        await store.write(lambda ledger: create_tables(store.column_types, ledger.database))
        await store.write(lambda ledger: check(ledger.database))
