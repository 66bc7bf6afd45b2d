"""The machine of a flow when something goes wrong, is changed, or begins anew."""

import asyncio
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.flows import FlowContext, FlowDefinition, FlowSession, FlowStatus, flow, responder
from postroad.flows.errors import FlowError, FlowParkedError
from postroad.flows.machine.events import (
    FlowAdmitted,
    FlowEvent,
    FlowKillRequested,
    FlowLoaded,
    FlowPauseRequested,
    FlowResumeRequested,
    FlowRetryRequested,
    SessionMessagesReceived,
    SignalReceived,
    StepCompleted,
    StepFailed,
    TimerFired,
)
from postroad.flows.machine.history import CommandKind, HistoryEntry, encode_history_entry
from postroad.flows.machine.values import encode_value
from postroad.flows.sessions.messages import SessionClose, SessionConfirm, SessionError, SessionInit
from tests.support.cases import each
from tests.support.flows.driven import CONFIRM, ORIGIN, START_MS, Driven, begun, data, labels, runs


def work(number: int = 0) -> int:
    return number


class Insolvent(FlowError):
    """Said by a flow itself."""


@flow
async def calculate(ctx: FlowContext) -> int:
    first = await ctx.step(work, 1)
    return first + await ctx.step(work, 2)


@flow
async def talk(ctx: FlowContext) -> int:
    session = ctx.open_session("beta")
    await session.send(1)
    return await ctx.step(work)


def test_flow_error_is_sent_to_peer_and_fault_is_not() -> None:
    driven = begun(talk)
    over = driven.tell(StepFailed((1,), Insolvent("no money")))
    assert (over.is_ended, driven.head.status) == (True, FlowStatus.FAILED)
    assert labels(over) == ["1 step(work)"]
    assert driven.head.failure is not None
    error_id = driven.head.failure.error_id
    assert over.outgoing == {1: [SessionError(error_id, "Insolvent", "no money")]}
    driven = begun(talk)
    parked = driven.tell(StepFailed((1,), KeyError("x")))
    assert (driven.head.status, driven.head.wake_ms) == (FlowStatus.PARKED, None)
    assert (parked.is_ended, parked.outgoing) == (False, {})
    assert driven.head.failure is not None
    assert "KeyError: 'x'" in driven.head.failure.detail


def test_step_that_failed_last_is_run_again_when_the_flow_is() -> None:
    driven = begun(calculate)
    driven.tell(StepCompleted((0,), 1))
    parked = driven.tell(StepFailed((1,), KeyError("x")))
    assert labels(parked) == []
    again = driven.tell(FlowRetryRequested())
    assert (runs(again), labels(again)) == ([(1,)], [])
    driven.tell(StepCompleted((1,), 2))
    assert driven.result == 3
    assert driven.head.failure is None


def test_failed_step_the_flow_could_live_with_is_done_with() -> None:
    @flow
    async def tolerant(ctx: FlowContext) -> str:
        try:
            await ctx.step(work)
        except KeyError as error:
            await ctx.step(work)
            return f"lived with {error!r}"
        return ""

    driven = begun(tolerant)
    assert labels(driven.tell(StepFailed((0,), KeyError("x")))) == ["0 step(work)"]
    driven.tell(StepFailed((1,), ValueError("y")))
    assert driven.head.status is FlowStatus.PARKED
    assert runs(driven.tell(FlowRetryRequested())) == [(1,)]
    driven.tell(StepCompleted((1,), 0))
    assert driven.result == "lived with KeyError('x')"


def test_transient_error_is_retried_then_parked() -> None:
    driven = begun(
        calculate, settings={"max_attempts": 3, "retry_delay_ms": lambda attempt: 100 * attempt}
    )
    for attempt in (1, 2):
        ailing = driven.tell(StepFailed((0,), ConnectionError("away")))
        assert (driven.head.status, driven.head.attempts) == (FlowStatus.RETRYING, attempt)
        assert (labels(ailing), ailing.outgoing) == ([], {})
        assert driven.head.wake_ms == driven.now_ms + 100 * attempt
        assert runs(driven.tell(TimerFired(), after_ms=100 * attempt - 1)) == []
        assert driven.head.status is FlowStatus.RETRYING
        assert runs(driven.tell(TimerFired(), after_ms=1)) == [(0,)]
    driven.tell(StepFailed((0,), ConnectionError("away")))
    assert (driven.head.status, driven.head.attempts) == (FlowStatus.PARKED, 0)


