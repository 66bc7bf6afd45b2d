"""What the machine of a flow says and hears in sessions, driven by hand."""

from typing import Any

from postroad.flows import Flow, Session, Status, flow, responds_to
from postroad.flows.errors import FlowError
from postroad.flows.events import (
    Admitted,
    Began,
    Heard,
    Killed,
    Paused,
    Resumed,
    Signalled,
    StepDone,
)
from postroad.flows.messages import Confirm, End, Failed, Initial, Rejection
from postroad.flows.values import encode
from tests.support.cases import each
from tests.support.flows.driven import CONFIRM, ORIGIN, Driven, begun, data, labels


def work(number: int = 0) -> int:
    return number


@flow
async def ask(flow: Flow, peer: str) -> list[str]:
    session = flow.open(peer)
    await session.send("one")
    await session.send("two")
    return [await session.receive(str), await session.receive(str)]


@responds_to(ask, app="bank", version=4)
async def answer(flow: Flow, session: Session) -> str:
    heard = await session.receive(str)
    await session.send(heard.upper())
    return heard


def test_initiator_says_everything_and_responder_answers() -> None:
    driven = Driven(ask, "beta")
    said = driven.tell(Admitted()).says
    assert said == {1: [Initial("ask", 1, "", encode("one", "it")), data("two")]}
    assert driven.waiting == ["2 receive(beta)"]
    assert driven.head.wake_ms is None
    driven = Driven(answer, origin=ORIGIN, settings={"app": "bank"})
    first = driven.tell(Admitted([Initial("ask", 3, "shop", encode("x", "it"))], "row"))
    assert (first.is_new, first.is_over, first.receipts) == (True, True, ["row"])
    assert first.says == {0: [Confirm("answer", 4, "bank"), data("X"), End()]}
    assert labels(first) == ["0 receive(beta)", "1 send(beta)"]
    assert driven.result == "x"


def test_what_is_received_at_once_is_not_kept() -> None:
    driven = begun(ask, "beta")
    heard = driven.tell(Heard(1, [CONFIRM, data("a")], "row 1", "beta"))
    assert (heard.receipts, labels(heard)) == (["row 1"], ["2 receive(beta)"])
    assert [it.message for _, it in heard.keeps] == [CONFIRM]
    assert heard.takes == []
    last = driven.tell(Heard(1, [data("b"), data("c"), End()], "row 2", "beta"))
    assert driven.result == ["a", "b"]
    assert (last.receipts, last.keeps, last.says) == (["row 2"], [], {})


def test_what_is_received_later_is_kept_and_taken() -> None:
    @flow
    async def busy(flow: Flow) -> str:
        session = flow.open("beta")
        await session.send(1)
        await flow.step(work)
        return await session.receive(str)

    driven = begun(busy)
    heard = driven.tell(Heard(1, [CONFIRM, data("a")], "row"))
    assert [it.message for _, it in heard.keeps] == [CONFIRM, data("a")]
    assert labels(heard) == []
    done = driven.tell(StepDone((1,), 0))
    assert len(done.takes) == 1
    assert (driven.result, done.says) == ("a", {1: [End()]})
    assert driven.stored.mail == ()


@each(Status.HELD, Status.QUEUED)
def test_responder_that_may_not_begin_keeps_its_mail_or_is_killed(status: Status) -> None:
    driven = Driven(answer, origin=ORIGIN, status=status)
    first = driven.tell(Admitted([Initial("ask", 3, "shop"), data("x")], "row"))
    assert (first.says, len(first.keeps), driven.machine.code) == ({}, 1, None)
    assert driven.head.wake_ms is None
    driven.load()
    began = driven.tell(Began())
    assert driven.result == "x"
    assert began.says == {0: [Confirm("answer", 4, ""), data("X"), End()]}
    driven = Driven(answer, origin=ORIGIN, status=status)
    driven.tell(Admitted([Initial("ask", 3, "shop"), data("x")], "row"))
    killed = driven.tell(Killed("not today"))
    (rejection,) = killed.says[0]
    assert isinstance(rejection, Rejection)
    assert rejection.text == "not today"
    assert (killed.is_over, driven.stored.mail) == (True, ())


@each((1, "gamma"), (2, "beta"), (0, "beta"), (-1, "beta"), (99, ""))
def test_what_somebody_else_says_is_consumed_and_ignored(number: int, peer: str) -> None:
    driven = begun(ask, "beta")
    heard = driven.tell(Heard(number, [CONFIRM, data("forged")], "row", peer))
    assert (heard.receipts, heard.keeps, heard.records) == (["row"], [], [])


def test_mail_that_does_not_fit_fails_the_flow_or_is_ignored() -> None:
    driven = begun(ask, "beta")
    assert driven.tell(Heard(1, [data("early"), End()])).keeps == []
    driven.tell(Heard(1, [CONFIRM, data("a"), data("b")]))
    assert driven.result == ["a", "b"]
    driven = begun(ask, "beta")
    driven.tell(Heard(1, [Rejection("closed on Sundays", "e1")]))
    assert "SessionRejected" in driven.trouble
    assert "closed on Sundays" in driven.trouble
    driven = begun(ask, "beta")
    done = driven.tell(Heard(1, [CONFIRM, data(7)]))
    assert driven.head.status is Status.FAILED
    assert "2 receive(beta) got something else than it wants" in driven.trouble
    (failed,) = done.says[1]
    assert isinstance(failed, Failed)
    assert failed.kind == "FlowError"


