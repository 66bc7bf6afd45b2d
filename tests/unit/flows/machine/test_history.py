"""Records of steps: their bytes, and how they are shown."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.flows.machine.history import (
    CommandKind,
    HistoryEntry,
    command_label,
    decode_history_entry,
    encode_history_entry,
)
from postroad.flows.machine.values import RecordedError

RECORDS = st.builds(
    HistoryEntry,
    position=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5).map(tuple),
    kind=st.sampled_from(CommandKind),
    name=st.text(),
    digest=st.binary(max_size=8),
    at_ms=st.integers(0, 1 << 60),
    value=st.none() | st.binary(),
    error=st.none() | st.builds(RecordedError, st.text(), st.text(), st.none() | st.binary()),
    sessions=st.lists(st.integers(0, 1 << 31)).map(tuple),
    peers=st.lists(st.text()).map(tuple),
)


@given(RECORDS)
def test_record_comes_back(entry: HistoryEntry) -> None:
    assert decode_history_entry(encode_history_entry(entry)) == entry


@given(st.binary())
def test_anything_else_is_a_decode_error(encoded: bytes) -> None:
    try:
        decode_history_entry(encoded)
    except msgspec.DecodeError:
        return


def test_labels() -> None:
    for position, name, shown in (
        ((0,), "pay", "0 step(pay)"),
        ((2, 0, 13), "pay", "2.0.13 step(pay)"),
        ((1,), "", "1 step"),
    ):
        facts: dict[str, Any] = {"digest": b"", "at_ms": 0}
        assert command_label(position, CommandKind.STEP, name) == shown, (position, name, shown)
        assert (
            HistoryEntry(position=position, kind=CommandKind.STEP, name=name, **facts).label
            == shown
        ), (
            position,
            name,
            shown,
        )