def test_progress_resets_attempts() -> None:
    driven = begun(calculate, settings={"max_attempts": 2})
    driven.tell(StepFailed((0,), ConnectionError("away")))
    driven.tell(FlowRetryRequested())
    assert (driven.head.attempts, driven.head.failure is None) == (1, False)
    came_further = driven.tell(StepCompleted((0,), 1))
    assert came_further.is_state_changed
    assert (driven.head.attempts, driven.head.failure) == (0, None)
    driven.tell(StepFailed((1,), ConnectionError("away")))
    assert driven.head.attempts == 1


def test_messages_during_retry_delay_are_buffered() -> None:
    @flow
    async def shaky(ctx: FlowContext) -> int:
        session = ctx.open_session("beta")
        await session.send(1)
        await ctx.step(work)
        return await session.receive(int)

    driven = begun(shaky)
    driven.tell(StepFailed((1,), ConnectionError("away")))
    transition = driven.tell(SessionMessagesReceived(1, [CONFIRM, data(5)], "row"))
    assert (len(transition.buffered), transition.ack_tokens) == (2, ["row"])
    driven.tell(FlowRetryRequested())
    driven.tell(StepCompleted((1,), 0))
    assert driven.result == 5


def test_fault_parks_the_flow_with_one_id_and_an_explanation() -> None:
    ids = set()
    driven = begun(calculate)
    for _ in range(3):
        driven.tell(StepFailed((0,), KeyError("x")))
        assert driven.head.failure is not None
        ids.add(driven.head.failure.error_id)
        driven.tell(FlowRetryRequested())
    assert len(ids) == 1
    driven = begun(calculate)
    driven.tell(StepFailed((0,), ValueError("name\udcff")))
    assert driven.head.status is FlowStatus.PARKED

    async def hasty(ctx: FlowContext) -> None:
        await asyncio.sleep(0)

    with pytest.warns(UserWarning, match="asyncio.sleep"):
        definition: FlowDefinition[[], None] = flow(hasty)
    driven = begun(definition)
    assert driven.head.status is FlowStatus.PARKED
    assert "which cannot be recorded: use ctx.sleep" in driven.trouble


def test_kill_of_running_flow_notifies_peers_without_reason() -> None:
    driven = begun(talk)
    killed = driven.tell(FlowKillRequested("it is wrong"))
    assert (killed.is_ended, driven.head.status) == (True, FlowStatus.KILLED)
    assert killed.steps_to_cancel == [(1,)]
    assert driven.head.failure is not None
    assert killed.outgoing == {1: [SessionError(driven.head.failure.error_id)]}
    assert "it is wrong" in driven.trouble


@each(FlowPauseRequested(), StepFailed((1,), KeyError("x")), StepFailed((1,), ConnectionError("x")))
def test_kill_of_flow_without_code_notifies_peers(event: FlowEvent) -> None:
    driven = begun(talk)
    driven.tell(event)
    assert driven.machine.code is None
    killed = driven.tell(FlowKillRequested("enough"))
    assert [type(message) for message in killed.outgoing[1]] == [SessionError]
    assert driven.head.status is FlowStatus.KILLED
    assert driven.head.ended_ms == START_MS


@each(
    FlowResumeRequested(),
    FlowRetryRequested(),
    StepCompleted((9,), 1),
    TimerFired(),
    FlowLoaded(),
    SignalReceived("go", b"\x01"),
)
def test_ended_flow_ignores_events(event: FlowEvent) -> None:
    driven = begun(calculate)
    driven.tell(FlowKillRequested("enough"))
    before = driven.stored.head
    try:
        driven.tell(event)
    except UsageError as error:
        assert "it has ended" in str(error)
    assert driven.stored.head == before
    assert driven.stored.records == ()


def test_resumed_flow_continues_where_it_was_paused() -> None:
    driven = begun(talk)
    paused = driven.tell(FlowPauseRequested())
    assert (driven.head.status, paused.steps_to_cancel) == (FlowStatus.PAUSED, [(1,)])
    assert driven.head.wake_ms is None
    assert driven.tell(StepCompleted((1,), 5)).is_empty
    assert driven.tell(TimerFired()).is_empty
    resumed = driven.tell(FlowResumeRequested())
    assert (labels(resumed), resumed.outgoing, runs(resumed)) == ([], {}, [(1,)])
    driven.tell(StepCompleted((1,), 7))
    assert driven.result == 7


def test_flow_may_be_parked_or_spent_from_outside() -> None:
    driven = begun(talk)
    assert not driven.machine.is_unloaded
    driven.machine.handle(FlowPauseRequested(), START_MS)
    assert driven.machine.is_unloaded
    driven = begun(calculate)
    driven.commit(driven.machine.park(FlowParkedError("the process ended too often"), START_MS))
    assert driven.head.status is FlowStatus.PARKED
    assert "ended too often" in driven.trouble
    assert runs(driven.tell(FlowRetryRequested())) == [(0,)]
    driven = begun(calculate)
    before = driven.stored
    with pytest.raises(UsageError, match="a flow that is running cannot resume"):
        driven.tell(FlowResumeRequested())
    driven.commit(driven.machine.handle(StepCompleted((7,), 1), driven.now_ms))
    assert driven.stored == before
    assert driven.waiting == ["0 step(work)"]


