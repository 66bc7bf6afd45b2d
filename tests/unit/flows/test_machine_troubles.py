"""The machine of a flow when something goes wrong, is changed, or begins anew."""

import asyncio
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.flows import Definition, Flow, Session, Status, flow, responds_to
from postroad.flows.errors import FlowError, FlowParked
from postroad.flows.events import (
    Admitted,
    Event,
    Heard,
    Killed,
    Loaded,
    Paused,
    Resumed,
    Retried,
    Signalled,
    StepDone,
    StepRaised,
    Woke,
)
from postroad.flows.messages import Confirm, End, Failed, Initial
from postroad.flows.values import encode
from tests.support.cases import each
from tests.support.flows.driven import CONFIRM, ORIGIN, START_MS, Driven, begun, data, labels, runs


def work(number: int = 0) -> int:
    return number


class Insolvent(FlowError):
    """Said by a flow itself."""


@flow
async def calculate(flow: Flow) -> int:
    first = await flow.step(work, 1)
    return first + await flow.step(work, 2)


@flow
async def talk(flow: Flow) -> int:
    session = flow.open("beta")
    await session.send(1)
    return await flow.step(work)


def test_failure_is_told_and_a_fault_is_not() -> None:
    driven = begun(talk)
    over = driven.tell(StepRaised((1,), Insolvent("no money")))
    assert (over.is_over, driven.head.status) == (True, Status.FAILED)
    assert labels(over) == ["1 step(work)"]
    assert driven.head.trouble is not None
    error_id = driven.head.trouble.error_id
    assert over.says == {1: [Failed(error_id, "Insolvent", "no money")]}
    driven = begun(talk)
    parked = driven.tell(StepRaised((1,), KeyError("x")))
    assert (driven.head.status, driven.head.wake_ms) == (Status.PARKED, None)
    assert (parked.is_over, parked.says) == (False, {})
    assert driven.head.trouble is not None
    assert "KeyError: 'x'" in driven.head.trouble.detail


def test_step_that_failed_last_is_run_again_when_the_flow_is() -> None:
    driven = begun(calculate)
    driven.tell(StepDone((0,), 1))
    parked = driven.tell(StepRaised((1,), KeyError("x")))
    assert labels(parked) == []
    again = driven.tell(Retried())
    assert (runs(again), labels(again)) == ([(1,)], [])
    driven.tell(StepDone((1,), 2))
    assert driven.result == 3
    assert driven.head.trouble is None


def test_failed_step_the_flow_could_live_with_is_done_with() -> None:
    @flow
    async def tolerant(flow: Flow) -> str:
        try:
            await flow.step(work)
        except KeyError as error:
            await flow.step(work)
            return f"lived with {error!r}"
        return ""

    driven = begun(tolerant)
    assert labels(driven.tell(StepRaised((0,), KeyError("x")))) == ["0 step(work)"]
    driven.tell(StepRaised((1,), ValueError("y")))
    assert driven.head.status is Status.PARKED
    assert runs(driven.tell(Retried())) == [(1,)]
    driven.tell(StepDone((1,), 0))
    assert driven.result == "lived with KeyError('x')"


def test_what_may_pass_is_tried_again_a_few_times_then_parked() -> None:
    driven = begun(calculate, settings={"attempts": 2, "pause_ms": lambda it: 100 * it})
    for attempt in (1, 2):
        ailing = driven.tell(StepRaised((0,), ConnectionError("away")))
        assert (driven.head.status, driven.head.attempts) == (Status.RETRYING, attempt)
        assert (labels(ailing), ailing.says) == ([], {})
        assert driven.head.wake_ms == driven.now_ms + 100 * attempt
        assert runs(driven.tell(Woke(), after_ms=100 * attempt - 1)) == []
        assert driven.head.status is Status.RETRYING
        assert runs(driven.tell(Woke(), after_ms=1)) == [(0,)]
    driven.tell(StepRaised((0,), ConnectionError("away")))
    assert (driven.head.status, driven.head.attempts) == (Status.PARKED, 0)


