"""Heads of flows: their ids, and when they are over."""

import msgspec
import pytest

from postroad.flows.machine.state import (
    FlowFailure,
    FlowState,
    InitiatingSession,
    format_flow_id,
    parse_flow_id,
)
from postroad.flows.machine.status import TERMINAL_STATUSES, FlowStatus
from postroad.flows.machine.values import RecordedError
from postroad.flows.sessions.messages import SessionKey
from tests.support.cases import naming


def test_ids_are_sixteen_hexadecimal_characters() -> None:
    for id in (1, 0xDEADBEEF, (1 << 63) - 1):
        assert len(format_flow_id(id)) == 16, id
        assert parse_flow_id(format_flow_id(id)) == id, id
    for text in ("", "flow", "12 34", "0x7", "-5", "f" * 16, "0" * 17):
        with naming(text), pytest.raises(ValueError, match="is no id of a flow"):
            parse_flow_id(text)


def test_flow_state_round_trips() -> None:
    for status in FlowStatus:
        state = FlowState(id=1, name="pay", version=1, status=status, seed=b"", started_ms=0)
        assert state.is_ended == (status in TERMINAL_STATUSES), status
    state = FlowState(
        id=(1 << 63) - 1,
        name="pay",
        version=3,
        status=FlowStatus.PARKED,
        seed=b"0123456789abcdef",
        started_ms=1,
        arguments=b"\x92",
        client_id="order-7",
        initiated_by=InitiatingSession("beta", SessionKey(5, 1), "ask", 2, "shop"),
        failure=FlowFailure("e1", RecordedError("builtins:ValueError", "x", None), 5, "line 1"),
        result=b"\x01",
        progress="half",
        wake_ms=0,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=FlowState) == state