def changed(driven: Driven, function: Any) -> Driven:
    """The same flow, with other code."""
    return Driven(flow(name=driven.definition.name)(function), stored=driven.stored)


async def shorter(ctx: FlowContext) -> int:
    return await ctx.step(work, 1)


async def other_arguments(ctx: FlowContext) -> int:
    return await ctx.step(work, 7) + await ctx.step(work, 2)


async def another_kind(ctx: FlowContext) -> int:
    await ctx.sleep(1)
    return await ctx.step(work, 2)


async def one_more(ctx: FlowContext) -> int:
    await ctx.step(work, 0)
    return await ctx.step(work, 1) + await ctx.step(work, 2)


async def at_once(ctx: FlowContext) -> int:
    await ctx.gather(ctx.step(work, 1), ctx.step(work, 2))
    return 3


async def nothing(ctx: FlowContext) -> int:
    return 3


async def raises(ctx: FlowContext) -> int:
    raise Insolvent("from the beginning")


@each(other_arguments, another_kind, one_more, at_once, nothing, raises)
def test_code_that_mismatches_history_is_parked(function: Any) -> None:
    driven = begun(calculate)
    driven.tell(StepCompleted((0,), 1))
    later = changed(driven, function)
    loaded = later.tell(FlowLoaded())
    assert later.head.status is FlowStatus.PARKED
    assert later.trouble.startswith("postroad.flows.errors:NondeterminismError")
    assert "does not match its history at step 0" in later.trouble
    assert (loaded.entries, loaded.outgoing, loaded.steps_to_run) == ([], {}, [])
    # With the code of before it goes on.
    back = Driven(calculate, stored=later.stored)
    assert runs(back.tell(FlowRetryRequested())) == [(1,)]


def test_code_after_its_record_may_change_but_arguments_must_fit() -> None:
    driven = begun(calculate)
    driven.tell(StepCompleted((0,), 1))
    later = changed(driven, shorter)
    later.tell(FlowLoaded())
    assert later.result == 1

    async def wants_more(ctx: FlowContext, amount: int) -> int:
        return amount

    later = changed(begun(calculate), wants_more)
    later.tell(FlowLoaded())
    assert later.head.status is FlowStatus.PARKED
    assert "missing a required argument" in later.trouble


def test_code_cannot_swallow_replay_mismatch() -> None:
    async def greedy(ctx: FlowContext) -> str:
        try:
            await ctx.open_session("beta").send(1)
            await ctx.step(work, 1)
        except Exception:
            return "swallowed"
        return "done"

    driven = begun(calculate)
    driven.tell(StepCompleted((0,), 1))
    later = changed(driven, greedy)
    later.tell(FlowLoaded())
    assert "NondeterminismError" in later.trouble


def test_session_with_another_peer_does_not_fit_the_record() -> None:
    async def other_peer(ctx: FlowContext) -> int:
        await ctx.open_session("gamma").send(1)
        return await ctx.step(work)

    later = changed(begun(talk), other_peer)
    later.tell(FlowLoaded())
    assert later.head.status is FlowStatus.PARKED
    assert "the code opens session 1 with 'gamma'" in later.trouble


def test_patch_keeps_old_and_new_ways_apart() -> None:
    async def patched(ctx: FlowContext) -> list[Any]:
        first = await ctx.step(work, 1)
        if ctx.patched("twice"):
            first += await ctx.step(work, 5)
        return [first, await ctx.step(work, 2)]

    driven = begun(calculate)
    driven.tell(StepCompleted((0,), 1))
    waiting = changed(driven, patched)
    assert runs(waiting.tell(FlowLoaded())) == [(2,)]
    assert labels(waiting.load()) == []
    driven.tell(StepCompleted((1,), 2))
    old = Driven(flow(patched), stored=driven.stored)
    assert old.head.status is FlowStatus.COMPLETED
    fresh = begun(flow(patched))
    fresh.tell(StepCompleted((0,), 1))
    fresh.load()
    fresh.tell(StepCompleted((2,), 5))
    fresh.load()
    fresh.tell(StepCompleted((3,), 2))
    assert fresh.result == [6, 2]