def test_progress_starts_the_count_anew() -> None:
    driven = begun(calculate, settings={"attempts": 2})
    driven.tell(StepRaised((0,), ConnectionError("away")))
    driven.tell(Retried())
    assert (driven.head.attempts, driven.head.trouble is None) == (1, False)
    came_further = driven.tell(StepDone((0,), 1))
    assert came_further.is_head_changed
    assert (driven.head.attempts, driven.head.trouble) == (0, None)
    driven.tell(StepRaised((1,), ConnectionError("away")))
    assert driven.head.attempts == 1


def test_what_came_meanwhile_is_kept_for_the_next_attempt() -> None:
    @flow
    async def shaky(flow: Flow) -> int:
        session = flow.open("beta")
        await session.send(1)
        await flow.step(work)
        return await session.receive(int)

    driven = begun(shaky)
    driven.tell(StepRaised((1,), ConnectionError("away")))
    kept = driven.tell(Heard(1, [CONFIRM, data(5)], "row"))
    assert (len(kept.keeps), kept.receipts) == (2, ["row"])
    driven.tell(Retried())
    driven.tell(StepDone((1,), 0))
    assert driven.result == 5


def test_fault_parks_the_flow_with_one_id_and_an_explanation() -> None:
    ids = set()
    driven = begun(calculate)
    for _ in range(3):
        driven.tell(StepRaised((0,), KeyError("x")))
        assert driven.head.trouble is not None
        ids.add(driven.head.trouble.error_id)
        driven.tell(Retried())
    assert len(ids) == 1
    driven = begun(calculate)
    driven.tell(StepRaised((0,), ValueError("name\udcff")))
    assert driven.head.status is Status.PARKED

    async def hasty(flow: Flow) -> None:
        await asyncio.sleep(0)

    with pytest.warns(UserWarning, match="asyncio.sleep"):
        definition: Definition[[], None] = flow(hasty)
    driven = begun(definition)
    assert driven.head.status is Status.PARKED
    assert "which is not recorded: use flow.sleep" in driven.trouble


def test_killing_one_that_runs_tells_its_peers_no_reason() -> None:
    driven = begun(talk)
    killed = driven.tell(Killed("it is wrong"))
    assert (killed.is_over, driven.head.status) == (True, Status.KILLED)
    assert killed.cancels == [(1,)]
    assert driven.head.trouble is not None
    assert killed.says == {1: [Failed(driven.head.trouble.error_id)]}
    assert "it is wrong" in driven.trouble


@each(Paused(), StepRaised((1,), KeyError("x")), StepRaised((1,), ConnectionError("x")))
def test_killing_one_without_code_tells_its_peers_too(event: Event) -> None:
    driven = begun(talk)
    driven.tell(event)
    assert driven.machine.code is None
    killed = driven.tell(Killed("enough"))
    assert [type(it) for it in killed.says[1]] == [Failed]
    assert driven.head.status is Status.KILLED
    assert driven.head.ended_ms == START_MS


@each(Resumed(), Retried(), StepDone((9,), 1), Woke(), Loaded(), Signalled("go", b"\x01"))
def test_one_that_has_ended_stays_as_it_is(event: Event) -> None:
    driven = begun(calculate)
    driven.tell(Killed("enough"))
    before = driven.stored.head
    try:
        driven.tell(event)
    except UsageError as error:
        assert "it has ended" in str(error)
    assert driven.stored.head == before
    assert driven.stored.records == ()


def test_paused_one_goes_on_where_it_was() -> None:
    driven = begun(talk)
    paused = driven.tell(Paused())
    assert (driven.head.status, paused.cancels) == (Status.PAUSED, [(1,)])
    assert driven.head.wake_ms is None
    assert driven.tell(StepDone((1,), 5)).is_empty
    assert driven.tell(Woke()).is_empty
    resumed = driven.tell(Resumed())
    assert (labels(resumed), resumed.says, runs(resumed)) == ([], {}, [(1,)])
    driven.tell(StepDone((1,), 7))
    assert driven.result == 7


