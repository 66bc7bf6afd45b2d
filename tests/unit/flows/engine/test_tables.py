"""Flows in the store: what is written is what is read."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from postroad.core.errors import StoreMismatchError
from postroad.durable import MemoryStore, Store
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables.schema import write_meta
from postroad.flows.engine import tables
from postroad.flows.machine.events import BufferedSignal
from postroad.flows.machine.history import CommandKind, HistoryEntry, encode_history_entry
from postroad.flows.machine.state import FlowState, InitiatingSession
from postroad.flows.machine.status import FlowStatus
from postroad.flows.sessions.messages import SessionConfirm, SessionData, SessionKey
from postroad.flows.sessions.session import BufferedMessage
from tests.support.cases import each
from tests.support.durable.nodes import opened

ORIGIN = InitiatingSession("beta", SessionKey(5, 1), "ask", 2, "shop")


class Desk:
    """A store, by functions of its database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await self._store.write(lambda stored: function(stored.database, *args, **kwargs))

    async def create(self) -> None:
        await self._store.write(
            lambda stored: tables.create_tables(self._store.column_types, stored.database)
        )

    async def add(self, *states: FlowState) -> None:
        for state in states:
            await self.do(tables.insert_state, tables.state_row(state))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with opened(MemoryStore()) as store:
        desk = Desk(store)
        await desk.create()
        yield desk


def make_state(id: int = 1, **facts: Any) -> FlowState:
    fields: dict[str, Any] = {"id": id, "name": "pay", "version": 1, "status": FlowStatus.RUNNING}
    fields |= {"seed": b"e", "started_ms": 5, "arguments": b"\x92"}
    return FlowState(**fields | facts)


def make_record(number: int) -> HistoryEntry:
    return HistoryEntry(
        position=(number,), kind=CommandKind.STEP, name="s", digest=b"", at_ms=number
    )


async def test_tables_are_made_once_and_checked(desk: Desk) -> None:
    await desk.add(make_state())
    await desk.create()
    assert await desk.do(tables.read_state, 1) == make_state()

    def age(database: StoreConnection) -> None:
        write_meta(database, "flows.schema", "99")

    await desk.do(age)
    with pytest.raises(StoreMismatchError, match="schema 99 of flows"):
        await desk.create()


async def test_tables_of_an_earlier_version_are_brought_up_to_date(desk: Desk) -> None:
    def go_back(database: StoreConnection) -> None:
        database.execute("DROP INDEX postroad_flows_status")
        database.execute(
            "CREATE INDEX postroad_flows_idle ON postroad_flows (status, name)"
            " WHERE status IN ('queued', 'held', 'parked', 'paused')"
        )
        write_meta(database, "flows.schema", "1")

    await desk.add(make_state())
    await desk.do(go_back)
    assert await desk.do(tables.has_tables)
    await desk.create()
    await desk.create()
    assert await desk.do(tables.count_by_status) == {FlowStatus.RUNNING: 1}
    (plan,) = await desk.do(_plan, "SELECT status, COUNT(*) FROM postroad_flows GROUP BY status")
    assert "COVERING INDEX postroad_flows_status" in plan


@each("parked", "killed", "done")
async def test_flows_of_a_status_are_found_without_looking_at_all(status: str, desk: Desk) -> None:
    statement = "SELECT id FROM postroad_flows WHERE status = ? ORDER BY id DESC LIMIT 9"
    (plan,) = await desk.do(_plan, statement, status)
    assert "postroad_flows_status" in plan


def _plan(database: StoreConnection, statement: str, *parameters: str) -> list[str]:
    """How SQLite goes about a statement."""
    rows = database.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
    return [str(row[3]) for row in rows]


async def test_flows_are_counted_by_status_and_rows_leave_heads_alone(desk: Desk) -> None:
    assert await desk.do(tables.count_by_status) == {}
    await desk.add(make_state(1), make_state(2), make_state(3, status=FlowStatus.PARKED))
    assert await desk.do(tables.count_by_status) == {FlowStatus.RUNNING: 2, FlowStatus.PARKED: 1}
    state = make_state()
    tables.state_row(state)
    assert state == make_state()


