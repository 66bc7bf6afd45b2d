"""Which frame may arrive when: the table, then every case of it through a connection."""

import itertools
from typing import get_args

import pytest

from postroad.core.errors import LocalProtocolError, UnexpectedFrameError
from postroad.wire import (
    ConnectionRole,
    ConnectionState,
    GoodbyeFrame,
    HelloFrame,
    ReplyFrame,
    RequestFrame,
)
from postroad.wire.frame_rules import (
    LENIENT,
    STRICT,
    TRANSITIONS,
    TUNNEL,
    FrameAction,
    frame_action,
    transition,
)
from postroad.wire.frames import CancelFrame, Frame, PingFrame, PongFrame, ProofFrame
from tests.support.wire.pairs import (
    Side,
    cut_version3,
    greeted_side,
    open_side,
    version3_frame,
    version3_sample,
)
from tests.support.wire.tunnel_ends import tunnel_side

KINDS: list[type[Frame]] = list(get_args(Frame))
ROLES = list(ConnectionRole)

# Written down once more and in another shape: who may hear which frame, and in which phases.
TALKING = {ConnectionState.OPEN, ConnectionState.DRAINING}
LEGAL: dict[type[Frame], dict[ConnectionRole, set[ConnectionState]]] = {
    RequestFrame: {ConnectionRole.SERVER: TALKING, ConnectionRole.CLIENT: set()},
    ReplyFrame: {ConnectionRole.SERVER: set(), ConnectionRole.CLIENT: TALKING},
    HelloFrame: {
        ConnectionRole.SERVER: {ConnectionState.AWAITING_HELLO},
        ConnectionRole.CLIENT: {ConnectionState.AWAITING_HELLO},
    },
    CancelFrame: {ConnectionRole.SERVER: TALKING, ConnectionRole.CLIENT: set()},
    PingFrame: {ConnectionRole.SERVER: TALKING, ConnectionRole.CLIENT: TALKING},
    PongFrame: {ConnectionRole.SERVER: TALKING, ConnectionRole.CLIENT: TALKING},
    GoodbyeFrame: {
        ConnectionRole.SERVER: TALKING,
        ConnectionRole.CLIENT: TALKING
        | {ConnectionState.AWAITING_HELLO, ConnectionState.AWAITING_PROOF},
    },
    ProofFrame: {
        ConnectionRole.SERVER: {ConnectionState.AWAITING_PROOF},
        ConnectionRole.CLIENT: {ConnectionState.AWAITING_PROOF},
    },
}
CASES = list(itertools.product(ROLES, ConnectionState, KINDS))
# The same for tunnels, where both sides hear the same once they have said hello.
TUNNEL_LEGAL: dict[type[Frame], set[ConnectionState]] = {
    RequestFrame: TALKING | {ConnectionState.AWAITING_TUNNEL},
    ReplyFrame: set(),
    HelloFrame: set(),
    CancelFrame: set(),
    PingFrame: TALKING | {ConnectionState.AWAITING_TUNNEL},
    PongFrame: TALKING,
    GoodbyeFrame: TALKING | {ConnectionState.AWAITING_TUNNEL},
    ProofFrame: set(),
}


def test_the_tables_name_all_frames_and_no_others() -> None:
    assert set(LEGAL) == set(TUNNEL_LEGAL) == set(KINDS)
    for accepted in (*STRICT.values(), *TUNNEL.values(), *LENIENT.values()):
        assert accepted <= set(KINDS)
    assert {role for role, _ in STRICT} == set(LENIENT) == set(ROLES)


def test_version_3_and_tunnels_are_strict_and_older_versions_ignore() -> None:
    for case in CASES:
        receiver, state, kind = case
        expected = FrameAction.ACCEPT if state in LEGAL[kind][receiver] else FrameAction.REJECT
        assert frame_action(3, receiver, state, kind) is expected, case
        expected = FrameAction.ACCEPT if state in TUNNEL_LEGAL[kind] else FrameAction.REJECT
        assert frame_action(3, receiver, state, kind, is_tunnel=True) is expected, case
        accepted = RequestFrame if receiver is ConnectionRole.SERVER else ReplyFrame
        expected = FrameAction.ACCEPT if kind is accepted else FrameAction.IGNORE
        for version in (1, 2):
            assert frame_action(version, receiver, state, kind) is expected, case


def side_in(receiver: ConnectionRole, state: ConnectionState) -> Side:
    if state is ConnectionState.AWAITING_HELLO:
        return open_side(receiver, 3)
    side = greeted_side(receiver)
    if state is ConnectionState.DRAINING:
        side.give(version3_frame(7, b"stopping"))
    side.take()
    assert side.machine.state is state
    return side


def test_a_connection_keeps_the_table() -> None:
    for case in [case for case in CASES if case[1] in (ConnectionState.AWAITING_HELLO, *TALKING)]:
        receiver, state, kind = case
        side = side_in(receiver, state)
        side.events.clear()
        side.give(version3_sample(kind, receiver))
        if state in LEGAL[kind][receiver]:
            assert side.failure is None, case
        else:
            assert isinstance(side.failure, UnexpectedFrameError), case
            assert (side.events, side.machine.state) == ([], ConnectionState.CLOSED), case
            assert cut_version3(side.take())[-1].kind == 7, f"{case}: the peer is told goodbye"


def tunnel_in(receiver: ConnectionRole, state: ConnectionState) -> Side:
    side = tunnel_side(receiver, is_taken=state is not ConnectionState.AWAITING_TUNNEL)
    if state is ConnectionState.DRAINING:
        side.give(version3_frame(7, b"stopping"))
    side.take()
    assert side.machine.state is state
    return side


def test_a_tunnel_keeps_the_table() -> None:
    for case in CASES:
        receiver, state, kind = case
        if state not in TALKING and (receiver, state) != (
            ConnectionRole.CLIENT,
            ConnectionState.AWAITING_TUNNEL,
        ):
            continue
        side = tunnel_in(receiver, state)
        side.events.clear()
        side.give(version3_sample(kind, receiver))
        if state in TUNNEL_LEGAL[kind]:
            assert side.failure is None, case
        else:
            assert isinstance(side.failure, UnexpectedFrameError), case
            assert "of a tunnel" in str(side.failure), case
            assert side.events == [], case
            assert [frame.kind for frame in cut_version3(side.take())] == [7], case


def test_a_closed_connection_hears_nothing() -> None:
    for receiver, kind in itertools.product(ROLES, KINDS):
        side = greeted_side(receiver)
        side.give(version3_frame(99))
        failure = side.failure
        assert failure is not None
        assert side.give(version3_sample(kind, receiver)) == [], (receiver, kind)
        assert side.failure is failure, (receiver, kind)


def test_transitions_every_state_can_close_and_closed_is_final() -> None:
    assert set(TRANSITIONS) == set(ConnectionState)
    for state, following in TRANSITIONS.items():
        assert ConnectionState.CLOSED in following, state
        assert (following == {ConnectionState.CLOSED}) is (state is ConnectionState.CLOSED)


def test_transition_outside_the_table_raises() -> None:
    for state, following in itertools.product(ConnectionState, repeat=2):
        if following in TRANSITIONS[state]:
            transition(state, following)
        else:
            with pytest.raises(LocalProtocolError, match=f"in state {state.name.lower()} cannot"):
                transition(state, following)


def test_connection_closed_by_a_breach_never_opens_again() -> None:
    side = greeted_side(ConnectionRole.SERVER)
    side.give(version3_frame(99))
    with pytest.raises(LocalProtocolError, match="in state closed cannot enter open"):
        side.machine._open([], 0.0)