def test_flow_may_be_parked_or_spent_from_outside() -> None:
    driven = begun(talk)
    assert not driven.machine.is_spent
    driven.machine.handle(Paused(), START_MS)
    assert driven.machine.is_spent
    driven = begun(calculate)
    driven.commit(driven.machine.observe(FlowParked("the process ended too often"), START_MS))
    assert driven.head.status is Status.PARKED
    assert "ended too often" in driven.trouble
    assert runs(driven.tell(Retried())) == [(0,)]
    driven = begun(calculate)
    before = driven.stored
    with pytest.raises(UsageError, match="a flow that is running cannot resume"):
        driven.tell(Resumed())
    driven.commit(driven.machine.handle(StepDone((7,), 1), driven.now_ms))
    assert driven.stored == before
    assert driven.waiting == ["0 step(work)"]


def changed(driven: Driven, function: Any) -> Driven:
    """The same flow, with other code."""
    return Driven(flow(name=driven.definition.name)(function), stored=driven.stored)


async def shorter(flow: Flow) -> int:
    return await flow.step(work, 1)


async def other_arguments(flow: Flow) -> int:
    return await flow.step(work, 7) + await flow.step(work, 2)


async def another_kind(flow: Flow) -> int:
    await flow.sleep(1)
    return await flow.step(work, 2)


async def one_more(flow: Flow) -> int:
    await flow.step(work, 0)
    return await flow.step(work, 1) + await flow.step(work, 2)


async def at_once(flow: Flow) -> int:
    await flow.gather(flow.step(work, 1), flow.step(work, 2))
    return 3


async def nothing(flow: Flow) -> int:
    return 3


async def raises(flow: Flow) -> int:
    raise Insolvent("from the beginning")


@each(other_arguments, another_kind, one_more, at_once, nothing, raises)
def test_code_that_does_not_fit_its_record_is_parked(function: Any) -> None:
    driven = begun(calculate)
    driven.tell(StepDone((0,), 1))
    later = changed(driven, function)
    loaded = later.tell(Loaded())
    assert later.head.status is Status.PARKED
    assert later.trouble.startswith("postroad.flows.errors:FlowMismatch")
    assert "does not fit its record at step 0" in later.trouble
    assert (loaded.records, loaded.says, loaded.runs) == ([], {}, [])
    # With the code of before it goes on.
    back = Driven(calculate, stored=later.stored)
    assert runs(back.tell(Retried())) == [(1,)]


def test_code_after_its_record_may_change_but_arguments_must_fit() -> None:
    driven = begun(calculate)
    driven.tell(StepDone((0,), 1))
    later = changed(driven, shorter)
    later.tell(Loaded())
    assert later.result == 1

    async def wants_more(flow: Flow, amount: int) -> int:
        return amount

    later = changed(begun(calculate), wants_more)
    later.tell(Loaded())
    assert later.head.status is Status.PARKED
    assert "missing a required argument" in later.trouble


def test_no_code_can_swallow_that_it_does_not_fit() -> None:
    async def greedy(flow: Flow) -> str:
        try:
            await flow.open("beta").send(1)
            await flow.step(work, 1)
        except Exception:
            return "swallowed"
        return "done"

    driven = begun(calculate)
    driven.tell(StepDone((0,), 1))
    later = changed(driven, greedy)
    later.tell(Loaded())
    assert "FlowMismatch" in later.trouble


def test_session_with_another_peer_does_not_fit_the_record() -> None:
    async def other_peer(flow: Flow) -> int:
        await flow.open("gamma").send(1)
        return await flow.step(work)

    later = changed(begun(talk), other_peer)
    later.tell(Loaded())
    assert later.head.status is Status.PARKED
    assert "the code opens session 1 with 'gamma'" in later.trouble


