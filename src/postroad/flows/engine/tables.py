"""Flows in the store: their tables, and the statements that read and write them.

Some names in the tables are older than those in the code:

    head                 the encoded FlowState, without its arguments
    origin_...           initiated_by: the session that a flow responds to
    postroad_flow_mail   buffered messages and signals, which the flow has not consumed
    record               an encoded HistoryEntry
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from postroad.durable.store.backends.backend import DatabaseRow, StoreConnection
from postroad.durable.store.tables.schema import Schema, read_meta, write_meta
from postroad.flows.errors import FlowNotFoundError, NondeterminismError
from postroad.flows.machine.events import BufferedSignal
from postroad.flows.machine.history import HistoryEntry, decode_history_entry, encode_history_entry
from postroad.flows.machine.state import FlowFailure, FlowState, InitiatingSession, format_flow_id
from postroad.flows.machine.status import TERMINAL_STATUSES, FlowStatus
from postroad.flows.machine.values import record_error
from postroad.flows.sessions.messages import (
    SessionMessage,
    decode_session_message,
    encode_session_message,
)
from postroad.flows.sessions.session import BufferedMessage

# A released migration is never changed.
_TABLES = (
    # Fields that queries use have a column; the rest of the state is one blob.
    """CREATE TABLE postroad_flows (
        id {id}, name TEXT NOT NULL, status TEXT NOT NULL, client_id TEXT,
        origin_peer TEXT, origin_flow BIGINT, origin_number BIGINT,
        wake_ms BIGINT, ended_ms BIGINT, head {blob} NOT NULL, arguments {blob} NOT NULL)""",
    """CREATE UNIQUE INDEX postroad_flows_client ON postroad_flows (client_id)
        WHERE client_id IS NOT NULL""",
    """CREATE UNIQUE INDEX postroad_flows_origin
        ON postroad_flows (origin_flow, origin_number, origin_peer)
        WHERE origin_flow IS NOT NULL""",
    "CREATE INDEX postroad_flows_wake ON postroad_flows (wake_ms) WHERE wake_ms IS NOT NULL",
    """CREATE INDEX postroad_flows_idle ON postroad_flows (status, name)
        WHERE status IN ('queued', 'held', 'parked', 'paused')""",
    """CREATE TABLE postroad_flow_steps (
        flow BIGINT NOT NULL, number BIGINT NOT NULL, record {blob} NOT NULL,
        PRIMARY KEY (flow, number)) {clustered}""",
    # Messages and signals that a flow has not read; a signal has no session.
    """CREATE TABLE postroad_flow_mail (
        id {id}, flow BIGINT NOT NULL, session BIGINT, name TEXT, message {blob} NOT NULL)""",
    "CREATE INDEX postroad_flow_mail_flow ON postroad_flow_mail (flow, id)",
    """CREATE TABLE postroad_flow_schedules (
        name TEXT PRIMARY KEY, flow TEXT NOT NULL, cron TEXT NOT NULL, zone TEXT NOT NULL,
        arguments {blob} NOT NULL, catch_up TEXT NOT NULL, is_paused BIGINT NOT NULL,
        next_ms BIGINT NOT NULL, last_ms BIGINT)""",
)

_BY_STATUS = (
    # No database used that index.
    "DROP INDEX postroad_flows_idle",
    # For counting, and for the few flows of a status among all that have ended.
    "CREATE INDEX postroad_flows_status ON postroad_flows (status)",
)
_SCHEMA = Schema("flows", "flows.schema", (_TABLES, _BY_STATUS))

_HEAD = "id, name, status, arguments, head"
_FIRST_ID = "flows.first_id"
_RUNNING = "flows.is_running"
_ID_BITS = 20
# Generated client ids are not used to request results.
_NAMELESS = "(client_id IS NULL OR client_id LIKE 'schedule:%' OR client_id LIKE 'tx:%')"
_ID_GAP = 1 << 44


_STATUSES = frozenset(status.value for status in FlowStatus if status is not FlowStatus.UNREADABLE)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FlowState)


def create_tables(types: Mapping[str, str], database: StoreConnection) -> None:
    """Create or migrate the tables."""
    _SCHEMA.migrate(types, database)


def has_tables(database: StoreConnection) -> bool:
    """Whether there are tables to read; raises StoreMismatchError if this version cannot."""
    return _SCHEMA.version(database) > 0


# Writing.


def _encode_state(state: FlowState) -> bytes:
    arguments, state.arguments = state.arguments, b""
    try:
        return _encoder.encode(state)
    finally:
        state.arguments = arguments


def state_row(state: FlowState) -> DatabaseRow:
    """Encode a state as a row, on the event loop; written in the thread of the store."""
    origin = state.initiated_by
    place = (None,) * 3 if origin is None else (origin.peer, origin.key.flow, origin.key.number)
    return (
        state.id,
        state.name,
        state.status.value,
        state.client_id,
        *place,
        state.wake_ms,
        state.ended_ms,
        _encode_state(state),
        state.arguments,
    )


def insert_state(database: StoreConnection, row: DatabaseRow) -> None:
    database.execute(
        "INSERT INTO postroad_flows (id, name, status, client_id, origin_peer, origin_flow,"
        " origin_number, wake_ms, ended_ms, head, arguments)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        row,
    )


def update_state(database: StoreConnection, row: DatabaseRow, *, with_arguments: bool) -> None:
    id, name, status, _, _, _, _, wake_ms, ended_ms, encoded_state, arguments = row
    if with_arguments:
        database.execute("UPDATE postroad_flows SET arguments = ? WHERE id = ?", (arguments, id))
    is_known = database.change(
        "UPDATE postroad_flows SET name = ?, status = ?, wake_ms = ?, ended_ms = ?, head = ?"
        " WHERE id = ?",
        (name, status, wake_ms, ended_ms, encoded_state, id),
    )
    if not is_known:
        # Not a PostroadError: the rest of the commit must be rolled back with it.
        raise RuntimeError(
            f"cannot commit flow {format_flow_id(id)}: it is no longer in the store; something "
            "else changed the store, or an older copy replaced it: restore the newest one"
        )


def check_known(database: StoreConnection, flow: int) -> None:
    """Raise FlowNotFoundError if a flow is not in the store."""
    if not database.execute("SELECT 1 FROM postroad_flows WHERE id = ?", (flow,)):
        raise FlowNotFoundError(f"flow {format_flow_id(flow)} is not in the store any more")


def insert_steps(
    database: StoreConnection, flow: int, first: int, entries: Sequence[HistoryEntry]
) -> None:
    database.execute_many(
        "INSERT INTO postroad_flow_steps (flow, number, record) VALUES (?, ?, ?)",
        [(flow, first + index, encode_history_entry(entry)) for index, entry in enumerate(entries)],
    )


def delete_steps(database: StoreConnection, flow: int, first: int = 0) -> None:
    database.execute(
        "DELETE FROM postroad_flow_steps WHERE flow = ? AND number >= ?", (flow, first)
    )


def insert_buffered(database: StoreConnection, rows: Iterable[DatabaseRow]) -> None:
    """Store buffered messages; rows are (id, flow, session, name, message)."""
    database.execute_many(
        "INSERT INTO postroad_flow_mail (id, flow, session, name, message) VALUES (?, ?, ?, ?, ?)",
        rows,
    )


def buffered_message_row(flow: int, session: int, buffered: BufferedMessage) -> DatabaseRow:
    return (buffered.id, flow, session, None, encode_session_message(buffered.message))


def buffered_signal_row(flow: int, signal: BufferedSignal) -> DatabaseRow:
    return (signal.id, flow, None, signal.name, signal.payload)


def delete_buffered(database: StoreConnection, ids: Iterable[int]) -> None:
    database.execute_many("DELETE FROM postroad_flow_mail WHERE id = ?", [(id,) for id in ids])


def delete_buffered_of(database: StoreConnection, flow: int, *, with_signals: bool) -> None:
    only = "" if with_signals else " AND session IS NOT NULL"
    database.execute(f"DELETE FROM postroad_flow_mail WHERE flow = ?{only}", (flow,))


def delete_flow(database: StoreConnection, flow: int) -> None:
    delete_steps(database, flow)
    delete_buffered_of(database, flow, with_signals=True)
    database.execute("DELETE FROM postroad_flows WHERE id = ?", (flow,))


def mark_running(database: StoreConnection) -> bool:
    """Record that a process runs flows; return whether the last one was killed."""
    was_killed = read_meta(database, _RUNNING) == "1"
    write_meta(database, _RUNNING, "1")
    return was_killed


def mark_stopped(database: StoreConnection) -> None:
    """Record that a process has stopped cleanly."""
    write_meta(database, _RUNNING, "0")


def read_suspicious(database: StoreConnection) -> tuple[list[FlowState], list[FlowState]]:
    """Return flows that ran when the last process ended, and suspects that wait."""
    open = f"SELECT {_HEAD} FROM postroad_flows WHERE status"
    running = _decode_states(
        database.execute(f"{open} = ? AND wake_ms = 0", (FlowStatus.RUNNING.value,))
    )
    waiting = _decode_states(
        database.execute(f"{open} IN (?, ?)", (FlowStatus.RETRYING.value, FlowStatus.PARKED.value))
    )
    return running, [state for state in waiting if state.crash_recoveries]


# Reading.


def _decode_state(row: DatabaseRow) -> FlowState:
    """Decode a state; an undecodable one gets a status of its own, and affects no other flow."""
    id, name, status, arguments, encoded = row
    try:
        state = _decoder.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(id, name, f"its state cannot be decoded: {error}")
    if status not in _STATUSES:
        return _unreadable(id, name, f"its status {status!r} is unknown")
    state.arguments = bytes(arguments)
    return state


def _unreadable(id: int, name: str, problem: str) -> FlowState:
    text = f"{problem}; it was written by a newer version of Postroad, or is damaged"
    return FlowState(
        id=id,
        name=name,
        version=0,
        status=FlowStatus.UNREADABLE,
        seed=b"",
        started_ms=id >> _ID_BITS,
        failure=FlowFailure("", record_error(NondeterminismError(text)), 0, text),
    )


def _decode_states(rows: Iterable[DatabaseRow]) -> list[FlowState]:
    return [_decode_state(row) for row in rows]


def _decode_one(rows: list[DatabaseRow]) -> FlowState | None:
    return _decode_state(rows[0]) if rows else None


def read_state(database: StoreConnection, flow: int) -> FlowState | None:
    return _decode_one(
        database.execute(f"SELECT {_HEAD} FROM postroad_flows WHERE id = ?", (flow,))
    )


class StoredFlow(msgspec.Struct):
    """All stored data of a flow."""

    state: FlowState
    entries: list[HistoryEntry] = []
    buffered: list[tuple[int, BufferedMessage]] = []
    signals: list[BufferedSignal] = []
    problem: NondeterminismError | None = None
    """Why some of it cannot be decoded."""


def read_flow(database: StoreConnection, flow: int) -> StoredFlow | None:
    """Read a flow to resume it; of one that has ended only the state."""
    state = read_state(database, flow)
    if state is None or state.is_ended:
        return None if state is None else StoredFlow(state)
    try:
        buffered, signals = read_buffered(database, flow)
        return StoredFlow(state, read_steps(database, flow), buffered, signals)
    except NondeterminismError as problem:
        return StoredFlow(state, problem=problem)


def read_run(database: StoreConnection, flow: int) -> tuple[FlowState, list[HistoryEntry]]:
    """Read an existing flow, with the steps of its current run."""
    while True:
        state, entries, after = (
            read_state(database, flow), read_steps(database, flow), read_state(database, flow),
        )  # fmt: skip
        assert state is not None and after is not None
        if state.run_number == after.run_number:
            return state, entries


def find_by_client_id(database: StoreConnection, client_id: str) -> FlowState | None:
    return _decode_one(
        database.execute(f"SELECT {_HEAD} FROM postroad_flows WHERE client_id = ?", (client_id,))
    )


def find_responder(database: StoreConnection, origin: InitiatingSession) -> int | None:
    """Return the flow that responds to a session, or None."""
    rows = database.execute(
        "SELECT id FROM postroad_flows"
        " WHERE origin_flow = ? AND origin_number = ? AND origin_peer = ?",
        (origin.key.flow, origin.key.number, origin.peer),
    )
    return rows[0][0] if rows else None


def read_steps(database: StoreConnection, flow: int) -> list[HistoryEntry]:
    rows = database.execute(
        "SELECT record FROM postroad_flow_steps WHERE flow = ? ORDER BY number", (flow,)
    )
    try:
        return [decode_history_entry(record) for (record,) in rows]
    except msgspec.DecodeError as error:
        raise NondeterminismError(
            f"its record was written by another version of Postroad: {error}"
        ) from None


def read_encoded_steps(
    database: StoreConnection, flow: int, first: int, limit: int, bytes_max: int
) -> list[bytes]:
    """Return steps from a number on, as stored: at least one if there is one, then up to a size."""
    sizes = database.execute(
        "SELECT number, LENGTH(record) FROM postroad_flow_steps"
        " WHERE flow = ? AND number >= ? ORDER BY number LIMIT ?",
        (flow, first, limit),
    )
    last, total = first, 0
    for number, size in sizes:
        last, total = number, total + size
        if total >= bytes_max:
            break
    rows = database.execute(
        "SELECT record FROM postroad_flow_steps WHERE flow = ? AND number BETWEEN ? AND ?"
        " ORDER BY number",
        (flow, first, last),
    )
    return [bytes(record) for (record,) in rows]


def read_buffered(
    database: StoreConnection, flow: int
) -> tuple[list[tuple[int, BufferedMessage]], list[BufferedSignal]]:
    """Read what a flow has not consumed: messages by session, and signals."""
    buffered: list[tuple[int, BufferedMessage]] = []
    signals: list[BufferedSignal] = []
    for id, session, name, message in database.execute(
        "SELECT id, session, name, message FROM postroad_flow_mail WHERE flow = ? ORDER BY id",
        (flow,),
    ):
        if session is None:
            signals.append(BufferedSignal(name, bytes(message), id))
        else:
            buffered.append((session, BufferedMessage(_read_message(message), id)))
    return buffered, signals


def _read_message(encoded: bytes) -> SessionMessage:
    try:
        return decode_session_message(encoded)
    except msgspec.DecodeError as error:
        raise NondeterminismError(
            f"a message or signal for it was written by another version of Postroad: {error}"
        ) from None


def reserve_ids(database: StoreConnection, now_ms: int) -> int:
    """The first of the ids that this process may give to flows; none of them was ever used.

    They start with the time, so that they are in order and the last one need not be stored.
    """
    used = int(read_meta(database, _FIRST_ID) or 0)
    first = now_ms << _ID_BITS
    if first <= used:
        # The clock was set back: skip the ids that may have been used since.
        first = used + _ID_GAP
    write_meta(database, _FIRST_ID, str(first))
    last: int | None = database.execute("SELECT MAX(id) FROM postroad_flows")[0][0]
    return max(first, (last or 0) + 1)


def last_buffered_id(database: StoreConnection) -> int:
    """Return the highest id of buffered messages."""
    last: int | None = database.execute("SELECT MAX(id) FROM postroad_flow_mail")[0][0]
    return last or 0


def list_due(database: StoreConnection, now_ms: int, after: int, limit: int) -> list[int]:
    """Return the flows that are due, in the order of their ids."""
    rows = database.execute(
        "SELECT id FROM postroad_flows WHERE wake_ms <= ? AND id > ? ORDER BY id LIMIT ?",
        (now_ms, after, limit),
    )
    return [id for (id,) in rows]


def next_wakeup_ms(database: StoreConnection, now_ms: int) -> int | None:
    rows = database.execute("SELECT MIN(wake_ms) FROM postroad_flows WHERE wake_ms > ?", (now_ms,))
    due_ms: int | None = rows[0][0]
    return due_ms


def list_by_status(
    database: StoreConnection, status: FlowStatus, name: str | None, limit: int, after: int = 0
) -> list[FlowState]:
    """Return flows of a status without a timer, the oldest first; `after` continues a list."""
    only, parameters = ("", ()) if name is None else (" AND name = ?", (name,))
    rows = database.execute(
        f"SELECT {_HEAD} FROM postroad_flows WHERE status = ? AND id > ?{only} ORDER BY id LIMIT ?",
        (status.value, after, *parameters, limit),
    )
    return _decode_states(rows)


def count_by_name_and_status(database: StoreConnection) -> dict[tuple[str, FlowStatus], int]:
    """Return the number of flows of each name and status."""
    rows = database.execute("SELECT name, status, COUNT(*) FROM postroad_flows GROUP BY 1, 2")
    numbers: Counter[tuple[str, FlowStatus]] = Counter()
    for name, status, number in rows:
        numbers[name, _status(status)] += number
    return numbers


def _status(text: str) -> FlowStatus:
    return FlowStatus(text) if text in _STATUSES else FlowStatus.UNREADABLE


def count_by_status(database: StoreConnection) -> dict[FlowStatus, int]:
    """Return the number of flows of each status."""
    rows = database.execute("SELECT status, COUNT(*) FROM postroad_flows GROUP BY status")
    numbers: Counter[FlowStatus] = Counter()
    for status, number in rows:
        numbers[_status(status)] += int(number)
    return numbers


def list_states(
    database: StoreConnection,
    status: FlowStatus | None,
    name: str | None,
    before: int | None,
    limit: int,
) -> list[FlowState]:
    """Return states, the newest first."""
    is_unknown = status is FlowStatus.UNREADABLE
    filters: list[tuple[str, str | int | None]] = [
        ("status = ?", None if status is None or is_unknown else status.value),
        ("name = ?", name),
        ("id < ?", before),
    ]
    conditions = [(text, value) for text, value in filters if value is not None]
    where = " AND ".join(["1 = 1", *(text for text, _ in conditions)])
    if is_unknown:
        statuses = ", ".join(f"'{status}'" for status in sorted(_STATUSES))
        where += f" AND status NOT IN ({statuses})"
    rows = database.execute(
        f"SELECT {_HEAD} FROM postroad_flows WHERE {where} ORDER BY id DESC LIMIT ?",
        (*(value for _, value in conditions), limit),
    )
    return _decode_states(rows)


def list_ended_before(
    database: StoreConnection, ended_ms: int, limit: int, *, has_client: bool
) -> list[int]:
    """Return flows with or without a client id that ended before a time."""
    states = ", ".join(f"'{status.value}'" for status in sorted(TERMINAL_STATUSES))
    rows = database.execute(
        f"SELECT id FROM postroad_flows WHERE status IN ({states}) AND ended_ms < ?"
        f" AND {'NOT ' if has_client else ''}{_NAMELESS} ORDER BY id LIMIT ?",
        (ended_ms, limit),
    )
    return [id for (id,) in rows]
