"""Messages, flows and signals within a transaction of your own, on a connection of your own.

    with engine.begin() as connection:
        connection.execute(insert(orders).values(id=7))
        within.send(connection, invoices, Invoice(7))
        within.start_flow(connection, ship, 7)

`where` is a connection to the database of a node: of psycopg, sqlite3 or Django, or a connection or
session of SQLAlchemy. What is wanted becomes one row, whose INSERT conflicts with nothing. Once the
transaction has committed, the node does it, exactly once, about a tenth of a second later; the node
need not run before that. If the transaction rolls back, nothing happens.

With an asynchronous connection or session each function returns an awaitable.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from functools import lru_cache
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, overload

from postroad.core.errors import ConfigError, UsageError
from postroad.durable import DurableQueuesConfig
from postroad.durable.arrivals import encode_arrival
from postroad.durable.producer import MessageEncoder, OutgoingMessage, SendOptions, StartableFlow
from postroad.flows.inbox.requests import FlowRequests
from postroad.node.queues.queue import Queue

__all__ = ["Outbox", "send", "signal", "start_flow", "start_flow_with_id"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

# Rows name no peer where they are for the node of the database, whatever its name is.
_NODE = "node"
_COLUMNS = "postroad_arrivals (peer, body)"

_Row: TypeAlias = tuple[str | None, bytes]


class AsyncConnection(Protocol):
    """An asynchronous connection of psycopg or SQLAlchemy, or a session."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...


