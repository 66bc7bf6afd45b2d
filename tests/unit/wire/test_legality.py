"""Which frame may arrive when: the table, then every case of it through a connection."""

import itertools
from typing import get_args

from postroad.core.errors import IllegalFrame
from postroad.wire import Goodbye, Hello, Phase, Reply, Request, Role
from postroad.wire.frames import Cancel, Frame, Ping, Pong, Proof
from postroad.wire.legality import LENIENT, STRICT, TUNNEL, Verdict, judge
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
ROLES = list(Role)

# Written down once more and in another shape: who may hear which frame, and in which phases.
TALKING = {Phase.OPEN, Phase.DRAINING}
LEGAL: dict[type[Frame], dict[Role, set[Phase]]] = {
    Request: {Role.SERVER: TALKING, Role.CLIENT: set()},
    Reply: {Role.SERVER: set(), Role.CLIENT: TALKING},
    Hello: {Role.SERVER: {Phase.INTRODUCING}, Role.CLIENT: {Phase.INTRODUCING}},
    Cancel: {Role.SERVER: TALKING, Role.CLIENT: set()},
    Ping: {Role.SERVER: TALKING, Role.CLIENT: TALKING},
    Pong: {Role.SERVER: TALKING, Role.CLIENT: TALKING},
    Goodbye: {
        Role.SERVER: TALKING,
        Role.CLIENT: TALKING | {Phase.INTRODUCING, Phase.PROVING},
    },
    Proof: {Role.SERVER: {Phase.PROVING}, Role.CLIENT: {Phase.PROVING}},
}
CASES = list(itertools.product(ROLES, Phase, KINDS))
# The same for tunnels, where both sides hear the same once they have said hello.
TUNNEL_LEGAL: dict[type[Frame], set[Phase]] = {
    Request: TALKING | {Phase.KNOCKING},
    Reply: set(),
    Hello: set(),
    Cancel: set(),
    Ping: TALKING | {Phase.KNOCKING},
    Pong: TALKING,
    Goodbye: TALKING | {Phase.KNOCKING},
    Proof: set(),
}


def test_the_tables_name_all_frames_and_no_others() -> None:
    assert set(LEGAL) == set(TUNNEL_LEGAL) == set(KINDS)
    for accepted in (*STRICT.values(), *TUNNEL.values(), *LENIENT.values()):
        assert accepted <= set(KINDS)
    assert {role for role, _ in STRICT} == set(LENIENT) == set(ROLES)


def test_version_3_and_tunnels_are_strict_and_older_versions_ignore() -> None:
    for case in CASES:
        receiver, phase, kind = case
        expected = Verdict.ACCEPT if phase in LEGAL[kind][receiver] else Verdict.REFUSE
        assert judge(3, receiver, phase, kind) is expected, case
        expected = Verdict.ACCEPT if phase in TUNNEL_LEGAL[kind] else Verdict.REFUSE
        assert judge(3, receiver, phase, kind, is_tunnel=True) is expected, case
        wanted = Request if receiver is Role.SERVER else Reply
        expected = Verdict.ACCEPT if kind is wanted else Verdict.IGNORE
        for version in (1, 2):
            assert judge(version, receiver, phase, kind) is expected, case


def side_in(receiver: Role, phase: Phase) -> Side:
    if phase is Phase.INTRODUCING:
        return open_side(receiver, 3)
    side = greeted_side(receiver)
    if phase is Phase.DRAINING:
        side.give(version3_frame(7, b"stopping"))
    side.take()
    assert side.machine.phase is phase
    return side


def test_a_connection_keeps_the_table() -> None:
    for case in [case for case in CASES if case[1] in (Phase.INTRODUCING, *TALKING)]:
        receiver, phase, kind = case
        side = side_in(receiver, phase)
        side.events.clear()
        side.give(version3_sample(kind, receiver))
        if phase in LEGAL[kind][receiver]:
            assert side.failure is None, case
        else:
            assert isinstance(side.failure, IllegalFrame), case
            assert (side.events, side.machine.phase) == ([], Phase.CLOSED), case
            assert cut_version3(side.take())[-1].kind == 7, f"{case}: the peer is told goodbye"


def tunnel_in(receiver: Role, phase: Phase) -> Side:
    side = tunnel_side(receiver, is_taken=phase is not Phase.KNOCKING)
    if phase is Phase.DRAINING:
        side.give(version3_frame(7, b"stopping"))
    side.take()
    assert side.machine.phase is phase
    return side


def test_a_tunnel_keeps_the_table() -> None:
    for case in CASES:
        receiver, phase, kind = case
        if phase not in TALKING and (receiver, phase) != (Role.CLIENT, Phase.KNOCKING):
            continue
        side = tunnel_in(receiver, phase)
        side.events.clear()
        side.give(version3_sample(kind, receiver))
        if phase in TUNNEL_LEGAL[kind]:
            assert side.failure is None, case
        else:
            assert isinstance(side.failure, IllegalFrame), case
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
