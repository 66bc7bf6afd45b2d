"""What the machine of a flow says and hears in sessions, driven by hand."""

from typing import Any

from postroad.flows import FlowContext, FlowSession, FlowStatus, flow, responder
from postroad.flows.errors import FlowError
from postroad.flows.machine.commands import WaitForSignal
from postroad.flows.machine.events import (
    FlowAdmitted,
    FlowKillRequested,
    FlowPauseRequested,
    FlowReleased,
    FlowResumeRequested,
    FlowTransition,
    SessionMessagesReceived,
    SignalReceived,
    StepCompleted,
)
from postroad.flows.machine.values import encode_value
from postroad.flows.sessions.messages import (
    SessionClose,
    SessionConfirm,
    SessionError,
    SessionInit,
    SessionReject,
)
from tests.support.cases import each
from tests.support.flows.driven import CONFIRM, ORIGIN, Driven, begun, data, labels


def work(number: int = 0) -> int:
    return number


@flow
async def ask(ctx: FlowContext, peer: str) -> list[str]:
    session = ctx.open_session(peer)
    await session.send("one")
    await session.send("two")
    return [await session.receive(str), await session.receive(str)]


@responder(ask, app="bank", version=4)
async def answer(ctx: FlowContext, session: FlowSession) -> str:
    text = await session.receive(str)
    await session.send(text.upper())
    return text


def test_initiator_sends_and_responder_replies() -> None:
    driven = Driven(ask, "beta")
    outgoing = driven.tell(FlowAdmitted()).outgoing
    assert outgoing == {1: [SessionInit("ask", 1, "", encode_value("one", "it")), data("two")]}
    assert driven.waiting == ["2 receive(beta)"]
    assert driven.head.wake_ms is None
    driven = Driven(answer, initiated_by=ORIGIN, settings={"app": "bank"})
    first = driven.tell(
        FlowAdmitted([SessionInit("ask", 3, "shop", encode_value("x", "it"))], "row")
    )
    assert (first.is_new, first.is_ended, first.ack_tokens) == (True, True, ["row"])
    assert first.outgoing == {0: [SessionConfirm("answer", 4, "bank"), data("X"), SessionClose()]}
    assert labels(first) == ["0 receive(beta)", "1 send(beta)"]
    assert driven.result == "x"


def test_message_received_at_once_is_not_buffered() -> None:
    driven = begun(ask, "beta")
    transition = driven.tell(SessionMessagesReceived(1, [CONFIRM, data("a")], "row 1", "beta"))
    assert (transition.ack_tokens, labels(transition)) == (["row 1"], ["2 receive(beta)"])
    assert [message.message for _, message in transition.buffered] == [CONFIRM]
    assert transition.consumed_ids == []
    last = driven.tell(
        SessionMessagesReceived(1, [data("b"), data("c"), SessionClose()], "row 2", "beta")
    )
    assert driven.result == ["a", "b"]
    assert (last.ack_tokens, last.buffered, last.outgoing) == (["row 2"], [], {})


def test_message_received_later_is_buffered_and_consumed() -> None:
    @flow
    async def busy(ctx: FlowContext) -> str:
        session = ctx.open_session("beta")
        await session.send(1)
        await ctx.step(work)
        return await session.receive(str)

    driven = begun(busy)
    transition = driven.tell(SessionMessagesReceived(1, [CONFIRM, data("a")], "row"))
    assert [message.message for _, message in transition.buffered] == [CONFIRM, data("a")]
    assert labels(transition) == []
    done = driven.tell(StepCompleted((1,), 0))
    assert len(done.consumed_ids) == 1
    assert (driven.result, done.outgoing) == ("a", {1: [SessionClose()]})
    assert driven.stored.mail == ()


@each(FlowStatus.HELD, FlowStatus.QUEUED)
def test_held_responder_buffers_messages_until_started_or_killed(status: FlowStatus) -> None:
    driven = Driven(answer, initiated_by=ORIGIN, status=status)
    first = driven.tell(FlowAdmitted([SessionInit("ask", 3, "shop"), data("x")], "row"))
    assert (first.outgoing, len(first.buffered), driven.machine.code) == ({}, 1, None)
    assert driven.head.wake_ms is None
    driven.load()
    began = driven.tell(FlowReleased())
    assert driven.result == "x"
    assert began.outgoing == {0: [SessionConfirm("answer", 4, ""), data("X"), SessionClose()]}
    driven = Driven(answer, initiated_by=ORIGIN, status=status)
    driven.tell(FlowAdmitted([SessionInit("ask", 3, "shop"), data("x")], "row"))
    killed = driven.tell(FlowKillRequested("not today"))
    (rejection,) = killed.outgoing[0]
    assert isinstance(rejection, SessionReject)
    assert rejection.text == "not today"
    assert (killed.is_ended, driven.stored.mail) == (True, ())