@pytest.mark.parametrize(
    "state",
    [
        make_state(),
        make_state((1 << 63) - 1, client_id="order-7", wake_ms=0, arguments=b""),
        make_state(
            initiated_by=ORIGIN, status=FlowStatus.HELD, progress="half", deadline_ms=1 << 50
        ),
        make_state(status=FlowStatus.COMPLETED, result=b"\x01", ended_ms=9),
    ],
    ids=["plain", "client", "responder", "done"],
)
async def test_head_comes_back(desk: Desk, state: FlowState) -> None:
    await desk.add(state)
    assert await desk.do(tables.read_state, state.id) == state


async def test_state_is_found_by_client_id_and_session(desk: Desk) -> None:
    await desk.add(make_state(1, client_id="order-7"), make_state(2, initiated_by=ORIGIN))
    assert (await desk.do(tables.find_by_client_id, "order-7")).id == 1
    assert await desk.do(tables.find_by_client_id, "order-8") is None
    assert await desk.do(tables.find_responder, ORIGIN) == 2
    other = InitiatingSession("gamma", ORIGIN.key, "ask", 2, "shop")
    assert await desk.do(tables.find_responder, other) is None
    assert await desk.do(tables.read_state, 3) is None


@pytest.mark.parametrize("facts", [{"client_id": "order-7"}, {"initiated_by": ORIGIN}])
async def test_there_is_one_flow_for_a_client_id_or_a_session(
    desk: Desk, facts: dict[str, Any]
) -> None:
    await desk.add(make_state(1, **facts))
    with pytest.raises(Exception, match="UNIQUE"):
        await desk.add(make_state(2, **facts))


@pytest.mark.parametrize(("with_arguments", "expected"), [(True, b"new"), (False, b"\x92")])
async def test_update_state_writes_arguments_only_on_request(
    desk: Desk, with_arguments: bool, expected: bytes
) -> None:
    state = make_state()
    await desk.add(state)
    state.status, state.wake_ms, state.arguments = FlowStatus.RETRYING, 77, b"new"
    await desk.do(tables.update_state, tables.state_row(state), with_arguments=with_arguments)
    read = await desk.do(tables.read_state, 1)
    assert (read.status, read.wake_ms, read.arguments) == (FlowStatus.RETRYING, 77, expected)


async def test_steps_come_back_in_their_order_and_once(desk: Desk) -> None:
    entries = [make_record(number) for number in range(5)]
    await desk.do(tables.insert_steps, 1, 3, entries[3:])
    await desk.do(tables.insert_steps, 1, 0, entries[:3])
    await desk.do(tables.insert_steps, 2, 0, entries[:1])
    assert await desk.do(tables.read_steps, 1) == entries
    await desk.do(tables.delete_steps, 1, 2)
    assert await desk.do(tables.read_steps, 1) == entries[:2]
    await desk.do(tables.delete_steps, 1)
    assert await desk.do(tables.read_steps, 1) == []
    assert await desk.do(tables.read_steps, 2) == entries[:1]
    await desk.do(tables.insert_steps, 1, 0, [make_record(0)])
    with pytest.raises(Exception, match="UNIQUE"):
        await desk.do(tables.insert_steps, 1, 0, [make_record(0)])


MAIL = [
    tables.buffered_message_row(1, 2, BufferedMessage(SessionConfirm("answer", 1, ""), 10)),
    tables.buffered_message_row(1, 0, BufferedMessage(SessionData(b"x"), 11)),
    tables.buffered_signal_row(1, BufferedSignal("go", b"\x01", 12)),
    tables.buffered_message_row(2, 0, BufferedMessage(SessionData(b"y"), 13)),
]


async def test_buffered_messages_keep_order_and_are_deleted_by_id(desk: Desk) -> None:
    assert await desk.do(tables.last_buffered_id) == 0
    await desk.do(tables.insert_buffered, MAIL)
    assert await desk.do(tables.last_buffered_id) == 13
    buffered, signals = await desk.do(tables.read_buffered, 1)
    assert buffered == [
        (2, BufferedMessage(SessionConfirm("answer", 1, ""), 10)),
        (0, BufferedMessage(SessionData(b"x"), 11)),
    ]
    assert signals == [BufferedSignal("go", b"\x01", 12)]
    await desk.do(tables.delete_buffered, [10, 12])
    assert await desk.do(tables.read_buffered, 1) == (
        [(0, BufferedMessage(SessionData(b"x"), 11))],
        [],
    )


