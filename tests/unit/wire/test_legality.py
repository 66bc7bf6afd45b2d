"""Which frame may arrive when: the table, then every case of it through a connection."""

import itertools
from typing import get_args

import pytest

from postroad.core.errors import IllegalFrame
from postroad.wire import Goodbye, Hello, Phase, Reply, Request, Role
from postroad.wire.frames import Cancel, Frame, Ping, Pong
from postroad.wire.legality import LENIENT, STRICT, Verdict, judge
from tests.wire_pairs import (
    Side,
    cut_version3,
    greeted_side,
    open_side,
    version3_frame,
    version3_sample,
)

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


def test_the_test_knows_every_frame() -> None:
    assert set(LEGAL) == set(KINDS)


def test_the_tables_name_frames_only() -> None:
    for accepted in (*STRICT.values(), *LENIENT.values()):
        assert accepted <= set(KINDS)
    assert {role for role, _ in STRICT} == set(LENIENT) == set(ROLES)


@pytest.mark.parametrize(("receiver", "phase", "kind"), CASES)
def test_version_3_is_strict(receiver: Role, phase: Phase, kind: type[Frame]) -> None:
    expected = Verdict.ACCEPT if phase in LEGAL[kind][receiver] else Verdict.REFUSE
    assert judge(3, receiver, phase, kind) is expected


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
    [case for case in CASES if case[1] not in (Phase.GREETING, Phase.CLOSED)],
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


@pytest.mark.parametrize("receiver", ROLES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_connection_hears_nothing(receiver: Role, kind: type[Frame]) -> None:
    side = greeted_side(receiver)
    side.give(version3_frame(99))
    failure = side.failure
    assert failure is not None

    assert side.give(version3_sample(kind, receiver)) == []
    assert side.failure is failure
