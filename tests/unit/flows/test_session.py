"""One end of a session: what it says, what it hears, and where that leads."""

from itertools import product

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
from postroad.flows.session import Cause, PeerInfo, SessionEnd, State
from tests.support.cases import each

# By state and by what this end does: what it says, and the state after that.
SPOKEN = {
    "fresh": {
        "send": ("say initial", "initiating"),
        "close": ("ignore", "closed"),
        "fail": ("ignore", "closed"),
    },
    "initiating": {
        "send": ("say data", "initiating"),
        "close": ("say end", "closed"),
        "fail": ("say error", "closed"),
    },
    "open": {
        "send": ("say data", "open"),
        "close": ("say end", "closed"),
        "fail": ("say error", "closed"),
    },
    "ended": {
        "send": ("refuse", "ended"),
        "close": ("ignore", "closed"),
        "fail": ("ignore", "closed"),
    },
    "closed": {
        "send": ("refuse", "closed"),
        "close": ("ignore", "closed"),
        "fail": ("ignore", "closed"),
    },
}
# By state: what is kept of what the other end says, and the state after that. All else is ignored.
KEPT = {
    "fresh": {},
    "initiating": {"confirm": "open", "reject": "ended", "error": "ended"},
    "open": {"data": "open", "error": "ended", "end": "ended"},
    "ended": {},
    "closed": {},
}
MESSAGES: dict[Cause, Message] = {
    Cause.CONFIRM: Confirm("answer", 2, "bank"),
    Cause.REJECT: Rejection("no", "e1"),
    Cause.DATA: Data(b"x"),
    Cause.ERROR: Failed("e1"),
    Cause.END: End(),
}


def end_in(state: State, *, is_initiator: bool = True) -> SessionEnd:
    end = SessionEnd(SessionKey(9, 1), "beta", 1, is_initiator=is_initiator)
    end.state = state
    return end


def test_what_this_end_does_is_said_refused_or_ignored_by_its_state() -> None:
    own = [it for it in Cause if it not in MESSAGES]
    for state, cause in product(State, own):
        end = end_in(state)
        assert (end.do(cause), end.state) == SPOKEN[state][cause], (state, cause)


def test_confirmation_tells_who_is_at_the_other_end() -> None:
    for state, (cause, message) in product(State, MESSAGES.items()):
        end = end_in(state)
        assert end.hear(message) == (cause in KEPT[state]), (state, cause)
        assert end.state == KEPT[state].get(cause, state), (state, cause)
    end = end_in(State.INITIATING)
    assert end.hear(MESSAGES[Cause.CONFIRM])
    assert end.info == PeerInfo("answer", 2, "bank")
    assert repr(end) == "<SessionEnd 1 with beta open>"


@each(*State)
def test_responder_is_open_from_the_beginning_and_is_never_opened_again(state: State) -> None:
    fresh = SessionEnd(SessionKey(9, 1), "beta", 0, is_initiator=False)
    assert fresh.state is State.OPEN
    assert not fresh.hear(Initial("ask", 3, "shop"))
    assert fresh.info == PeerInfo("ask", 3, "shop")
    end = end_in(state, is_initiator=False)
    assert end.hear(Initial("ask", 3, "shop", b"first")) == (state is State.OPEN)
    assert end.state is state
