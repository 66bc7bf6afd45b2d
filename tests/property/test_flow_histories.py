"""Files of `postroad flow export` that were damaged: they are refused, and nothing else happens."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import UsageError
from postroad.flows.definition import FlowRegistry
from postroad.flows.history_files import (
    ExportedFlow,
    FlowHeader,
    HistoryStep,
    HistoryWriter,
    read_histories,
)
from postroad.flows.verification import FlowVerifier, ReplayResult


def write() -> bytes:
    file = io.BytesIO()
    writer = HistoryWriter(file)
    for id in ("1a1e418e8a800001", "1a1e418e8a800002"):
        header = FlowHeader(id=id, name="pay", version=1, status="done", steps=2, state=b"\x80")
        writer.add(ExportedFlow(header, [HistoryStep("0 step(a)", b"\x90")] * 2))
    writer.close()
    return file.getvalue()


WHOLE = write()
PLACES = st.integers(0, len(WHOLE))


@given(PLACES, st.integers(0, 40), st.binary(max_size=40))
def test_damaged_files_are_refused_or_read(place: int, removed: int, added: bytes) -> None:
    file = io.BytesIO(WHOLE[:place] + added + WHOLE[place + removed :])
    verifier = FlowVerifier(FlowRegistry(()))
    try:
        results = {verifier.verify(flow).result for flow in read_histories(file)}
    except UsageError as error:
        assert str(error).startswith("line ")
    else:
        assert results <= {ReplayResult.UNREADABLE}


@given(PLACES.filter(lambda place: place < len(WHOLE)))
def test_truncated_files_are_refused(place: int) -> None:
    try:
        flows = [*read_histories(io.BytesIO(WHOLE[:place]))]
    except UsageError as error:
        assert "the file ends too early" in str(error)
    else:
        raise AssertionError(f"{len(flows)} flows were read of a truncated file")
