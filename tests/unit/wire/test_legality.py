"""Which frame may arrive when: the table, then every case of it through a connection."""

import itertools
from typing import get_args

import pytest

from postroad.core.errors import IllegalFrame
from postroad.wire import Goodbye, Hello, Phase, Reply, Request, Role
from postroad.wire.frames import Cancel, Frame, Ping, Pong
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
    Goodbye: {Role.SERVER: TALKING, Role.CLIENT: TALKING | {Phase.INTRODUCING}},
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
}


def test_the_test_knows_every_frame() -> None:
    assert set(LEGAL) == set(TUNNEL_LEGAL) == set(KINDS)


def test_the_tables_name_frames_only() -> None:
    for accepted in (*STRICT.values(), *TUNNEL.values(), *LENIENT.values()):
        assert accepted <= set(KINDS)
    assert {role for role, _ in STRICT} == set(LENIENT) == set(ROLES)


@pytest.mark.parametrize(("receiver", "phase", "kind"), CASES)
def test_version_3_is_strict(receiver: Role, phase: Phase, kind: type[Frame]) -> None:
    expected = Verdict.ACCEPT if phase in LEGAL[kind][receiver] else Verdict.REFUSE
    assert judge(3, receiver, phase, kind) is expected


@pytest.mark.parametrize(("receiver", "phase", "kind"), CASES)
def test_tunnels_are_strict(receiver: Role, phase: Phase, kind: type[Frame]) -> None:
    expected = Verdict.ACCEPT if phase in TUNNEL_LEGAL[kind] else Verdict.REFUSE
    assert judge(3, receiver, phase, kind, is_tunnel=True) is expected


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("receiver", "phase", "kind"), CASES)
def test_older_versions_ignore_what_has_no_place(
    receiver: Role, phase: Phase, kind: type[Frame], version: int
) -> None:
    wanted = Request if receiver is Role.SERVER else Reply
    expected = Verdict.ACCEPT if kind is wanted else Verdict.IGNORE
    assert judge(version, receiver, phase, kind) is expected


def side_in(receiver: Role, phase: Phase) -> Side:
    """A version 3 machine in that phase."""
    if phase is Phase.INTRODUCING:
        return open_side(receiver, 3)
    side = greeted_side(receiver)
    if phase is Phase.DRAINING:
        side.give(version3_frame(7, b"stopping"))
    side.take()
    assert side.machine.phase is phase
    return side


@pytest.mark.parametrize(
    ("receiver", "phase", "kind"),
    [case for case in CASES if case[1] in (Phase.INTRODUCING, *TALKING)],
)
def test_a_connection_keeps_the_table(receiver: Role, phase: Phase, kind: type[Frame]) -> None:
    side = side_in(receiver, phase)
    side.events.clear()
    side.give(version3_sample(kind, receiver))

    if phase in LEGAL[kind][receiver]:
        assert side.failure is None
    else:
        assert isinstance(side.failure, IllegalFrame)
        assert side.events == []
        assert side.machine.phase is Phase.CLOSED
        assert cut_version3(side.take())[-1].kind == 7, "the peer is told goodbye"


def tunnel_in(receiver: Role, phase: Phase) -> Side:
    """The end of a tunnel in that phase."""
    side = tunnel_side(receiver, is_taken=phase is not Phase.KNOCKING)
    if phase is Phase.DRAINING:
        side.give(version3_frame(7, b"stopping"))
    side.take()
    assert side.machine.phase is phase
    return side


@pytest.mark.parametrize(
    ("receiver", "phase", "kind"),
    [
        (receiver, phase, kind)
        for receiver, phase, kind in CASES
        if phase in TALKING or (receiver, phase) == (Role.CLIENT, Phase.KNOCKING)
    ],
)
def test_a_tunnel_keeps_the_table(receiver: Role, phase: Phase, kind: type[Frame]) -> None:
    side = tunnel_in(receiver, phase)
    side.events.clear()
    side.give(version3_sample(kind, receiver))

    if phase in TUNNEL_LEGAL[kind]:
        assert side.failure is None
    else:
        assert isinstance(side.failure, IllegalFrame)
        assert "of a tunnel" in str(side.failure)
        assert side.events == []
        assert [frame.kind for frame in cut_version3(side.take())] == [7]


@pytest.mark.parametrize("receiver", ROLES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_connection_hears_nothing(receiver: Role, kind: type[Frame]) -> None:
    side = greeted_side(receiver)
    side.give(version3_frame(99))
    failure = side.failure
    assert failure is not None

    assert side.give(version3_sample(kind, receiver)) == []
    assert side.failure is failure
