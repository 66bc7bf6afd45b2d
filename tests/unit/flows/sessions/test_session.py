"""One end of a session: what it says, what it hears, and where that leads."""

from itertools import product

from postroad.flows.sessions.messages import (
    SessionClose,
    SessionConfirm,
    SessionData,
    SessionError,
    SessionInit,
    SessionKey,
    SessionMessage,
    SessionReject,
)
from postroad.flows.sessions.session import (
    PeerFlowInfo,
    SessionEndpoint,
    SessionState,
    SessionTrigger,
)
from tests.support.cases import each

# By state and by what this end does: what it says, and the state after that.
SPOKEN = {
    "fresh": {
        "send": ("send init", "initiating"),
        "close": ("ignore", "closed"),
        "fail": ("ignore", "closed"),
    },
    "initiating": {
        "send": ("send data", "initiating"),
        "close": ("send close", "closed"),
        "fail": ("send error", "closed"),
    },
    "open": {
        "send": ("send data", "open"),
        "close": ("send close", "closed"),
        "fail": ("send error", "closed"),
    },
    "ended": {
        "send": ("reject", "ended"),
        "close": ("ignore", "closed"),
        "fail": ("ignore", "closed"),
    },
    "closed": {
        "send": ("reject", "closed"),
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
MESSAGES: dict[SessionTrigger, SessionMessage] = {
    SessionTrigger.CONFIRM: SessionConfirm("answer", 2, "bank"),
    SessionTrigger.REJECT: SessionReject("no", "e1"),
    SessionTrigger.DATA: SessionData(b"x"),
    SessionTrigger.ERROR: SessionError("e1"),
    SessionTrigger.END: SessionClose(),
}


def end_in(state: SessionState, *, is_initiator: bool = True) -> SessionEndpoint:
    endpoint = SessionEndpoint(SessionKey(9, 1), "beta", 1, is_initiator=is_initiator)
    endpoint.state = state
    return endpoint


def test_local_triggers_follow_session_table() -> None:
    own = [trigger for trigger in SessionTrigger if trigger not in MESSAGES]
    for state, trigger in product(SessionState, own):
        endpoint = end_in(state)
        assert (endpoint.apply(trigger), endpoint.state) == SPOKEN[state][trigger], (state, trigger)


def test_confirm_contains_peer_info() -> None:
    for state, (trigger, message) in product(SessionState, MESSAGES.items()):
        endpoint = end_in(state)
        assert endpoint.on_message(message) == (trigger in KEPT[state]), (state, trigger)
        assert endpoint.state == KEPT[state].get(trigger, state), (state, trigger)
    endpoint = end_in(SessionState.INITIATING)
    assert endpoint.on_message(MESSAGES[SessionTrigger.CONFIRM])
    assert endpoint.info == PeerFlowInfo("answer", 2, "bank")
    assert repr(endpoint) == "<SessionEndpoint 1 with beta open>"


@each(*SessionState)
def test_responder_is_open_from_the_beginning_and_is_never_opened_again(
    state: SessionState,
) -> None:
    fresh = SessionEndpoint(SessionKey(9, 1), "beta", 0, is_initiator=False)
    assert fresh.state is SessionState.OPEN
    assert not fresh.on_message(SessionInit("ask", 3, "shop"))
    assert fresh.info == PeerFlowInfo("ask", 3, "shop")
    endpoint = end_in(state, is_initiator=False)
    assert endpoint.on_message(SessionInit("ask", 3, "shop", b"first")) == (
        state is SessionState.OPEN
    )
    assert endpoint.state is state
