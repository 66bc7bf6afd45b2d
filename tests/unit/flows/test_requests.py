"""What code can ask for."""

from typing import Any

import msgspec
import pytest

from postroad.flows.messages import SessionKey
from postroad.flows.records import Kind
from postroad.flows.requests import Close, Info, Open, Patch, Receive, Send, Signal, Sleep, Step
from postroad.flows.session import PeerInfo, SessionEnd
from postroad.flows.values import encode
from tests.support.cases import each, naming


def end(number: int, peer: str = "beta") -> SessionEnd:
    return SessionEnd(SessionKey(1, number), peer, number, is_initiator=True)


def double(number: int) -> int:
    return 2 * number


def make_step(*args: Any, **kwargs: Any) -> Step:
    return Step(double, args, kwargs, name="double", retry=None, timeout_s=None)


BETA, GAMMA = end(1), end(2, "gamma")


@each(
    (Open([BETA]), Kind.OPEN, True, "beta"),
    (Send([BETA, GAMMA], ("x", "y"), [b"x", b"y"]), Kind.SEND, True, "beta, gamma"),
    (Close([GAMMA]), Kind.CLOSE, True, "gamma"),
    (Receive([BETA], int), Kind.RECEIVE, False, "beta"),
    (Info([BETA]), Kind.INFO, False, "beta"),
    (Sleep(90.0, 5), Kind.SLEEP, False, "90 s"),
    (Sleep(0.25, 5), Kind.SLEEP, False, "0.25 s"),
    (Signal("go", int), Kind.SIGNAL, False, "go"),
    (Patch("new"), Kind.PATCH, True, "new"),
    (make_step(1), Kind.STEP, False, "double"),
)
def test_how_they_are_called(ask: Any, kind: Kind, is_immediate: bool, name: str) -> None:
    assert (ask.kind, ask.is_immediate, ask.name) == (kind, is_immediate, name)


def test_asks_have_sessions_digests_and_deadlines() -> None:
    assert Receive([GAMMA, BETA], int, is_one=False).sessions == (2, 1)
    assert make_step().sessions == ()
    one = Send([BETA], ("x",), [b"x"])
    assert one.digest == Send([BETA], ("x",), [b"x"]).digest
    assert one.digest != Send([BETA], ("y",), [b"y"]).digest
    assert make_step(1).digest != make_step(2).digest
    assert make_step(1).digest != make_step(number=1).digest
    assert Receive([BETA], int, 5).deadline_ms == 5
    assert Signal("go", int, 6).deadline_ms == 6
    assert Receive([BETA], int).deadline_ms is None
    assert Sleep(1.0, 5).read(None) is None
    for ask in (Receive([BETA], int), Signal("go", int), make_step(1), Info([BETA])):
        with naming(ask), pytest.raises(msgspec.ValidationError):
            ask.read(encode("text", "it"))


@each(
    (Receive([BETA], tuple[int, str]), (1, "a"), (1, "a")),
    (Receive([BETA, GAMMA], int, is_one=False), [b"\x01", b"\x02"], [1, 2]),
    (Info([BETA]), PeerInfo("pay", 2, "bank"), PeerInfo("pay", 2, "bank")),
    (Signal("go", float), 1, 1.0),
    (make_step(1), 7, 7),
)
def test_what_is_read_of_a_record(ask: Any, given: Any, read: Any) -> None:
    assert ask.read(encode(given, "it")) == read
