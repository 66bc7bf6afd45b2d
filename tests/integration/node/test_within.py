"""Messages, flows and signals within transactions of users, on connections of their own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import django
import msgspec
import psycopg
import pytest
import sqlalchemy
from django.conf import settings
from django.db import transaction as django_transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from postroad import App, FlowContext, Message, Node, Queue, consumer, flow, within
from postroad.core.errors import ConfigError, MessageTooLargeError, UsageError
from postroad.durable import DurableQueuesConfig
from postroad.flows import FlowNotFoundError
from postroad.node import NodeConfig
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.node.configs import config_of
from tests.support.servers.postgres import fresh_database

ROUNDS = 20


class Order(msgspec.Struct):
    number: int


ORDERS = Queue("orders", Order)
ELSEWHERE = Queue("orders", Order, to="omega")


@flow
async def ship(ctx: FlowContext, number: int) -> str:
    return f"{number} to {await ctx.wait_for_signal('address', str)}"


class Place(NamedTuple):
    """A database, as users and a node name it."""

    config: NodeConfig
    path: Path
    dsn: str

    @property
    def url(self) -> str:
        """What SQLAlchemy calls it."""
        if self.dsn:
            return self.dsn.replace("postgresql://", "postgresql+psycopg://")
        return f"sqlite:///{self.path}"


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        path = tmp_path / "alpha.db"
        yield Place(config_of(tmp_path, queues={"store": str(path)}), path, "")
        return
    with fresh_database() as dsn:
        yield Place(config_of(tmp_path, queues={"store": dsn}), tmp_path / "none", dsn)


@contextmanager
def plain(place: Place) -> Iterator[Any]:
    """A connection of the driver."""
    if place.dsn:
        with psycopg.connect(place.dsn) as connection:
            yield connection
        return
    with closing(sqlite3.connect(place.path, timeout=DEADLINE_S)) as file, file:
        yield file


@contextmanager
def cursor(place: Place) -> Iterator[Any]:
    with plain(place) as connection:
        yield connection.cursor()


@contextmanager
def sql_engine(place: Place) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(place.url)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def sql_connection(place: Place) -> Iterator[Any]:
    with sql_engine(place) as engine, engine.begin() as connection:
        yield connection


@contextmanager
def sql_session(place: Place) -> Iterator[Any]:
    with sql_engine(place) as engine, Session(engine) as session, session.begin():
        yield session


@contextmanager
def scoped(place: Place) -> Iterator[Any]:
    with sql_engine(place) as engine:
        sessions = scoped_session(sessionmaker(engine))
        try:
            with sessions.begin():
                yield sessions
        finally:
            sessions.remove()


@contextmanager
def in_django(place: Place) -> Iterator[Any]:
    if not settings.configured:
        settings.configure()
        django.setup()
    parts = sqlalchemy.make_url(place.url)
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(place.path)}
    if place.dsn:
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": str(parts.database),
            "USER": str(parts.username),
            "PASSWORD": str(parts.password),
            "HOST": str(parts.host),
            "PORT": str(parts.port),
        }
    connection: BaseDatabaseWrapper = ConnectionHandler({"default": database})["default"]
    connection.inc_thread_sharing()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        patch.setattr(django_transaction, "get_connection", lambda using=None: connection)
        try:
            with django_transaction.atomic():
                yield connection
        finally:
            connection.close()


@asynccontextmanager
async def async_plain(place: Place) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(place.dsn) as connection:
        yield connection


@asynccontextmanager
async def async_cursor(place: Place) -> AsyncIterator[Any]:
    async with async_plain(place) as connection:
        yield connection.cursor()


@asynccontextmanager
async def async_sql_connection(place: Place) -> AsyncIterator[Any]:
    engine = create_async_engine(place.url)
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def async_sql_session(place: Place) -> AsyncIterator[Any]:
    engine = create_async_engine(place.url)
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


SYNC = [plain, cursor, sql_connection, sql_session, scoped, in_django]
ASYNC = [async_plain, async_cursor, async_sql_connection, async_sql_session]


class Handled:
    """A node with a queue and a flow, and what its consumer was given."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

        @consumer(ORDERS)
        async def handle(order: Order) -> None:
            self.numbers.append(order.number)

        self.app = App(consumers=[handle], flows=[ship])

    async def until(self, *numbers: int) -> None:
        await eventually(lambda: self.numbers == [*numbers], f"{self.numbers} is {numbers}")


