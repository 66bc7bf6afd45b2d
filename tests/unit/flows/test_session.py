"""One end of a session: the whole table, and what is heard."""

from itertools import product

import pytest

from postroad.flows.messages import (
    Confirm,
    Data,
    End,
    Failed,
    Initial,
    Message,
    Rejection,
    SessionKey,
)
from postroad.flows.session import TABLE, Cause, PeerInfo, Reaction, SessionEnd, State

OWN = (Cause.SEND, Cause.CLOSE, Cause.FAIL)
MESSAGES: dict[Cause, Message] = {
    Cause.CONFIRM: Confirm("answer", 2, "bank"),
    Cause.REJECT: Rejection("no", "e1"),
    Cause.DATA: Data(b"x"),
    Cause.ERROR: Failed("e1"),
    Cause.END: End(),
}


def end_in(state: State) -> SessionEnd:
    end = SessionEnd(SessionKey(9, 1), "beta", 1, is_initiator=True)
    end.state = state
    return end


def test_every_cause_is_of_this_end_or_of_the_other() -> None:
    assert {*OWN, *MESSAGES} == set(Cause)


@pytest.mark.parametrize(("state", "cause"), [*product(State, OWN)])
def test_this_end_may_try_everything_everywhere(state: State, cause: Cause) -> None:
    assert (state, cause) in TABLE
    end = end_in(state)
    assert end.do(cause) is TABLE[state, cause].reaction
    assert end.state is TABLE[state, cause].state


@pytest.mark.parametrize(("state", "cause"), [*product(State, MESSAGES)])
def test_what_the_other_end_says_is_kept_by_the_table_or_ignored(
    state: State, cause: Cause
) -> None:
    end = end_in(state)
    move = TABLE.get((state, cause))
    is_kept = end.hear(MESSAGES[cause])
    assert is_kept == (move is not None and move.reaction is Reaction.KEEP)
    assert end.state is (move.state if is_kept and move is not None else state)


def test_nothing_is_heard_before_the_other_end_was_asked() -> None:
    assert not [it for it in MESSAGES if (State.FRESH, it) in TABLE]


@pytest.mark.parametrize("state", [State.ENDED, State.CLOSED])
def test_nothing_is_said_where_one_has_ended(state: State) -> None:
    said = {Reaction.SAY_INITIAL, Reaction.SAY_DATA, Reaction.SAY_END, Reaction.SAY_ERROR}
    for cause in OWN:
        assert TABLE[state, cause].reaction not in said


def test_a_closed_end_stays_closed() -> None:
    assert {it.state for (state, _), it in TABLE.items() if state is State.CLOSED} == {State.CLOSED}


def test_an_ended_one_is_opened_by_nothing() -> None:
    states = {it.state for (state, _), it in TABLE.items() if state is State.ENDED}
    assert states == {State.ENDED, State.CLOSED}


def test_every_state_is_reachable() -> None:
    reached, rising = {State.FRESH}, True
    while rising:
        more = {it.state for (state, _), it in TABLE.items() if state in reached}
        rising = not more <= reached
        reached |= more
    assert reached == set(State)


def test_own_and_other_ends_react_in_their_own_ways() -> None:
    for (_, cause), move in TABLE.items():
        heard = {Reaction.KEEP, Reaction.IGNORE}
        assert (move.reaction in heard) if cause in MESSAGES else move.reaction is not Reaction.KEEP


def test_a_responder_is_open_from_the_beginning() -> None:
    end = SessionEnd(SessionKey(9, 1), "beta", 0, is_initiator=False)
    assert end.state is State.OPEN
    assert not end.hear(Initial("ask", 3, "shop"))
    assert end.info == PeerInfo("ask", 3, "shop")
    assert end.hear(Initial("ask", 3, "shop", b"first"))


@pytest.mark.parametrize("state", sorted({*State} - {State.OPEN}))
def test_nothing_is_opened_after_the_end(state: State) -> None:
    end = SessionEnd(SessionKey(9, 1), "beta", 0, is_initiator=False)
    end.state = state
    assert not end.hear(Initial("ask", 3, "shop", b"again"))
    assert end.state is state


def test_a_confirmation_tells_who_it_is() -> None:
    end = end_in(State.INITIATING)
    assert end.hear(MESSAGES[Cause.CONFIRM])
    assert end.info == PeerInfo("answer", 2, "bank")
    assert end.state is State.OPEN


def test_how_an_end_is_shown() -> None:
    assert repr(end_in(State.OPEN)) == "<SessionEnd 1 with beta open>"