class Outbox:
    """Sends as one node, which is told by where its tables are.

        shop = Outbox(schema="shop")
        shop.send(connection, "orders", b"one tea")

    The functions of this module are the methods of an outbox with defaults.

    Args:
        schema: where the node's tables are in PostgreSQL, as its configuration says.
        config: sizes of the node's queues, if its messages may be larger than usual.
    """

    def __init__(self, schema: str = "postroad", config: DurableQueuesConfig | None = None) -> None:
        if not schema.isidentifier():
            raise ConfigError(f"schema {schema!r} must consist of letters, digits and '_'")
        self._schema = schema
        self._encoder = MessageEncoder(config or DurableQueuesConfig(), _NODE)
        self._requests = FlowRequests()

    @overload
    def send(
        self,
        where: AsyncConnection,
        queue: Queue[T] | str,
        value: T,
        *,
        to: str | None = None,
        reply_to: str | None = None,
        **options: Unpack[SendOptions],
    ) -> Awaitable[int]: ...
    @overload
    def send(
        self,
        where: Any,
        queue: Queue[T] | str,
        value: T,
        *,
        to: str | None = None,
        reply_to: str | None = None,
        **options: Unpack[SendOptions],
    ) -> int: ...
    def send(
        self,
        where: Any,
        queue: Queue[T] | str,
        value: T,
        *,
        to: str | None = None,
        reply_to: str | None = None,
        **options: Unpack[SendOptions],
    ) -> int | Awaitable[int]:
        """Send a message if the transaction commits; returns its id.

        Args:
            where: a connection to the database of the node, or a session.
            queue: a `Queue`, or the name of a queue of bytes.
            value: what the consumer gets.
            to: the receiving node; by default that of the queue, else the node of the database.
            reply_to: queue of the node of the database that accepts a reply.
            options: those of `DurableQueues.send`: key, idempotency_key, delay and so on.

        Raises:
            UsageError: the value is not of the queue's type, or `where` is no connection to the
                database of a node.
        """
        body: Any = value
        name = queue
        if isinstance(queue, Queue):
            name, body = queue.name, queue.codec.encode(value)
            to = queue.to if to is None else to
        message = OutgoingMessage(
            queue=str(name),
            body=body,
            to=to,
            reply_to=reply_to,
            **options,
        )
        post = self._encoder.encode_traced(message)
        row = (None if to is None else post.peer, encode_arrival(post))
        return _insert(where, self._schema, row, post.id)

    @overload
    def start_flow(
        self,
        where: AsyncConnection,
        definition: StartableFlow[P],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[str]: ...
    @overload
    def start_flow(
        self, where: Any, definition: StartableFlow[P], *args: P.args, **kwargs: P.kwargs
    ) -> str: ...
    def start_flow(
        self, where: Any, definition: StartableFlow[P], *args: P.args, **kwargs: P.kwargs
    ) -> str | Awaitable[str]:
        """Start a flow if the transaction commits; returns its client id.

        `flows.get_by_client_id` finds it once it was started, soon after the commit.

        Raises:
            UsageError: the arguments do not fit, or `where` is no connection to a node's database.
        """
        return self._start(where, None, definition, args, kwargs)

    @overload
    def start_flow_with_id(
        self,
        where: AsyncConnection,
        client_id: str,
        definition: StartableFlow[P],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Awaitable[str]: ...
    @overload
    def start_flow_with_id(
        self,
        where: Any,
        client_id: str,
        definition: StartableFlow[P],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> str: ...
    def start_flow_with_id(
        self,
        where: Any,
        client_id: str,
        definition: StartableFlow[P],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> str | Awaitable[str]:
        """Start a flow if the transaction commits, unless one was started under that id."""
        return self._start(where, client_id, definition, args, kwargs)

    def _start(
        self,
        where: Any,
        client_id: str | None,
        definition: StartableFlow[...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> str | Awaitable[str]:
        client_id, message = self._requests.start(client_id, definition, args, kwargs)
        row = (None, encode_arrival(self._encoder.encode_traced(message)))
        return _insert(where, self._schema, row, client_id)

    @overload
    def signal(
        self, where: AsyncConnection, flow: str, name: str, value: Any = None
    ) -> Awaitable[None]: ...
    @overload
    def signal(self, where: Any, flow: str, name: str, value: Any = None) -> None: ...
    def signal(self, where: Any, flow: str, name: str, value: Any = None) -> Awaitable[None] | None:
        """Send a signal to a flow of the node if the transaction commits.

        A signal that the flow cannot take becomes a dead letter of the node.

        Args:
            where: a connection to the database of the node, or a session.
            flow: the client id it was started with, or its own id.
            name: what the code of the flow asks for.
            value: comes with the signal.
        """
        message = self._requests.signal(flow, name, value)
        row = (None, encode_arrival(self._encoder.encode_traced(message)))
        return _insert(where, self._schema, row, None)


def _insert(where: Any, schema: str, row: _Row, result: R) -> R | Awaitable[R]:
    """Write a row; the result at once, or when it is awaited."""
    try:
        done = _execute(where, schema, row)
    except Exception as error:
        _explain(error, schema)
        raise
    return _wait_for(done, schema, result) if inspect.isawaitable(done) else result


async def _wait_for(done: Awaitable[object], schema: str, result: R) -> R:
    try:
        await done
    except Exception as error:
        _explain(error, schema)
        raise
    return result


def _execute(where: Any, schema: str, row: _Row) -> object:
    # By the name of the package, so that none is imported that the application does not use.
    packages = {base.__module__.partition(".")[0] for base in type(where).__mro__}
    if "django" in packages and hasattr(where, "vendor"):
        table = _COLUMNS if where.vendor == "sqlite" else f'"{schema}".{_COLUMNS}'
        with where.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} VALUES (%s, %s)", row)
        return None
    if "sqlalchemy" in packages and hasattr(where, "execute"):
        bind = where.get_bind() if hasattr(where, "get_bind") else where
        table = _COLUMNS if bind.dialect.name == "sqlite" else f'"{schema}".{_COLUMNS}'
        return where.execute(_sqlalchemy_insert(table), {"peer": row[0], "body": row[1]})
    # Of a cursor its connection: not every cursor can insert.
    connection = getattr(where, "connection", where)
    if "sqlite3" in packages and hasattr(connection, "execute"):
        return connection.execute(f"INSERT INTO {_COLUMNS} VALUES (?, ?)", row)
    if "psycopg" in packages and hasattr(connection, "execute"):
        return connection.execute(f'INSERT INTO "{schema}".{_COLUMNS} VALUES (%s, %s)', row)
    raise UsageError(
        f"{where!r} is nothing to write with: pass a connection of psycopg, sqlite3 or Django, or "
        "a connection or session of SQLAlchemy; in a consumer or step use the methods of its `tx`"
    )


@lru_cache(maxsize=64)
def _sqlalchemy_insert(table: str) -> Any:
    import sqlalchemy

    return sqlalchemy.text(f"INSERT INTO {table} VALUES (:peer, :body)")


def _explain(error: Exception, schema: str) -> None:
    """Raise what a missing table means."""
    text = str(error)
    if "postroad_arrivals" in text and ("no such table" in text or "does not exist" in text):
        raise UsageError(
            "this database is not that of a node, or its node was not started with this version "
            f"of Postroad yet; in PostgreSQL its tables are looked for in schema {schema!r}: "
            "within.Outbox(schema=...) takes another one"
        ) from error


_default = Outbox()
send = _default.send
start_flow = _default.start_flow
start_flow_with_id = _default.start_flow_with_id
signal = _default.signal