def test_one_that_went_the_old_way_goes_on_so() -> None:
    @flow(name="long")
    async def before(ctx: FlowContext) -> int:
        return await ctx.step(work, 1) + await ctx.step(work, 2) + await ctx.step(work, 3)

    async def after(ctx: FlowContext) -> int:
        first = await ctx.step(work, 1)
        if ctx.patched("more"):
            first += await ctx.step(work, 100)
        return first + await ctx.step(work, 2) + await ctx.step(work, 3)

    driven = begun(before)
    driven.tell(StepCompleted((0,), 1))
    driven.tell(StepCompleted((1,), 2))
    later = changed(driven, after)
    assert runs(later.tell(FlowLoaded())) == [(2,)]
    later.load()
    later.tell(StepCompleted((2,), 3))
    assert later.result == 6


@flow
async def count_down(ctx: FlowContext, remaining: int) -> str:
    session = ctx.open_session("beta")
    await session.send(remaining)
    if remaining:
        await session.receive(int)
        ctx.continue_as_new(remaining - 1)
    return f"{ctx.random().random():.3f}"


def test_continue_as_new_clears_history() -> None:
    driven = begun(count_down, 1)
    # More comes with what it receives: nobody will ask for that.
    anew = driven.tell(SessionMessagesReceived(1, [CONFIRM, data(5), data(6)], "row"), after_ms=5)
    assert (anew.clears_history, anew.entries, anew.first) == (True, [], 0)
    assert anew.outgoing == {1: [SessionClose()]}
    assert (driven.head.run_number, driven.head.sessions_opened) == (2, 1)
    assert driven.head.wake_ms == 0
    assert driven.stored.records == ()
    assert [row for row in driven.stored.mail if row.session is not None] == []
    loaded = driven.load()
    assert loaded.is_ended
    assert loaded.outgoing == {2: [SessionInit("count_down", 1, "", b"\x00"), SessionClose()]}
    assert driven.head.run_started_ms == START_MS + 5


def test_signals_outlive_a_new_beginning() -> None:
    @flow
    async def loop(ctx: FlowContext, count: int) -> int:
        if count:
            await ctx.wait_for_signal("next", int)
            ctx.continue_as_new(count - 1)
        return await ctx.wait_for_signal("last", int)

    driven = begun(loop, 1)
    driven.tell(SignalReceived("last", b"\x09"))
    driven.tell(SignalReceived("next", b"\x01"))
    driven.load()
    assert driven.result == 9


def test_each_run_draws_other_random_numbers() -> None:
    @flow
    async def gamble(ctx: FlowContext, drawn: list[float]) -> list[float]:
        drawn.append(ctx.random().random())
        if len(drawn) < 3:
            ctx.continue_as_new(drawn)
        return drawn

    driven = begun(gamble, [])
    while driven.head.status is FlowStatus.RUNNING:
        driven.load()
    assert len(set(driven.result)) == 3


def test_responder_cannot_continue_as_new() -> None:
    @responder("ask")
    async def forgetful(ctx: FlowContext, session: FlowSession) -> str:
        return ctx.continue_as_new(session)

    driven = Driven(forgetful, initiated_by=ORIGIN)
    driven.tell(FlowAdmitted([SessionInit("ask", 3, "", encode_value(1, "it"))]))
    assert "forgetful responds to another one, and cannot continue as new" in driven.trouble
    assert [message for _, message in driven.said] == [SessionConfirm("forgetful", 1, "")]


def test_changed_progress_is_stored() -> None:
    @flow
    async def talkative(ctx: FlowContext) -> None:
        ctx.set_progress("first")
        await ctx.step(work)
        ctx.set_progress("second")
        await ctx.step(work)

    driven = begun(talkative)
    assert driven.head.progress == "first"
    transition = driven.tell(StepCompleted((0,), 0))
    assert (transition.is_state_changed, driven.head.progress) == (True, "second")
    assert not driven.load().is_state_changed


def test_history_with_a_transaction_block_is_parked_with_what_to_do() -> None:
    @flow
    async def books(ctx: FlowContext) -> bool:
        return await ctx.wait_for_signal("go", bool)

    block = HistoryEntry(
        position=(0,),
        kind=CommandKind.TRANSACTION,
        name="kept",
        digest=b"",
        at_ms=START_MS,
        value=b"\x90",
    )
    stored = begun(books).stored._replace(records=(encode_history_entry(block),))
    driven = Driven(books, stored=stored)
    driven.tell(FlowLoaded())
    assert driven.head.status is FlowStatus.PARKED
    assert "cannot replay step 0 transaction(kept)" in driven.trouble
    assert "fork the flow from an earlier step, or kill it" in driven.trouble
    assert driven.tell(FlowKillRequested("an operator said so")).is_ended
