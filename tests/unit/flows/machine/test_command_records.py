"""What code can ask for."""

from typing import Any

import msgspec
import pytest

from postroad.flows.machine.commands import (
    CloseSession,
    GetPeerInfo,
    OpenSession,
    ReceiveData,
    RecordPatch,
    RunStep,
    SendData,
    SleepUntil,
    WaitForSignal,
)
from postroad.flows.machine.history import CommandKind
from postroad.flows.machine.values import encode_value
from postroad.flows.sessions.messages import SessionKey
from postroad.flows.sessions.session import PeerFlowInfo, SessionEndpoint
from tests.support.cases import each, naming


def end(number: int, peer: str = "beta") -> SessionEndpoint:
    return SessionEndpoint(SessionKey(1, number), peer, number, is_initiator=True)


def double(number: int) -> int:
    return 2 * number


def make_step(*args: Any, **kwargs: Any) -> RunStep:
    return RunStep(double, args, kwargs, name="double", retry=None, timeout_s=None)


BETA, GAMMA = end(1), end(2, "gamma")


@each(
    (OpenSession([BETA]), CommandKind.OPEN, True, "beta"),
    (SendData([BETA, GAMMA], ("x", "y"), [b"x", b"y"]), CommandKind.SEND, True, "beta, gamma"),
    (CloseSession([GAMMA]), CommandKind.CLOSE, True, "gamma"),
    (ReceiveData([BETA], int), CommandKind.RECEIVE, False, "beta"),
    (GetPeerInfo([BETA]), CommandKind.INFO, False, "beta"),
    (SleepUntil(90.0, 5), CommandKind.SLEEP, False, "90 s"),
    (SleepUntil(0.25, 5), CommandKind.SLEEP, False, "0.25 s"),
    (WaitForSignal("go", int), CommandKind.SIGNAL, False, "go"),
    (RecordPatch("new"), CommandKind.PATCH, True, "new"),
    (make_step(1), CommandKind.STEP, False, "double"),
)
def test_command_kind_and_name(ask: Any, kind: CommandKind, is_immediate: bool, name: str) -> None:
    assert (ask.kind, ask.is_immediate, ask.name) == (kind, is_immediate, name)


def test_commands_have_sessions_digests_and_deadlines() -> None:
    assert ReceiveData([GAMMA, BETA], int, is_one=False).sessions == (2, 1)
    assert make_step().sessions == ()
    one = SendData([BETA], ("x",), [b"x"])
    assert one.digest == SendData([BETA], ("x",), [b"x"]).digest
    assert one.digest != SendData([BETA], ("y",), [b"y"]).digest
    assert make_step(1).digest != make_step(2).digest
    assert make_step(1).digest != make_step(number=1).digest
    assert ReceiveData([BETA], int, 5).deadline_ms == 5
    assert WaitForSignal("go", int, 6).deadline_ms == 6
    assert ReceiveData([BETA], int).deadline_ms is None
    assert SleepUntil(1.0, 5).decode_result(None) is None
    for command in (
        ReceiveData([BETA], int),
        WaitForSignal("go", int),
        make_step(1),
        GetPeerInfo([BETA]),
    ):
        with naming(command), pytest.raises(msgspec.ValidationError):
            command.decode_result(encode_value("text", "it"))


@each(
    (ReceiveData([BETA], tuple[int, str]), (1, "a"), (1, "a")),
    (ReceiveData([BETA, GAMMA], int, is_one=False), [b"\x01", b"\x02"], [1, 2]),
    (GetPeerInfo([BETA]), PeerFlowInfo("pay", 2, "bank"), PeerFlowInfo("pay", 2, "bank")),
    (WaitForSignal("go", float), 1, 1.0),
    (make_step(1), 7, 7),
)
def test_command_decodes_recorded_result(command: Any, recorded: Any, expected: Any) -> None:
    assert command.decode_result(encode_value(recorded, "it")) == expected
