"""The machine of a flow, driven by hand: what each event has written down, said and run."""

from typing import Any

from postroad.flows import Flow, Status, flow
from postroad.flows.events import Admitted, Signalled, StepDone, StepRaised, Woke
from postroad.flows.values import encode
from tests.support.flows.driven import START_MS, Driven, begun, labels, runs


def work(number: int = 0) -> int:
    return number


@flow
async def calculate(flow: Flow) -> int:
    first = await flow.step(work, 1)
    return first + await flow.step(work, 2)


def test_functions_are_run_one_after_the_other_and_once() -> None:
    driven = Driven(calculate)
    first = driven.tell(Admitted())
    assert (first.is_new, runs(first), labels(first)) == (True, [(0,)], [])
    assert driven.head.wake_ms == 0
    second = driven.tell(StepDone((0,), 1))
    assert (second.is_new, runs(second), labels(second)) == (False, [(1,)], ["0 step(work)"])
    assert not second.is_head_changed
    third = driven.tell(StepDone((1,), 2), after_ms=7)
    assert (third.is_over, runs(third), labels(third)) == (True, [], ["1 step(work)"])
    assert (driven.result, driven.head.ended_ms) == (3, START_MS + 7)
    assert driven.head.wake_ms is None
    driven = begun(calculate)
    driven.tell(StepDone((0,), 1))
    for event in (StepDone((0,), 5), StepDone((7,), 5), StepRaised((0,), ValueError())):
        assert driven.tell(event).is_empty
    driven = begun(calculate)
    driven.tell(StepDone((0,), 1))
    loaded = driven.load()
    assert (labels(loaded), runs(loaded), loaded.says) == ([], [(1,)], {})
    driven.tell(StepDone((1,), 2))
    assert driven.result == 3


def test_results_that_cannot_be_written_down_or_read_are_errors() -> None:
    @flow
    async def careless(flow: Flow) -> str:
        try:
            await flow.step(work)
        except TypeError as error:
            return str(error)
        return ""

    driven = begun(careless)
    driven.tell(StepDone((0,), object()))
    assert driven.result.startswith("what step 'work' returned cannot be written down")
    driven = begun(calculate)
    driven.tell(StepDone((0,), "text"))
    assert driven.head.status is Status.PARKED
    assert "ValidationError" in driven.trouble

    @flow
    async def odd(flow: Flow) -> Any:
        return object()

    driven = begun(odd)
    assert driven.head.status is Status.PARKED
    assert "the result of odd cannot be written down" in driven.trouble


def test_signals_are_kept_in_their_order_until_they_are_asked_for() -> None:
    @flow
    async def steered(flow: Flow) -> list[int]:
        await flow.step(work)
        return [await flow.signal("go", int), await flow.signal("go", int)]

    driven = begun(steered)
    for number in (1, 2):
        told = driven.tell(Signalled("go", encode(number, "it")))
        assert [it.payload for it in told.signals] == [encode(number, "it")]
    driven.tell(Signalled("stop", b"\x00"))
    driven.load()
    done = driven.tell(StepDone((0,), 0))
    assert (driven.result, len(done.takes)) == ([1, 2], 2)
    assert driven.stored.mail == ()


def test_sleeper_wakes_when_its_time_has_come() -> None:
    @flow
    async def doze(flow: Flow) -> str:
        await flow.sleep(60)
        return flow.now().isoformat()

    driven = begun(doze)
    assert driven.head.wake_ms == START_MS + 60_000
    assert driven.tell(Woke(), after_ms=59_999).is_empty
    driven.load()
    assert driven.head.wake_ms == START_MS + 60_000
    driven.tell(Woke(), after_ms=1)
    assert driven.result == "2023-11-14T22:14:20+00:00"


def test_sleeper_beside_a_function_is_due_all_the_same() -> None:
    @flow
    async def race(flow: Flow) -> Any:
        return await flow.select(work=flow.step(work), late=flow.sleep(1))

    driven = begun(race)
    assert (driven.head.wake_ms, driven.machine.due_ms) == (0, START_MS + 1_000)
    over = driven.tell(Woke(), after_ms=1_000)
    assert driven.result == ["late", None]
    assert over.cancels == [(0, 0, 0)]


def test_waiting_or_a_whole_flow_may_take_too_long() -> None:
    @flow
    async def impatient(flow: Flow) -> str:
        try:
            await flow.open("beta").receive(int, timeout=2)
        except TimeoutError as error:
            return str(error)
        return ""

    driven = begun(impatient)
    assert driven.head.wake_ms == START_MS + 2_000
    driven.tell(Woke(), after_ms=2_000)
    assert driven.result == "1 receive(beta) took too long"
    driven = Driven(calculate, deadline_ms=START_MS + 50)
    driven.tell(Admitted())
    assert driven.machine.due_ms == START_MS + 50
    assert driven.tell(Woke(), after_ms=49).is_empty
    over = driven.tell(Woke(), after_ms=1)
    assert driven.head.status is Status.FAILED
    assert over.cancels == [(0,)]
    assert "flow calculate took too long" in driven.trouble


def test_what_came_in_time_is_received_though_it_is_looked_at_late() -> None:
    @flow
    async def impatient(flow: Flow) -> int:
        return await flow.signal("go", int, timeout=2)

    driven = begun(impatient)
    driven.tell(Signalled("go", b"\x01"), after_ms=5_000)
    assert driven.result == 1


def test_time_does_not_go_back() -> None:
    @flow
    async def clock(flow: Flow) -> bool:
        before = flow.now()
        await flow.step(work)
        return flow.now() >= before

    driven = begun(clock)
    driven.tell(StepDone((0,), 0), after_ms=-50_000)
    assert driven.result is True
    assert driven.records[0].at_ms == START_MS
