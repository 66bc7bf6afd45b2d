"""Files with recorded histories of flows: JSON lines, for people and for `verification`.

A header, a line for each flow, followed by one for each of its steps, and the number of flows:

    {"type":"postroad-flow-histories","format":1,"postroad":"0.2.0"}
    {"type":"flow","id":"1a1e418e8a800001","name":"book","version":1,"status":"done","steps":1, ...}
    {"type":"step","step":"0 step(reserve)","entry":"lpEA..."}
    {"type":"end","flows":1}

`state` and `entry` are what the store has, MessagePack in base64; the rest is there to be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec
from msgspec import UNSET

from postroad._version import __version__
from postroad.core.errors import UsageError
from postroad.core.limits import KIB, MIB
from postroad.durable.store.backends.backend import StoreConnection
from postroad.flows.engine import tables
from postroad.flows.errors import FlowNotFoundError
from postroad.flows.machine.history import decode_history_entry
from postroad.flows.machine.state import FlowState, format_flow_id
from postroad.flows.machine.status import FlowStatus
from postroad.flows.machine.values import FLOW_VALUE_BYTES_MAX

FORMAT = 1
# A value of the largest size in base64, with all that a state has besides.
LINE_BYTES_MAX = 2 * FLOW_VALUE_BYTES_MAX
# All of a flow is in memory while it is replayed: twice the default of `history_bytes_max`.
FLOW_BYTES_MAX = 512 * MIB
# Of one answer of a node, if it has more than one step.
_PAGE_BYTES = 512 * KIB
_PAGE_STEPS = 1_000


class HistoryStep(msgspec.Struct, frozen=True, tag="step"):
    """A completed step of an exported flow."""

    step: str
    """Position, kind and name, for people."""
    entry: bytes
    """As it is stored."""


class FlowHeader(msgspec.Struct, frozen=True, kw_only=True, tag="flow"):
    """An exported flow, without its steps."""

    id: str
    name: str
    version: int
    status: str
    steps: int
    state: bytes
    """Its encoded FlowState."""

    def decode_state(self) -> FlowState:
        """Return its state; raises msgspec.DecodeError or ValueError if it is damaged."""
        state = _state_decoder.decode(self.state)
        if format_flow_id(state.id) != self.id:
            raise ValueError(f"its state is that of flow {format_flow_id(state.id)}")
        return state


class ExportedFlow(msgspec.Struct, frozen=True):
    """A flow in a file."""

    header: FlowHeader
    steps: Sequence[HistoryStep]


class _FileHeader(msgspec.Struct, frozen=True, kw_only=True, tag="postroad-flow-histories"):
    format: int
    postroad: str
    """The version that wrote it."""


class _FileEnd(msgspec.Struct, frozen=True, tag="end"):
    flows: int


_Line = FlowHeader | HistoryStep | _FileEnd
_encoder = msgspec.json.Encoder()
_state_decoder = msgspec.msgpack.Decoder(FlowState)
_header_decoder = msgspec.json.Decoder(_FileHeader)
_line_decoder: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


class FlowRecordView(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the stored steps of a flow, as they are exported."""

    id: str
    name: str
    version: int
    status: FlowStatus
    run: int
    """Its steps are those of this run."""
    state: bytes
    """All about it but its steps and its result, as MessagePack."""
    steps: list[HistoryStep]


def read_record(database: StoreConnection, flow: int, first: int) -> FlowRecordView:
    """Read steps of a flow from the store, as many as fit into a page; none after the last one."""
    state = tables.read_state(database, flow)
    if state is None:
        raise FlowNotFoundError(f"flow {format_flow_id(flow)} is not in the store any more")
    if state.status is FlowStatus.UNREADABLE and state.failure is not None:
        raise UsageError(f"cannot export flow {format_flow_id(flow)}: {state.failure.detail}")
    records = tables.read_encoded_steps(database, flow, first, _PAGE_STEPS, _PAGE_BYTES)
    return FlowRecordView(
        id=format_flow_id(flow),
        name=state.name,
        version=state.version,
        status=state.status,
        run=state.run_number,
        state=_encode_state(state),
        steps=[HistoryStep(_label(record), record) for record in records],
    )


def _encode_state(state: FlowState) -> bytes:
    """Encode a state without what no replay needs."""
    needed = msgspec.structs.replace(state, failure=None, result=None, progress=None, trace=UNSET)
    return msgspec.msgpack.encode(needed)


def _label(record: bytes) -> str:
    try:
        return decode_history_entry(record).label
    except msgspec.DecodeError:
        return "unreadable"


class HistoryWriter:
    """Writes a file; without `close` it counts as truncated."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._flows = 0
        self._write(_FileHeader(format=FORMAT, postroad=__version__))

    def add(self, flow: ExportedFlow) -> None:
        """Write a flow."""
        self._write(flow.header)
        for step in flow.steps:
            self._write(step)
        self._flows += 1

    def close(self) -> None:
        """Write the end; the file itself stays open."""
        self._write(_FileEnd(self._flows))

    def _write(self, line: msgspec.Struct) -> None:
        self._file.write(_encoder.encode(line) + b"\n")


def read_histories(file: BinaryIO) -> Iterator[ExportedFlow]:
    """Read the flows of a file, one at a time.

    Raises:
        UsageError: the file is damaged, or none of `postroad flow export`.
    """
    lines = _HistoryLines(file)
    lines.check_header()
    seen: set[str] = set()
    while isinstance(header := lines.read(), FlowHeader):
        if header.id in seen:
            raise lines.error(f"flow {header.id} is there twice; export it again, by itself")
        seen.add(header.id)
        first, steps = lines.consumed, []
        for number in range(header.steps):
            step = lines.read()
            if not isinstance(step, HistoryStep):
                raise lines.error(f"flow {header.id} has {number} of {header.steps} steps")
            if lines.consumed - first > FLOW_BYTES_MAX:
                raise lines.error(f"flow {header.id} has more than {FLOW_BYTES_MAX} bytes")
            steps.append(step)
        yield ExportedFlow(header, steps)
    if not isinstance(header, _FileEnd) or header.flows != len(seen):
        raise lines.error(f"a step or an end is there in place of flow {len(seen) + 1}")
    if file.read(1):
        raise lines.error("something follows the end; verify several files by their names")


class _HistoryLines:
    """The lines of a file, checked and counted."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._number = 0
        self.consumed = 0

    def error(self, what: str) -> UsageError:
        return UsageError(f"line {self._number}: {what}")

    def check_header(self) -> None:
        try:
            header = _header_decoder.decode(self._read_line())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self.error("this is no file that `postroad flow export` wrote") from None
        if header.format != FORMAT:
            raise self.error(
                f"the file has format {header.format}, written by Postroad {header.postroad}; "
                f"Postroad {__version__} reads format {FORMAT}: export again, or use that version"
            )

    def read(self) -> _Line:
        try:
            return _line_decoder.decode(self._read_line())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.error(f"the line is damaged: {error}; export the flows again") from None

    def _read_line(self) -> bytes:
        line = self._file.readline(LINE_BYTES_MAX + 1)
        self._number += 1
        self.consumed += len(line)
        if len(line) > LINE_BYTES_MAX:
            raise self.error(f"the line has more than {LINE_BYTES_MAX} bytes")
        if not line.endswith(b"\n"):
            raise self.error("the file ends too early; export the flows again")
        return line
