"""Flows in the store: their tables, and the statements that read and write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from postroad.core.errors import StoreMismatchError
from postroad.durable.store.database import Database, Row
from postroad.durable.store.schema import read_meta, write_meta

from .errors import FlowMismatch, NoSuchFlow
from .events import KeptSignal
from .head import Head, Origin, Trouble, show_id
from .life import ENDED, Status
from .messages import Message, decode_message, encode_message
from .records import Record, decode_record, encode_record
from .session import Kept
from .values import describe_error

_SCHEMA = "flows.schema"
_VERSION = "2"
_TABLES = (
    # What is asked for has a column; the rest of the head is one blob.
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
    # For those who count them, or look for the few of a status among all that have ended.
    "CREATE INDEX postroad_flows_status ON postroad_flows (status)",
    """CREATE TABLE postroad_flow_steps (
        flow BIGINT NOT NULL, number BIGINT NOT NULL, record {blob} NOT NULL,
        PRIMARY KEY (flow, number)) {clustered}""",
    # What was said to a flow and it has not read; a signal has no session.
    """CREATE TABLE postroad_flow_mail (
        id {id}, flow BIGINT NOT NULL, session BIGINT, name TEXT, message {blob} NOT NULL)""",
    "CREATE INDEX postroad_flow_mail_flow ON postroad_flow_mail (flow, id)",
    """CREATE TABLE postroad_flow_schedules (
        name TEXT PRIMARY KEY, flow TEXT NOT NULL, cron TEXT NOT NULL, zone TEXT NOT NULL,
        arguments {blob} NOT NULL, catch_up TEXT NOT NULL, is_paused BIGINT NOT NULL,
        next_ms BIGINT NOT NULL, last_ms BIGINT)""",
)

_UPGRADES = {
    # No database used that index for what is looked for.
    "1": (
        "DROP INDEX postroad_flows_idle",
        "CREATE INDEX postroad_flows_status ON postroad_flows (status)",
    ),
}

_HEAD = "id, name, status, arguments, head"
_FIRST_ID = "flows.first_id"
_RUNNING = "flows.is_running"
_ID_BITS = 20
# Of those that schedules begin nobody asks for the result by their client id.
_NAMELESS = "(client_id IS NULL OR client_id LIKE 'schedule:%')"
_ID_GAP = 1 << 44


_STATUSES = frozenset(it.value for it in Status if it is not Status.UNREADABLE)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Head)


def create_tables(types: Mapping[str, str], database: Database) -> None:
    """Make the tables, if they are not there, or bring them up to date."""
    version = _check_version(database)
    if version == _VERSION:
        return
    for statement in _TABLES if version is None else _UPGRADES[version]:
        database.execute(statement.format_map(types))
    write_meta(database, _SCHEMA, _VERSION)


def has_tables(database: Database) -> bool:
    """Whether there are tables to read from; raises StoreMismatchError if nobody here can."""
    return _check_version(database) is not None


def _check_version(database: Database) -> str | None:
    version = read_meta(database, _SCHEMA)
    if version not in (None, _VERSION, *_UPGRADES):
        raise StoreMismatchError(
            f"the store has flows of schema {version} and this version of Postroad knows "
            f"{_VERSION}: it was written by a newer one"
        )
    return version


# Writing.


def _encode_head(head: Head) -> bytes:
    arguments, head.arguments = head.arguments, b""
    try:
        return _encoder.encode(head)
    finally:
        head.arguments = arguments


def head_row(head: Head) -> Row:
    """A head as a row; made where the head may change, written where it may not."""
    origin = head.origin
    place = (None,) * 3 if origin is None else (origin.peer, origin.key.flow, origin.key.number)
    return (
        head.id,
        head.name,
        head.status.value,
        head.client_id,
        *place,
        head.wake_ms,
        head.ended_ms,
        _encode_head(head),
        head.arguments,
    )


def insert_head(database: Database, row: Row) -> None:
    database.execute(
        "INSERT INTO postroad_flows (id, name, status, client_id, origin_peer, origin_flow,"
        " origin_number, wake_ms, ended_ms, head, arguments)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        row,
    )


def update_head(database: Database, row: Row, *, with_arguments: bool) -> None:
    id, name, status, _, _, _, _, wake_ms, ended_ms, head, arguments = row
    if with_arguments:
        database.execute("UPDATE postroad_flows SET arguments = ? WHERE id = ?", (arguments, id))
    is_known = database.change(
        "UPDATE postroad_flows SET name = ?, status = ?, wake_ms = ?, ended_ms = ?, head = ?"
        " WHERE id = ?",
        (name, status, wake_ms, ended_ms, head, id),
    )
    if not is_known:
        # Not a PostroadError: what was done before in this commit must be undone with it.
        raise RuntimeError(
            f"flow {show_id(id)} is not in the store any more, but was when it was read: something "
            "else than this node has changed the store, or an older copy of it was put in its place"
        )


def check_known(database: Database, flow: int) -> None:
    """Raise NoSuchFlow if a flow is not in the store."""
    if not database.execute("SELECT 1 FROM postroad_flows WHERE id = ?", (flow,)):
        raise NoSuchFlow(f"flow {show_id(flow)} is not in the store any more")


def insert_steps(database: Database, flow: int, first: int, records: Sequence[Record]) -> None:
    database.execute_many(
        "INSERT INTO postroad_flow_steps (flow, number, record) VALUES (?, ?, ?)",
        [(flow, first + index, encode_record(it)) for index, it in enumerate(records)],
    )


def delete_steps(database: Database, flow: int, first: int = 0) -> None:
    database.execute(
        "DELETE FROM postroad_flow_steps WHERE flow = ? AND number >= ?", (flow, first)
    )


def insert_mail(database: Database, rows: Iterable[Row]) -> None:
    """Keep messages; rows are (id, flow, session, name, message)."""
    database.execute_many(
        "INSERT INTO postroad_flow_mail (id, flow, session, name, message) VALUES (?, ?, ?, ?, ?)",
        rows,
    )


def message_row(flow: int, session: int, kept: Kept) -> Row:
    return (kept.id, flow, session, None, encode_message(kept.message))


def signal_row(flow: int, signal: KeptSignal) -> Row:
    return (signal.id, flow, None, signal.name, signal.payload)


def delete_mail(database: Database, ids: Iterable[int]) -> None:
    database.execute_many("DELETE FROM postroad_flow_mail WHERE id = ?", [(it,) for it in ids])


def delete_mail_of(database: Database, flow: int, *, with_signals: bool) -> None:
    only = "" if with_signals else " AND session IS NOT NULL"
    database.execute(f"DELETE FROM postroad_flow_mail WHERE flow = ?{only}", (flow,))


def delete_flow(database: Database, flow: int) -> None:
    delete_steps(database, flow)
    delete_mail_of(database, flow, with_signals=True)
    database.execute("DELETE FROM postroad_flows WHERE id = ?", (flow,))


def begin_running(database: Database) -> bool:
    """Note that a process runs flows; whether the last one was killed."""
    was_killed = read_meta(database, _RUNNING) == "1"
    write_meta(database, _RUNNING, "1")
    return was_killed


def end_running(database: Database) -> None:
    """Note that a process has stopped as it should."""
    write_meta(database, _RUNNING, "0")


def read_suspicious(database: Database) -> tuple[list[Head], list[Head]]:
    """Flows that were at work when the last process ended, and those that wait to go on."""
    open = f"SELECT {_HEAD} FROM postroad_flows WHERE status"
    running = _read_heads(database.execute(f"{open} = ? AND wake_ms = 0", (Status.RUNNING.value,)))
    waiting = _read_heads(
        database.execute(f"{open} IN (?, ?)", (Status.RETRYING.value, Status.PARKED.value))
    )
    return running, [it for it in waiting if it.recoveries]


# Reading.


def _read_head(row: Row) -> Head:
    """A head; one that cannot be read has a status of its own, and harms no other flow."""
    id, name, status, arguments, encoded = row
    try:
        head = _decoder.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(id, name, f"its head cannot be read: {error}")
    if status not in _STATUSES:
        return _unreadable(id, name, f"its status {status!r} is unknown")
    head.arguments = bytes(arguments)
    return head


def _unreadable(id: int, name: str, problem: str) -> Head:
    text = f"{problem}; it was written by a newer version of Postroad, or is damaged"
    return Head(
        id=id,
        name=name,
        version=0,
        status=Status.UNREADABLE,
        entropy=b"",
        started_ms=id >> _ID_BITS,
        trouble=Trouble("", describe_error(FlowMismatch(text)), 0, text),
    )


def _read_heads(rows: Iterable[Row]) -> list[Head]:
    return [_read_head(row) for row in rows]


def _one(rows: list[Row]) -> Head | None:
    return _read_head(rows[0]) if rows else None


def read_head(database: Database, flow: int) -> Head | None:
    return _one(database.execute(f"SELECT {_HEAD} FROM postroad_flows WHERE id = ?", (flow,)))


class StoredFlow(msgspec.Struct):
    """All that is in the store of a flow."""

    head: Head
    records: list[Record] = []
    kept: list[tuple[int, Kept]] = []
    signals: list[KeptSignal] = []
    problem: FlowMismatch | None = None
    """Why some of it cannot be read."""


def read_flow(database: Database, flow: int) -> StoredFlow | None:
    """A flow, to go on with it; of one that has ended only the head."""
    head = read_head(database, flow)
    if head is None or head.is_over:
        return None if head is None else StoredFlow(head)
    try:
        kept, signals = read_mail(database, flow)
        return StoredFlow(head, read_steps(database, flow), kept, signals)
    except FlowMismatch as problem:
        return StoredFlow(head, problem=problem)


def read_run(database: Database, flow: int) -> tuple[Head, list[Record]]:
    """A flow that is there, with the steps of the same run of its code."""
    while True:
        head, records, after = (
            read_head(database, flow), read_steps(database, flow), read_head(database, flow),
        )  # fmt: skip
        assert head is not None and after is not None
        if head.run == after.run:
            return head, records


def find_client(database: Database, client_id: str) -> Head | None:
    return _one(
        database.execute(f"SELECT {_HEAD} FROM postroad_flows WHERE client_id = ?", (client_id,))
    )


def find_responder(database: Database, origin: Origin) -> int | None:
    """The flow that responds to a session."""
    rows = database.execute(
        "SELECT id FROM postroad_flows"
        " WHERE origin_flow = ? AND origin_number = ? AND origin_peer = ?",
        (origin.key.flow, origin.key.number, origin.peer),
    )
    return rows[0][0] if rows else None


def read_steps(database: Database, flow: int) -> list[Record]:
    rows = database.execute(
        "SELECT record FROM postroad_flow_steps WHERE flow = ? ORDER BY number", (flow,)
    )
    try:
        return [decode_record(record) for (record,) in rows]
    except msgspec.DecodeError as error:
        raise FlowMismatch(
            f"its record was written by another version of Postroad: {error}"
        ) from None


def read_mail(database: Database, flow: int) -> tuple[list[tuple[int, Kept]], list[KeptSignal]]:
    """What a flow has not read: messages by session, and signals."""
    kept: list[tuple[int, Kept]] = []
    signals: list[KeptSignal] = []
    for id, session, name, message in database.execute(
        "SELECT id, session, name, message FROM postroad_flow_mail WHERE flow = ? ORDER BY id",
        (flow,),
    ):
        if session is None:
            signals.append(KeptSignal(name, bytes(message), id))
        else:
            kept.append((session, Kept(_read_message(message), id)))
    return kept, signals


def _read_message(encoded: bytes) -> Message:
    try:
        return decode_message(encoded)
    except msgspec.DecodeError as error:
        raise FlowMismatch(
            f"what was said to it was written by another version of Postroad: {error}"
        ) from None


def reserve_ids(database: Database, now_ms: int) -> int:
    """The first of the ids that this process may give to flows; none of them was ever used.

    They begin with the time, so that they are in order and nobody need remember them.
    """
    used = int(read_meta(database, _FIRST_ID) or 0)
    first = now_ms << _ID_BITS
    if first <= used:
        # The clock was set back: leave room for all that may have been used since.
        first = used + _ID_GAP
    write_meta(database, _FIRST_ID, str(first))
    last: int | None = database.execute("SELECT MAX(id) FROM postroad_flows")[0][0]
    return max(first, (last or 0) + 1)


def last_mail_id(database: Database) -> int:
    """The highest id of what is kept."""
    last: int | None = database.execute("SELECT MAX(id) FROM postroad_flow_mail")[0][0]
    return last or 0


def due(database: Database, now_ms: int, after: int, limit: int) -> list[int]:
    """Flows that must be looked at by now, in order of their ids."""
    rows = database.execute(
        "SELECT id FROM postroad_flows WHERE wake_ms <= ? AND id > ? ORDER BY id LIMIT ?",
        (now_ms, after, limit),
    )
    return [id for (id,) in rows]


def next_due_ms(database: Database, now_ms: int) -> int | None:
    rows = database.execute("SELECT MIN(wake_ms) FROM postroad_flows WHERE wake_ms > ?", (now_ms,))
    due_ms: int | None = rows[0][0]
    return due_ms


def list_idle(
    database: Database, status: Status, name: str | None, limit: int, after: int = 0
) -> list[Head]:
    """Flows of a status that no timer wakes, the oldest first; `after` continues a list."""
    only, parameters = ("", ()) if name is None else (" AND name = ?", (name,))
    rows = database.execute(
        f"SELECT {_HEAD} FROM postroad_flows WHERE status = ? AND id > ?{only} ORDER BY id LIMIT ?",
        (status.value, after, *parameters, limit),
    )
    return _read_heads(rows)


def count(database: Database) -> dict[tuple[str, Status], int]:
    """How many flows there are of each name and status."""
    rows = database.execute("SELECT name, status, COUNT(*) FROM postroad_flows GROUP BY 1, 2")
    numbers: Counter[tuple[str, Status]] = Counter()
    for name, status, number in rows:
        numbers[name, _status(status)] += number
    return numbers


def _status(text: str) -> Status:
    return Status(text) if text in _STATUSES else Status.UNREADABLE


def count_statuses(database: Database) -> dict[Status, int]:
    """How many flows there are of each status."""
    rows = database.execute("SELECT status, COUNT(*) FROM postroad_flows GROUP BY status")
    numbers: Counter[Status] = Counter()
    for status, number in rows:
        numbers[_status(status)] += int(number)
    return numbers


def list_heads(
    database: Database, status: Status | None, name: str | None, before: int | None, limit: int
) -> list[Head]:
    """Flows, the newest first."""
    is_unknown = status is Status.UNREADABLE
    wanted: list[tuple[str, str | int | None]] = [
        ("status = ?", None if status is None or is_unknown else status.value),
        ("name = ?", name),
        ("id < ?", before),
    ]
    given = [(text, value) for text, value in wanted if value is not None]
    where = " AND ".join(["1 = 1", *(text for text, _ in given)])
    if is_unknown:
        known = ", ".join(f"'{it}'" for it in sorted(_STATUSES))
        where += f" AND status NOT IN ({known})"
    rows = database.execute(
        f"SELECT {_HEAD} FROM postroad_flows WHERE {where} ORDER BY id DESC LIMIT ?",
        (*(value for _, value in given), limit),
    )
    return _read_heads(rows)


def ended_before(database: Database, ended_ms: int, limit: int, *, has_client: bool) -> list[int]:
    """Flows with or without a client id that ended before some time."""
    states = ", ".join(f"'{it.value}'" for it in sorted(ENDED))
    rows = database.execute(
        f"SELECT id FROM postroad_flows WHERE status IN ({states}) AND ended_ms < ?"
        f" AND {'NOT ' if has_client else ''}{_NAMELESS} ORDER BY id LIMIT ?",
        (ended_ms, limit),
    )
    return [id for (id,) in rows]