def test_patch_keeps_old_and_new_ways_apart() -> None:
    async def patched(flow: Flow) -> list[Any]:
        first = await flow.step(work, 1)
        if flow.patched("twice"):
            first += await flow.step(work, 5)
        return [first, await flow.step(work, 2)]

    driven = begun(calculate)
    driven.tell(StepDone((0,), 1))
    waiting = changed(driven, patched)
    assert runs(waiting.tell(Loaded())) == [(2,)]
    assert labels(waiting.load()) == []
    driven.tell(StepDone((1,), 2))
    old = Driven(flow(patched), stored=driven.stored)
    assert old.head.status is Status.DONE
    fresh = begun(flow(patched))
    fresh.tell(StepDone((0,), 1))
    fresh.load()
    fresh.tell(StepDone((2,), 5))
    fresh.load()
    fresh.tell(StepDone((3,), 2))
    assert fresh.result == [6, 2]


def test_one_that_went_the_old_way_goes_on_so() -> None:
    @flow(name="long")
    async def before(flow: Flow) -> int:
        return await flow.step(work, 1) + await flow.step(work, 2) + await flow.step(work, 3)

    async def after(flow: Flow) -> int:
        first = await flow.step(work, 1)
        if flow.patched("more"):
            first += await flow.step(work, 100)
        return first + await flow.step(work, 2) + await flow.step(work, 3)

    driven = begun(before)
    driven.tell(StepDone((0,), 1))
    driven.tell(StepDone((1,), 2))
    later = changed(driven, after)
    assert runs(later.tell(Loaded())) == [(2,)]
    later.load()
    later.tell(StepDone((2,), 3))
    assert later.result == 6


@flow
async def count_down(flow: Flow, left: int) -> str:
    session = flow.open("beta")
    await session.send(left)
    if left:
        await session.receive(int)
        flow.continue_as_new(left - 1)
    return f"{flow.random().random():.3f}"


def test_it_begins_anew_without_a_history() -> None:
    driven = begun(count_down, 1)
    # More comes with what it receives: nobody will ask for that.
    anew = driven.tell(Heard(1, [CONFIRM, data(5), data(6)], "row"), after_ms=5)
    assert (anew.forgets_steps, anew.records, anew.first) == (True, [], 0)
    assert anew.says == {1: [End()]}
    assert (driven.head.run, driven.head.opened) == (2, 1)
    assert driven.head.wake_ms == 0
    assert driven.stored.records == ()
    assert [it for it in driven.stored.mail if it.session is not None] == []
    loaded = driven.load()
    assert loaded.is_over
    assert loaded.says == {2: [Initial("count_down", 1, "", b"\x00"), End()]}
    assert driven.head.run_ms == START_MS + 5


def test_signals_outlive_a_new_beginning() -> None:
    @flow
    async def loop(flow: Flow, count: int) -> int:
        if count:
            await flow.signal("next", int)
            flow.continue_as_new(count - 1)
        return await flow.signal("last", int)

    driven = begun(loop, 1)
    driven.tell(Signalled("last", b"\x09"))
    driven.tell(Signalled("next", b"\x01"))
    driven.load()
    assert driven.result == 9


def test_each_run_has_its_own_chances() -> None:
    @flow
    async def gamble(flow: Flow, drawn: list[float]) -> list[float]:
        drawn.append(flow.random().random())
        if len(drawn) < 3:
            flow.continue_as_new(drawn)
        return drawn

    driven = begun(gamble, [])
    while driven.head.status is Status.RUNNING:
        driven.load()
    assert len(set(driven.result)) == 3


def test_responder_does_not_begin_anew() -> None:
    @responds_to("ask")
    async def forgetful(flow: Flow, session: Session) -> str:
        return flow.continue_as_new(session)

    driven = Driven(forgetful, origin=ORIGIN)
    driven.tell(Admitted([Initial("ask", 3, "", encode(1, "it"))]))
    assert "forgetful responds to another one, and cannot begin anew" in driven.trouble
    assert [it for _, it in driven.said] == [Confirm("forgetful", 1, "")]


def test_progress_is_written_down_when_it_changes() -> None:
    @flow
    async def talkative(flow: Flow) -> None:
        flow.progress("first")
        await flow.step(work)
        flow.progress("second")
        await flow.step(work)

    driven = begun(talkative)
    assert driven.head.progress == "first"
    told = driven.tell(StepDone((0,), 0))
    assert (told.is_head_changed, driven.head.progress) == (True, "second")
    assert not driven.load().is_head_changed