@pytest.mark.parametrize("with_signals", [True, False])
async def test_all_buffered_messages_of_flow_are_deleted(desk: Desk, with_signals: bool) -> None:
    await desk.do(tables.insert_buffered, MAIL)
    await desk.do(tables.delete_buffered_of, 1, with_signals=with_signals)
    buffered, signals = await desk.do(tables.read_buffered, 1)
    assert (buffered, len(signals)) == ([], 0 if with_signals else 1)
    assert len((await desk.do(tables.read_buffered, 2))[0]) == 1


async def test_deleted_flow_has_no_rows_left(desk: Desk) -> None:
    await desk.add(make_state(1), make_state(2))
    await desk.do(tables.insert_buffered, MAIL)
    await desk.do(tables.insert_steps, 1, 0, [make_record(0)])
    await desk.do(tables.delete_flow, 1)
    assert await desk.do(tables.read_state, 1) is None
    assert await desk.do(tables.read_steps, 1) == []
    assert await desk.do(tables.read_buffered, 1) == ([], [])
    assert await desk.do(tables.read_state, 2) is not None


async def test_everything_a_flow_has_is_read_at_once(desk: Desk) -> None:
    assert await desk.do(tables.read_flow, 1) is None
    await desk.add(make_state(1), make_state(2, status=FlowStatus.COMPLETED))
    await desk.do(tables.insert_steps, 1, 0, [make_record(0)])
    await desk.do(tables.insert_steps, 2, 0, [make_record(0)])
    await desk.do(tables.insert_buffered, MAIL)
    stored_flow = await desk.do(tables.read_flow, 1)
    assert (stored_flow.state, stored_flow.entries, stored_flow.problem) == (
        make_state(1),
        [make_record(0)],
        None,
    )
    assert (len(stored_flow.buffered), len(stored_flow.signals)) == (2, 1)
    ended = await desk.do(tables.read_flow, 2)
    assert (ended.state.status, ended.entries, ended.buffered) == (FlowStatus.COMPLETED, [], [])


@each(b"", b"\xc1", b"\x91\x01", b"\x95\x91\x00\xa4step\xa1\xff\xc4\x00\x00")
async def test_undecodable_history_entry_is_reported_as_problem(record: bytes, desk: Desk) -> None:
    await desk.add(make_state(1))

    def spoil(database: StoreConnection) -> None:
        database.execute(
            "INSERT INTO postroad_flow_steps (flow, number, record) VALUES (?, ?, ?)",
            (1, 0, record),
        )

    await desk.do(spoil)
    stored_flow = await desk.do(tables.read_flow, 1)
    assert stored_flow.state == make_state(1)
    assert "another version of Postroad" in str(stored_flow.problem)
    await desk.do(tables.delete_flow, 1)


async def test_ids_are_never_used_twice_even_if_the_clock_is_set_back(desk: Desk) -> None:
    first = await desk.do(tables.reserve_ids, 1_000_000)
    await desk.add(make_state(first), make_state(first + 5))
    again = await desk.do(tables.reserve_ids, 1_000_000)
    assert again > first + 5
    await desk.do(tables.delete_flow, first + 5)
    back = await desk.do(tables.reserve_ids, 10)
    assert back > again
    forward = await desk.do(tables.reserve_ids, 2_000_000_000)
    assert back < forward < 1 << 63


async def test_flows_that_are_due(desk: Desk) -> None:
    for id, wake_ms in enumerate([None, 0, 100, 101, 50], start=1):
        await desk.add(make_state(id, wake_ms=wake_ms))
    assert await desk.do(tables.list_due, 100, 0, 10) == [2, 3, 5]
    assert await desk.do(tables.list_due, 100, 2, 10) == [3, 5]
    assert await desk.do(tables.list_due, 100, 0, 1) == [2]
    assert await desk.do(tables.next_wakeup_ms, 100) == 101
    assert await desk.do(tables.next_wakeup_ms, 101) is None


async def test_a_process_that_was_killed_is_noticed_by_the_next(desk: Desk) -> None:
    assert not await desk.do(tables.mark_running)
    assert await desk.do(tables.mark_running)
    await desk.do(tables.mark_stopped)
    assert not await desk.do(tables.mark_running)