async def result_of(node: Node, client_id: str) -> object:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await (await node.flows.get_by_client_id(client_id)).result()
            except FlowNotFoundError:
                await asyncio.sleep(0.01)


class Rollback(Exception):
    """What the transactions of these tests end with."""


@pytest.mark.parametrize("open_transaction", SYNC)
async def test_what_commits_is_done_and_nothing_else(place: Place, open_transaction: Any) -> None:
    handled = Handled()
    async with Node(place.config, handled.app) as node:
        with pytest.raises(Rollback), open_transaction(place) as where:
            within.send(where, ORDERS, Order(1))
            within.start_flow_with_id(where, "rolled back", ship, 1)
            raise Rollback
        with open_transaction(place) as where:
            ids = [within.send(where, ORDERS, Order(number)) for number in (2, 3)]
            generated = within.start_flow(where, ship, 2)
            within.start_flow_with_id(where, "mine", ship, number=3)
            for flow_id in ("mine", generated):
                within.signal(where, flow_id, "address", "Ghent")
            assert not handled.numbers
        await handled.until(2, 3)
        assert len(set(ids)) == 2
        assert await result_of(node, "mine") == "3 to Ghent"
        assert await result_of(node, generated) == "2 to Ghent"
        assert len(await node.flows.admin.list()) == 2


@pytest.mark.parametrize("open_transaction", ASYNC)
async def test_what_commits_asynchronously_is_done_and_nothing_else(
    tmp_path: Path, open_transaction: Any
) -> None:
    handled = Handled()
    with fresh_database() as dsn:
        place = Place(config_of(tmp_path, queues={"store": dsn}), tmp_path / "none", dsn)
        async with Node(place.config, handled.app) as node:
            with pytest.raises(Rollback):
                async with open_transaction(place) as where:
                    await within.send(where, ORDERS, Order(1))
                    raise Rollback
            async with open_transaction(place) as where:
                assert await within.send(where, ORDERS, Order(2)) > 0
                client_id = await within.start_flow(where, ship, 2)
                await within.start_flow_with_id(where, "mine", ship, 3)
                assert await within.signal(where, "mine", "address", "Ghent") is None
                await within.signal(where, client_id, "address", "Liege")
            await handled.until(2)
            assert await result_of(node, "mine") == "3 to Ghent"
            assert await result_of(node, client_id) == "2 to Liege"


async def test_node_may_be_away_and_takes_all_in_order_once(place: Place) -> None:
    handled = Handled()
    async with Node(place.config, handled.app):
        pass
    for number in range(ROUNDS):
        with sql_connection(place) as where:
            within.send(where, ORDERS, Order(2 * number))
            within.send(where, ORDERS, Order(2 * number + 1))
    for _ in range(2):
        async with Node(place.config, handled.app):
            await handled.until(*range(2 * ROUNDS))


async def test_options_are_those_of_send(place: Place) -> None:
    messages: list[Message] = []

    @consumer(Queue("raw"))
    async def handle(body: bytes, message: Message) -> None:
        messages.append(message)

    async with Node(place.config, App(consumers=[handle])) as node:
        for number in range(2):
            with plain(place) as where:
                within.send(
                    where, "raw", b"tea", key="k", priority=3, headers={"a": "b"},
                    idempotency_key="once", reply_to="answers", delay=0.001, ttl=60.0,
                )  # fmt: skip
                within.send(where, "raw", b"%d" % number, idempotency_key="conflict")
        await eventually(lambda: len(messages) == 2)
        (message,) = [each for each in messages if each.body == b"tea"]
        assert (message.key, message.priority, dict(message.headers)) == ("k", 3, {"a": "b"})
        assert (message.reply_to, message.sender, message.attempt) == ("answers", "alpha", 1)
        await eventually(node.queues.dead_letters.count)
        (dead,) = await node.queues.dead_letters.list()
        assert dead.reason == "rejected" and "'conflict' was used for another" in dead.detail