@each((1, "gamma"), (2, "beta"), (0, "beta"), (-1, "beta"), (99, ""))
def test_message_of_unknown_session_or_peer_is_ignored(number: int, peer: str) -> None:
    driven = begun(ask, "beta")
    transition = driven.tell(
        SessionMessagesReceived(number, [CONFIRM, data("forged")], "row", peer)
    )
    assert (transition.ack_tokens, transition.buffered, transition.entries) == (["row"], [], [])


def test_invalid_session_message_fails_flow_or_is_ignored() -> None:
    driven = begun(ask, "beta")
    assert driven.tell(SessionMessagesReceived(1, [data("early"), SessionClose()])).buffered == []
    driven.tell(SessionMessagesReceived(1, [CONFIRM, data("a"), data("b")]))
    assert driven.result == ["a", "b"]
    driven = begun(ask, "beta")
    driven.tell(SessionMessagesReceived(1, [SessionReject("closed on Sundays", "e1")]))
    assert "SessionRejectedError" in driven.trouble
    assert "closed on Sundays" in driven.trouble
    driven = begun(ask, "beta")
    done = driven.tell(SessionMessagesReceived(1, [CONFIRM, data(7)]))
    assert driven.head.status is FlowStatus.FAILED
    assert "2 receive(beta) got a value of another type" in driven.trouble
    (failed,) = done.outgoing[1]
    assert isinstance(failed, SessionError)
    assert failed.kind == "FlowError"


def test_session_buffer_overflow_fails_both_ends() -> None:
    @flow
    async def deaf(ctx: FlowContext) -> list[str]:
        session = ctx.open_session("beta")
        await session.send(1)
        await ctx.step(work)
        texts = []
        try:
            while True:
                texts.append(await session.receive(str))
        except FlowError as error:
            return [*texts, str(error)]

    driven = begun(deaf, settings={"buffer_max": 3})
    driven.tell(SessionMessagesReceived(1, [CONFIRM, data("a"), data("b")]))
    flood = driven.tell(SessionMessagesReceived(1, [data(letter) for letter in "cdef"]))
    (failed,) = flood.outgoing[1]
    assert isinstance(failed, SessionError)
    assert failed.kind == "Overflow"
    more = driven.tell(SessionMessagesReceived(1, [data("g"), SessionClose()]))
    assert more.is_empty
    driven.load()
    assert driven.tell(SessionMessagesReceived(1, [data("h")])).is_empty
    over = driven.tell(StepCompleted((1,), 0))
    assert driven.result[:3] == ["a", "b", "c"]
    assert "more than 3 messages wait" in driven.result[3]
    assert over.outgoing == {}


@each(
    (SessionClose(), "SessionEndedError"),
    (SessionError("e7"), "PeerFlowFailedError"),
    (SessionError("e7", "Insolvent", "no money"), "PeerFlowFailedError"),
)
def test_early_session_end_fails_flow_without_notifying_peer(message: Any, expected: str) -> None:
    driven = begun(ask, "beta")
    over = driven.tell(SessionMessagesReceived(1, [CONFIRM, data("a"), message]))
    assert driven.head.status is FlowStatus.FAILED
    assert expected in driven.trouble
    assert over.outgoing == {}
    assert driven.head.failure is not None
    if isinstance(message, SessionError):
        assert driven.head.failure.error_id == "e7"


def test_after_the_end_nothing_can_be_sent() -> None:
    @flow
    async def stubborn(ctx: FlowContext) -> str:
        session = ctx.open_session("beta")
        await session.send(1)
        await ctx.step(work)
        try:
            await session.send(2)
        except FlowError as error:
            return str(error)
        return "sent"

    driven = begun(stubborn)
    driven.tell(SessionMessagesReceived(1, [CONFIRM, SessionError("e7", "Insolvent", "no money")]))
    done = driven.tell(StepCompleted((1,), 0))
    assert driven.result == "the flow of beta has failed: no money"
    assert (done.outgoing, labels(done)) == ({}, ["1 step(work)", "2 send(beta)"])