async def test_flows_that_may_have_ended_the_process(desk: Desk) -> None:
    await desk.add(
        make_state(1, wake_ms=0),
        make_state(2, wake_ms=5),
        make_state(3, status=FlowStatus.RETRYING, wake_ms=7, crash_recoveries=6),
        make_state(4, status=FlowStatus.PARKED, crash_recoveries=1),
        make_state(5, status=FlowStatus.PARKED),
        make_state(6, status=FlowStatus.PAUSED, crash_recoveries=1),
    )
    at_work, waiting = await desk.do(tables.read_suspicious)
    assert ([state.id for state in at_work], {state.id for state in waiting}) == ([1], {3, 4})
    assert at_work[0].arguments == b"\x92"


async def test_update_of_missing_state_raises(desk: Desk) -> None:
    row = tables.state_row(make_state(1))
    with pytest.raises(RuntimeError, match="cannot commit flow 0000000000000001"):
        await desk.do(tables.update_state, row, with_arguments=False)


async def test_flows_by_status_and_name(desk: Desk) -> None:
    await desk.add(
        make_state(1, status=FlowStatus.QUEUED),
        make_state(2, status=FlowStatus.QUEUED, name="buy"),
        make_state(3, status=FlowStatus.PARKED),
        make_state(4, status=FlowStatus.QUEUED),
    )
    assert [
        state.id for state in await desk.do(tables.list_by_status, FlowStatus.QUEUED, None, 9)
    ] == [
        1,
        2,
        4,
    ]
    assert [
        state.id for state in await desk.do(tables.list_by_status, FlowStatus.QUEUED, "pay", 1)
    ] == [1]
    assert [
        state.id for state in await desk.do(tables.list_by_status, FlowStatus.QUEUED, "pay", 9, 1)
    ] == [4]
    assert await desk.do(tables.list_by_status, FlowStatus.HELD, None, 9) == []
    assert await desk.do(tables.count_by_name_and_status) == {
        ("pay", FlowStatus.QUEUED): 2,
        ("buy", FlowStatus.QUEUED): 1,
        ("pay", FlowStatus.PARKED): 1,
    }


@pytest.mark.parametrize(
    ("status", "name", "before", "limit", "ids"),
    [
        (None, None, None, 10, [4, 3, 2, 1]),
        (FlowStatus.COMPLETED, None, None, 10, [4, 2]),
        (None, "buy", None, 10, [3]),
        (FlowStatus.COMPLETED, "buy", None, 10, []),
        (None, None, 4, 2, [3, 2]),
    ],
)
async def test_list_states_returns_newest_first(
    desk: Desk, status: FlowStatus, name: str, before: int, limit: int, ids: list[int]
) -> None:
    await desk.add(
        make_state(1),
        make_state(2, status=FlowStatus.COMPLETED),
        make_state(3, name="buy"),
        make_state(4, status=FlowStatus.COMPLETED),
    )
    heads = await desk.do(tables.list_states, status, name, before, limit)
    assert [state.id for state in heads] == ids


async def test_flows_that_ended_long_ago(desk: Desk) -> None:
    await desk.add(
        make_state(1, status=FlowStatus.COMPLETED, ended_ms=5),
        make_state(2, status=FlowStatus.FAILED, ended_ms=6, client_id="order-7"),
        make_state(3, status=FlowStatus.KILLED, ended_ms=10),
        make_state(4),
    )
    assert await desk.do(tables.list_ended_before, 10, 9, has_client=False) == [1]
    assert await desk.do(tables.list_ended_before, 11, 9, has_client=False) == [1, 3]
    assert await desk.do(tables.list_ended_before, 11, 1, has_client=False) == [1]
    assert await desk.do(tables.list_ended_before, 10, 9, has_client=True) == [2]


async def test_encoded_steps_are_read_in_pages(desk: Desk) -> None:
    entries = [make_record(number) for number in range(5)]
    await desk.do(tables.insert_steps, 7, 0, entries)
    encoded = [encode_history_entry(entry) for entry in entries]
    size = len(encoded[0])
    for first, limit, bytes_max, expected in (
        (0, 9, 1_000, encoded),
        (1, 2, 1_000, encoded[1:3]),
        (0, 9, size + 1, encoded[:2]),
        (3, 9, 0, encoded[3:4]),
        (5, 9, 1_000, []),
    ):
        assert await desk.do(tables.read_encoded_steps, 7, first, limit, bytes_max) == expected
    assert await desk.do(tables.read_encoded_steps, 8, 0, 9, 1_000) == []
