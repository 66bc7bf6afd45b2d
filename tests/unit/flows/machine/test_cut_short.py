"""Code that never waits is committed piece by piece, and is the same when it is run again."""

from __future__ import annotations

import itertools

import pytest

from postroad.flows import FlowContext, FlowSession, FlowStatus, FlowTimeoutError, flow
from postroad.flows.machine.events import (
    FlowPauseRequested,
    FlowResumeRequested,
    SignalReceived,
    StepCompleted,
    TimerFired,
)
from postroad.flows.machine.state_machine import FLOW_RECORDS_MAX
from postroad.flows.machine.values import encode_value
from tests.support.flows.driven import Driven, begun

MANY = 2 * FLOW_RECORDS_MAX + 10


async def send_many(session: FlowSession) -> int:
    for number in range(MANY):
        await session.send(number)
    return MANY


async def take_step(ctx: FlowContext) -> int:
    first: int = await ctx.step(abs, 1)
    second: int = await ctx.step(abs, 2)
    return first + second


@flow
async def both(ctx: FlowContext) -> list[int]:
    return await ctx.gather(send_many(ctx.open_session("beta")), take_step(ctx))


@flow
async def waits_for_nothing(ctx: FlowContext) -> int:
    """Everything that is answered at once, again and again."""
    for number in itertools.count():
        await ctx.sleep(0)
        try:
            await ctx.wait_for_signal("enough", bool, timeout=0)
        except FlowTimeoutError:
            continue
        return number
    return -1


def test_long_transition_is_committed_in_parts() -> None:
    driven = begun(both)
    sizes = [len(driven.records)]
    while driven.course[-1].is_cut:
        assert driven.head.wake_ms == 0
        assert driven.machine.due_ms is None
        driven.tell(TimerFired())
        sizes.append(len(driven.records))
    assert sizes == [FLOW_RECORDS_MAX, 2 * FLOW_RECORDS_MAX, MANY]
    # The steps were not kept waiting for that.
    driven.tell(StepCompleted((0, 1, 0), 1))
    driven.tell(StepCompleted((0, 1, 1), 2))
    assert driven.result == [MANY, 3]
    assert [message[1].payload for message in driven.said if hasattr(message[1], "payload")] == [
        encode_value(number, "it") for number in range(MANY)
    ]


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("is_crashed", [False, True])
def test_event_between_parts_is_replayed_in_order(place: int, is_crashed: bool) -> None:
    driven = begun(both)
    for _ in range(place):
        driven.tell(TimerFired())
    driven.tell(StepCompleted((0, 1, 0), 1))
    if is_crashed:
        # What was put off at the crash is not in the record, and what came before it is.
        driven.load()
    driven.tell(FlowPauseRequested())
    driven.tell(FlowResumeRequested())
    while driven.course[-1].is_cut:
        driven.load()
    driven.tell(StepCompleted((0, 1, 1), 2))
    assert driven.result == [MANY, 3]
    kinds = [entry.kind.value for entry in driven.records]
    assert (kinds.count("send"), kinds.count("step")) == (MANY, 2)


def test_a_record_with_steps_between_is_the_same_for_every_part_of_it() -> None:
    driven = begun(both)
    driven.tell(StepCompleted((0, 1, 0), 1))
    driven.tell(TimerFired())
    driven.tell(StepCompleted((0, 1, 1), 2))
    assert driven.result == [MANY, 3]
    whole = driven.stored
    for count in (0, 1, FLOW_RECORDS_MAX, FLOW_RECORDS_MAX + 1, FLOW_RECORDS_MAX + 2, MANY):
        state = whole.read_head()
        state.status, state.result, state.ended_ms = FlowStatus.RUNNING, None, None
        part = whole._replace(records=whole.records[:count], head=encode_value(state, "it"))
        again = Driven(both, stored=part)
        again.load()
        while again.course[-1].is_cut:
            again.tell(TimerFired())
        for position, value in (((0, 1, 0), 1), ((0, 1, 1), 2)):
            if again.head.status is FlowStatus.RUNNING:
                again.tell(StepCompleted(position, value))
        assert again.result == [MANY, 3], count


def test_an_endless_loop_lets_others_in_and_is_replayed() -> None:
    driven = begun(waits_for_nothing)
    for number in range(4):
        assert driven.course[-1].is_cut, number
        driven.tell(TimerFired()) if number % 2 else driven.load()
    driven.tell(FlowPauseRequested())
    assert driven.head.status == "paused"
    driven.tell(FlowResumeRequested())
    driven.tell(SignalReceived("enough", encode_value(True, "it")))
    while driven.head.status is FlowStatus.RUNNING:
        driven.tell(TimerFired())
    assert driven.result > FLOW_RECORDS_MAX
