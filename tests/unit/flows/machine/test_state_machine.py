"""The machine of a flow, driven by hand: what each event has written down, said and run."""

from typing import Any

from postroad.flows import FlowContext, FlowStatus, flow
from postroad.flows.machine.events import (
    FlowAdmitted,
    SignalReceived,
    StepCompleted,
    StepFailed,
    TimerFired,
)
from postroad.flows.machine.values import encode_value
from tests.support.flows.driven import START_MS, Driven, begun, labels, runs


def work(number: int = 0) -> int:
    return number


@flow
async def calculate(ctx: FlowContext) -> int:
    first = await ctx.step(work, 1)
    return first + await ctx.step(work, 2)


def test_functions_are_run_one_after_the_other_and_once() -> None:
    driven = Driven(calculate)
    first = driven.tell(FlowAdmitted())
    assert (first.is_new, runs(first), labels(first)) == (True, [(0,)], [])
    assert driven.head.wake_ms == 0
    second = driven.tell(StepCompleted((0,), 1))
    assert (second.is_new, runs(second), labels(second)) == (False, [(1,)], ["0 step(work)"])
    assert not second.is_state_changed
    third = driven.tell(StepCompleted((1,), 2), after_ms=7)
    assert (third.is_ended, runs(third), labels(third)) == (True, [], ["1 step(work)"])
    assert (driven.result, driven.head.ended_ms) == (3, START_MS + 7)
    assert driven.head.wake_ms is None
    driven = begun(calculate)
    driven.tell(StepCompleted((0,), 1))
    for event in (StepCompleted((0,), 5), StepCompleted((7,), 5), StepFailed((0,), ValueError())):
        assert driven.tell(event).is_empty
    driven = begun(calculate)
    driven.tell(StepCompleted((0,), 1))
    loaded = driven.load()
    assert (labels(loaded), runs(loaded), loaded.outgoing) == ([], [(1,)], {})
    driven.tell(StepCompleted((1,), 2))
    assert driven.result == 3


def test_results_that_cannot_be_written_down_or_read_are_errors() -> None:
    @flow
    async def careless(ctx: FlowContext) -> str:
        try:
            await ctx.step(work)
        except TypeError as error:
            return str(error)
        return ""

    driven = begun(careless)
    driven.tell(StepCompleted((0,), object()))
    assert driven.result.startswith("what step 'work' returned cannot be serialized")
    driven = begun(calculate)
    driven.tell(StepCompleted((0,), "text"))
    assert driven.head.status is FlowStatus.PARKED
    assert "ValidationError" in driven.trouble

    @flow
    async def odd(ctx: FlowContext) -> Any:
        return object()

    driven = begun(odd)
    assert driven.head.status is FlowStatus.PARKED
    assert "the result of odd cannot be serialized" in driven.trouble


def test_signals_are_buffered_in_order_until_awaited() -> None:
    @flow
    async def steered(ctx: FlowContext) -> list[int]:
        await ctx.step(work)
        return [await ctx.wait_for_signal("go", int), await ctx.wait_for_signal("go", int)]

    driven = begun(steered)
    for number in (1, 2):
        transition = driven.tell(SignalReceived("go", encode_value(number, "it")))
        assert [signal.payload for signal in transition.signals] == [encode_value(number, "it")]
    driven.tell(SignalReceived("stop", b"\x00"))
    driven.load()
    done = driven.tell(StepCompleted((0,), 0))
    assert (driven.result, len(done.consumed_ids)) == ([1, 2], 2)
    assert driven.stored.mail == ()


def test_sleeping_flow_wakes_at_its_deadline() -> None:
    @flow
    async def doze(ctx: FlowContext) -> str:
        await ctx.sleep(60)
        return ctx.now().isoformat()

    driven = begun(doze)
    assert driven.head.wake_ms == START_MS + 60_000
    assert driven.tell(TimerFired(), after_ms=59_999).is_empty
    driven.load()
    assert driven.head.wake_ms == START_MS + 60_000
    driven.tell(TimerFired(), after_ms=1)
    assert driven.result == "2023-11-14T22:14:20+00:00"


def test_sleeper_beside_a_function_is_due_all_the_same() -> None:
    @flow
    async def race(ctx: FlowContext) -> Any:
        return await ctx.select(work=ctx.step(work), late=ctx.sleep(1))

    driven = begun(race)
    assert (driven.head.wake_ms, driven.machine.due_ms) == (0, START_MS + 1_000)
    over = driven.tell(TimerFired(), after_ms=1_000)
    assert driven.result == ["late", None]
    assert over.steps_to_cancel == [(0, 0, 0)]


def test_waiting_or_a_whole_flow_may_take_too_long() -> None:
    @flow
    async def impatient(ctx: FlowContext) -> str:
        try:
            await ctx.open_session("beta").receive(int, timeout=2)
        except TimeoutError as error:
            return str(error)
        return ""

    driven = begun(impatient)
    assert driven.head.wake_ms == START_MS + 2_000
    driven.tell(TimerFired(), after_ms=2_000)
    assert driven.result == "1 receive(beta) took too long"
    driven = Driven(calculate, deadline_ms=START_MS + 50)
    driven.tell(FlowAdmitted())
    assert driven.machine.due_ms == START_MS + 50
    assert driven.tell(TimerFired(), after_ms=49).is_empty
    over = driven.tell(TimerFired(), after_ms=1)
    assert driven.head.status is FlowStatus.FAILED
    assert over.steps_to_cancel == [(0,)]
    assert "flow calculate took too long" in driven.trouble


def test_message_before_deadline_is_received_despite_late_check() -> None:
    @flow
    async def impatient(ctx: FlowContext) -> int:
        return await ctx.wait_for_signal("go", int, timeout=2)

    driven = begun(impatient)
    driven.tell(SignalReceived("go", b"\x01"), after_ms=5_000)
    assert driven.result == 1


def test_time_does_not_go_back() -> None:
    @flow
    async def clock(ctx: FlowContext) -> bool:
        before = ctx.now()
        await ctx.step(work)
        return ctx.now() >= before

    driven = begun(clock)
    driven.tell(StepCompleted((0,), 0), after_ms=-50_000)
    assert driven.result is True
    assert driven.records[0].at_ms == START_MS