def test_too_much_ends_the_session_for_both() -> None:
    @flow
    async def deaf(flow: Flow) -> list[str]:
        session = flow.open("beta")
        await session.send(1)
        await flow.step(work)
        heard = []
        try:
            while True:
                heard.append(await session.receive(str))
        except FlowError as error:
            return [*heard, str(error)]

    driven = begun(deaf, settings={"heard_max": 3})
    driven.tell(Heard(1, [CONFIRM, data("a"), data("b")]))
    flood = driven.tell(Heard(1, [data(it) for it in "cdef"]))
    (failed,) = flood.says[1]
    assert isinstance(failed, Failed)
    assert failed.kind == "Overflow"
    more = driven.tell(Heard(1, [data("g"), End()]))
    assert more.is_empty
    driven.load()
    assert driven.tell(Heard(1, [data("h")])).is_empty
    over = driven.tell(StepDone((1,), 0))
    assert driven.result[:3] == ["a", "b", "c"]
    assert "more than 3 messages wait" in driven.result[3]
    assert over.says == {}


@each(
    (End(), "SessionEnded"),
    (Failed("e7"), "PeerFailed"),
    (Failed("e7", "Insolvent", "no money"), "PeerFailed"),
)
def test_session_that_ends_early_fails_the_flow_but_is_not_told_back(
    message: Any, expected: str
) -> None:
    driven = begun(ask, "beta")
    over = driven.tell(Heard(1, [CONFIRM, data("a"), message]))
    assert driven.head.status is Status.FAILED
    assert expected in driven.trouble
    assert over.says == {}
    assert driven.head.trouble is not None
    if isinstance(message, Failed):
        assert driven.head.trouble.error_id == "e7"


def test_after_the_end_nothing_can_be_sent() -> None:
    @flow
    async def stubborn(flow: Flow) -> str:
        session = flow.open("beta")
        await session.send(1)
        await flow.step(work)
        try:
            await session.send(2)
        except FlowError as error:
            return str(error)
        return "sent"

    driven = begun(stubborn)
    driven.tell(Heard(1, [CONFIRM, Failed("e7", "Insolvent", "no money")]))
    done = driven.tell(StepDone((1,), 0))
    assert driven.result == "the flow of beta has failed: no money"
    assert (done.says, labels(done)) == ({}, ["1 step(work)", "2 send(beta)"])


def test_closed_session_cannot_be_used_again() -> None:
    @flow
    async def confused(flow: Flow) -> None:
        session = flow.open("beta")
        await session.send(1)
        await session.close()
        await session.send(2)

    driven = begun(confused)
    assert driven.head.status is Status.PARKED
    assert "the session with beta was closed here" in driven.trouble
    assert driven.said == [(1, Initial("confused", 1, "", b"\x01")), (1, End())]

    @flow
    async def receives(flow: Flow) -> int:
        session = flow.open("beta")
        await session.close()
        return await session.receive(int)

    driven = begun(receives)
    assert driven.head.status is Status.PARKED
    assert "the session with beta was closed here" in driven.trouble
    assert driven.said == []


@each(Rejection("no", "e1"), Failed("e1"))
def test_one_that_asked_in_vain_who_is_there_says_nothing_more_there(message: Any) -> None:
    @flow
    async def curious(flow: Flow) -> str:
        session = flow.open("beta")
        try:
            await session.info()
        except FlowError:
            await flow.step(work)
        return "done"

    driven = begun(curious)
    driven.tell(Heard(1, [message]))
    driven.load()
    assert driven.tell(StepDone((2,), 0)).says == {}
    assert driven.result == "done"


def test_of_several_sessions_only_those_that_ended_have_ended() -> None:
    @flow
    async def poll(flow: Flow) -> list[Any]:
        beta, gamma = flow.open("beta"), flow.open("gamma")
        try:
            await flow.receive_all([beta, gamma], int)
        except FlowError as error:
            return [str(error), await gamma.receive(int)]
        return []

    driven = begun(poll)
    driven.tell(Heard(1, [CONFIRM, End()]))
    driven.load()
    assert driven.waiting == ["2 receive(gamma)"]
    over = driven.tell(Heard(2, [CONFIRM, data(9)]))
    assert driven.result == ["beta has ended this session, and more was expected of it", 9]
    assert over.says == {2: [End()]}


def test_several_sessions_are_received_from_together() -> None:
    @flow
    async def poll(flow: Flow) -> list[int]:
        beta, gamma = flow.open("beta"), flow.open("gamma")
        await flow.send_all({beta: 1, gamma: 2})
        return await flow.receive_all([gamma, beta], int)

    driven = begun(poll)
    assert [number for number, _ in driven.said] == [1, 2]
    driven.tell(Heard(1, [CONFIRM, data(10)]))
    done = driven.tell(Heard(2, [CONFIRM, data(20)]))
    assert labels(done) == ["1 receive(gamma, beta)"]
    assert driven.result == [20, 10]


def test_other_end_is_known_also_after_it_was_loaded_again() -> None:
    @flow
    async def curious(flow: Flow) -> list[Any]:
        session = flow.open("beta")
        heard = await session.receive(int)
        await flow.signal("go", int)
        return [heard, (await session.info()).name]

    driven = begun(curious)
    driven.tell(Heard(1, [CONFIRM, data(1)]))
    driven.load()
    driven.tell(Signalled("go", b"\x01"))
    assert driven.result == [1, "answer"]


def test_two_that_wait_get_what_came_while_nobody_ran() -> None:
    @flow
    async def two(flow: Flow) -> list[int]:
        beta, gamma = flow.open("beta"), flow.open("gamma")
        return await flow.gather(beta.receive(int), gamma.receive(int))

    driven = begun(two)
    driven.tell(Paused())
    driven.tell(Heard(1, [CONFIRM, data(1)]))
    driven.tell(Heard(2, [CONFIRM, data(2)]))
    assert driven.head.status is Status.PAUSED
    driven.tell(Resumed())
    assert driven.result == [1, 2]
    assert [number for number, _ in driven.said] == [1, 2, 1, 2]