async def test_message_for_another_node_waits_in_the_outbox(place: Place) -> None:
    async with Node(place.config) as node:
        with plain(place) as where:
            within.send(where, ELSEWHERE, Order(1))
            within.send(where, ORDERS, Order(2), to="omega")

        async def bodies() -> list[bytes]:
            return [each.body for each in await node.queues.bridges.peek("omega")]

        await eventually(lambda: _is(bodies, [b'{"number":1}', b'{"number":2}']))


async def _is(read: Any, expected: object) -> bool:
    return bool(await read() == expected)


async def test_rows_for_a_full_outbox_wait_and_keep_nothing_else_waiting(place: Place) -> None:
    handled = Handled()
    config = msgspec.structs.replace(
        place.config,
        queues=msgspec.structs.replace(
            place.config.queues, tuning=DurableQueuesConfig(outbox_messages_max=1)
        ),
    )
    async with Node(config, handled.app) as node:
        with plain(place) as where:
            for number in range(3):
                within.send(where, ELSEWHERE, Order(number))
            within.send(where, ORDERS, Order(9))
        await handled.until(9)
        assert len(await node.queues.bridges.peek("omega")) == 1
        assert await arrivals(place) == 2
        await node.queues.bridges.purge("omega")
        with plain(place) as where:
            within.send(where, ORDERS, Order(10))
        await handled.until(9, 10)


async def arrivals(place: Place) -> int:
    with plain(place) as where:
        schema = '"postroad".' if place.dsn else ""
        (row,) = where.execute(f"SELECT count(*) FROM {schema}postroad_arrivals").fetchall()
        return int(row[0])


async def test_rows_that_nobody_could_send_are_dead_letters(place: Place) -> None:
    handled = Handled()
    async with Node(place.config, handled.app) as node:
        large = within.Outbox(config=DurableQueuesConfig(message_bytes_max=2 << 20))
        with plain(place) as where:
            large.send(where, "orders", bytes(3 << 19))
            schema, mark = ('"postroad".', "%s") if place.dsn else ("", "?")
            statement = (
                f"INSERT INTO {schema}postroad_arrivals (peer, body) VALUES ({mark}, {mark})"
            )
            where.execute(statement, (None, b"\xc1"))
            where.execute(statement, ("no node", b"\x91\xc4\x00"))
            within.send(where, ORDERS, Order(1))
        await handled.until(1)
        dead = await node.queues.dead_letters.list()
        assert [each.reason for each in dead] == ["too large", "unreadable", "unreadable"]


async def test_mistakes_raise_where_they_are_made(place: Place, tmp_path: Path) -> None:
    async with Node(place.config):
        with plain(place) as where:
            with pytest.raises(UsageError, match="Order"):
                within.send(where, ORDERS, 5)  # type: ignore[misc]
            with pytest.raises(UsageError, match="a body is bytes, not str"):
                within.send(where, "orders", "tea")
            with pytest.raises(MessageTooLargeError, match="message_bytes_max is 1048576"):
                within.send(where, "orders", bytes(1 << 20))
            with pytest.raises(ConfigError, match="queue name"):
                within.send(where, "a queue", b"")
            with pytest.raises(UsageError, match="missing a required argument: 'number'"):
                within.start_flow(where, ship)  # type: ignore[call-overload]
    for nothing in (None, "postgresql://", object(), sqlalchemy.create_engine(place.url)):
        with pytest.raises(UsageError, match="is nothing to write with: pass a connection"):
            within.send(nothing, ORDERS, Order(1))
    with pytest.raises(ConfigError, match="must consist of letters"):
        within.Outbox(schema='a"b')


@pytest.mark.parametrize("open_transaction", [plain, sql_session, in_django])
async def test_database_without_a_node_is_named(place: Place, open_transaction: Any) -> None:
    with pytest.raises(UsageError, match="not that of a node"), open_transaction(place) as where:
        within.send(where, ORDERS, Order(1))


async def test_schema_of_the_node_can_be_named(tmp_path: Path) -> None:
    handled = Handled()
    with fresh_database() as dsn:
        config = config_of(tmp_path, queues={"store": f"{dsn}?schema=shop"})
        place = Place(config, tmp_path / "none", dsn)
        async with Node(config, handled.app):
            with plain(place) as where:
                within.Outbox(schema="shop").send(where, ORDERS, Order(1))
            await handled.until(1)
        with pytest.raises(UsageError, match="schema 'postroad'"), plain(place) as where:
            within.send(where, ORDERS, Order(1))