def test_closed_session_cannot_be_used_again() -> None:
    @flow
    async def confused(ctx: FlowContext) -> None:
        session = ctx.open_session("beta")
        await session.send(1)
        await session.close()
        await session.send(2)

    driven = begun(confused)
    assert driven.head.status is FlowStatus.PARKED
    assert "the session with beta was closed here" in driven.trouble
    assert driven.said == [(1, SessionInit("confused", 1, "", b"\x01")), (1, SessionClose())]

    @flow
    async def receives(ctx: FlowContext) -> int:
        session = ctx.open_session("beta")
        await session.close()
        return await session.receive(int)

    driven = begun(receives)
    assert driven.head.status is FlowStatus.PARKED
    assert "the session with beta was closed here" in driven.trouble
    assert driven.said == []


@each(SessionReject("no", "e1"), SessionError("e1"))
def test_rejected_peer_info_request_sends_nothing_more(message: Any) -> None:
    @flow
    async def curious(ctx: FlowContext) -> str:
        session = ctx.open_session("beta")
        try:
            await session.peer_info()
        except FlowError:
            await ctx.step(work)
        return "done"

    driven = begun(curious)
    driven.tell(SessionMessagesReceived(1, [message]))
    driven.load()
    assert driven.tell(StepCompleted((2,), 0)).outgoing == {}
    assert driven.result == "done"


def test_of_several_sessions_only_those_that_ended_have_ended() -> None:
    @flow
    async def poll(ctx: FlowContext) -> list[Any]:
        beta, gamma = ctx.open_session("beta"), ctx.open_session("gamma")
        try:
            await ctx.receive_all([beta, gamma], int)
        except FlowError as error:
            return [str(error), await gamma.receive(int)]
        return []

    driven = begun(poll)
    driven.tell(SessionMessagesReceived(1, [CONFIRM, SessionClose()]))
    driven.load()
    assert driven.waiting == ["2 receive(gamma)"]
    over = driven.tell(SessionMessagesReceived(2, [CONFIRM, data(9)]))
    assert driven.result == ["beta has ended this session before everything was received", 9]
    assert over.outgoing == {2: [SessionClose()]}


def test_several_sessions_are_received_from_together() -> None:
    @flow
    async def poll(ctx: FlowContext) -> list[int]:
        beta, gamma = ctx.open_session("beta"), ctx.open_session("gamma")
        await ctx.send_all({beta: 1, gamma: 2})
        return await ctx.receive_all([gamma, beta], int)

    driven = begun(poll)
    assert [number for number, _ in driven.said] == [1, 2]
    driven.tell(SessionMessagesReceived(1, [CONFIRM, data(10)]))
    done = driven.tell(SessionMessagesReceived(2, [CONFIRM, data(20)]))
    assert labels(done) == ["1 receive(gamma, beta)"]
    assert driven.result == [20, 10]


def test_peer_info_survives_reload() -> None:
    @flow
    async def curious(ctx: FlowContext) -> list[Any]:
        session = ctx.open_session("beta")
        number = await session.receive(int)
        await ctx.wait_for_signal("go", int)
        return [number, (await session.peer_info()).name]

    driven = begun(curious)
    driven.tell(SessionMessagesReceived(1, [CONFIRM, data(1)]))
    driven.load()
    driven.tell(SignalReceived("go", b"\x01"))
    assert driven.result == [1, "answer"]


def test_concurrent_receives_get_messages_buffered_during_pause() -> None:
    @flow
    async def two(ctx: FlowContext) -> list[int]:
        beta, gamma = ctx.open_session("beta"), ctx.open_session("gamma")
        return await ctx.gather(beta.receive(int), gamma.receive(int))

    driven = begun(two)
    driven.tell(FlowPauseRequested())
    driven.tell(SessionMessagesReceived(1, [CONFIRM, data(1)]))
    driven.tell(SessionMessagesReceived(2, [CONFIRM, data(2)]))
    assert driven.head.status is FlowStatus.PAUSED
    driven.tell(FlowResumeRequested())
    assert driven.result == [1, 2]
    assert [number for number, _ in driven.said] == [1, 2, 1, 2]


def test_signal_that_is_taken_at_once_leaves_the_others_to_be_stored() -> None:
    machine = Driven(ask, "beta").machine
    transition = FlowTransition(0)
    for name in ("go", "stop"):
        signal = SignalReceived(name, encode_value(7, "it"))
        machine.sessions.on_signal(signal, transition, is_awaited=False)
    command = WaitForSignal("go", int)
    assert machine.sessions.try_complete(command, transition) == encode_value(7, "it")
    assert [signal.name for signal in transition.signals] == ["stop"]
