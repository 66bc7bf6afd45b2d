"""Connections to other nodes: opened on first use, shared, closed when idle, limited in number.

A connection is shared by the subjects of one class to one address. The class of a subject is the
text before its first dot, so `bulk.upload` and `bulk.copy` share a connection, and neither delays
`ping`. Requests of one subject to one node are written in the order of their calls.
"""

from __future__ import annotations

import asyncio
import copy
import random
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from postroad.core import Address
from postroad.core import fault_points as faults
from postroad.core.errors import (
    ConnectError,
    ConnectionClosedError,
    MessagingError,
    NotRunningError,
    Outcome,
    TlsError,
)
from postroad.core.timing import backoff
from postroad.net.connections.client import ClientConnection
from postroad.net.connections.connection import PeerConnection
from postroad.net.connections.disconnect import LINGER_S
from postroad.net.connections.tunnel import Tunnel
from postroad.net.context import ConnectionContext
from postroad.net.requests import ConnectionDown, RequestAttempt, stopped_while_in_flight

BEFORE_CONNECT = faults.declare_fault_point("net.dial.before_connect")

ConnectionT = TypeVar("ConnectionT", bound=PeerConnection)


async def connect(
    context: ConnectionContext,
    address: Address,
    tls: ssl.SSLContext | None,
    factory: Callable[[], ConnectionT],
) -> ConnectionT:
    """Connect with TCP and TLS; the timeout covers name resolution as well."""
    limit_s = context.limits.connect_timeout_s
    BEFORE_CONNECT.hit(address=address)
    try:
        async with asyncio.timeout(limit_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                factory, address.host, address.port, ssl=tls
            )
    except TimeoutError:
        detail = f"no connection within {limit_s:.3g} s"
        raise ConnectError(detail, peer=str(address)) from None
    except ssl.SSLError as error:
        raise TlsError(f"TLS failed: {error}", peer=str(address)) from None
    except (ConnectionAbortedError, ConnectionResetError) as error:
        # The peer may not use TLS, or may be stopping; the latter is worth a retry.
        kind = TlsError if tls is not None else ConnectError
        detail = str(error) or "the peer closed the connection; does it use TLS?"
        raise kind(f"cannot connect: {detail}", peer=str(address), retryable=True) from None
    except (OSError, OverflowError, UnicodeError, ValueError) as error:
        raise ConnectError(f"cannot connect: {error}", peer=str(address)) from None
    return connection


class DialTasks(Generic[ConnectionT]):
    """Dials with one caller each; they are cancelled with the caller or the service."""

    def __init__(self, release: Callable[[ConnectionT], None]) -> None:
        # Closes a connection whose caller was cancelled.
        self._release = release
        self._tasks: dict[asyncio.Task[ConnectionT], None] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, dial: Coroutine[Any, Any, ConnectionT]) -> ConnectionT:
        task = asyncio.get_running_loop().create_task(dial)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        try:
            return await task
        except asyncio.CancelledError:
            if task.done() and not task.cancelled() and task.exception() is None:
                # The caller was cancelled in the loop iteration in which the dial succeeded.
                self._release(task.result())
            # Either the caller was cancelled, or the service stops and cancelled the dial.
            caller = asyncio.current_task()
            is_called_off = caller is not None and caller.cancelling() > 0
            if self._is_closed and task.cancelled() and not is_called_off:
                raise NotRunningError("the service stopped while connecting") from None
            raise

    def cancel(self) -> list[asyncio.Task[ConnectionT]]:
        """Cancel all dials because the service stops; return their tasks."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks


# Failures stored for error messages; clearing them only costs detail.
_FAILURES_MAX = 1_024
# Entries of the cache by subject; clearing it costs one lookup by subject class for each.
_CACHED_CONNECTIONS_MAX = 4_096

PoolKey: TypeAlias = tuple[Address, str]


def subject_class(subject: str) -> str:
    """Return the class whose connection carries the subject; "" if it has no dot."""
    head, dot, _ = subject.partition(".")
    return head if dot else ""


class _Dial(NamedTuple):
    """A connection that is being opened, and the callers that wait for it."""

    task: asyncio.Task[ClientConnection]
    waiters: list[asyncio.Future[ClientConnection | MessagingError]]


class ConnectionPool:
    """All connections that this node has opened."""

    def __init__(self, context: ConnectionContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop
        # Replaced when certificates are reloaded.
        self.tls: ssl.SSLContext | None = None
        self._shared: dict[PoolKey, ClientConnection] = {}
        # Shared connections by the caller's spelling of the address and by subject: one lookup
        # for each request. An entry may have closed; its users check that.
        self.cache: dict[tuple[Address | str, str], ClientConnection] = {}
        # Connections that are being opened; all callers that need one share its dial.
        self._dialing: dict[PoolKey, _Dial] = {}
        self._dialing_alone: DialTasks[ClientConnection] = DialTasks(
            partial(self.release, reason="dial cancelled")
        )
        # Open connections that are not shared: exclusive ones, and those that drain.
        self._unshared: dict[ClientConnection, None] = {}
        # Tunnels that this node has opened or is opening; they count as connections.
        self.tunnels: dict[Tunnel, None] = {}
        # Why the last retry of a caller failed, for the error when its timeout passes.
        self._failures: dict[Address, str] = {}
        self._is_closed = False

    @property
    def connections(self) -> list[ClientConnection]:
        return [*self._shared.values(), *self._unshared]

    async def acquire(
        self, address: Address | str, attempt: RequestAttempt, *, retry: bool
    ) -> ClientConnection:
        """Return an open connection with capacity for one more message of the attempt's subject.

        With `retry`, dial until it succeeds. The address is the caller's spelling of the target.
        """
        cache_key = (address, attempt.subject)
        connection = self.cache.get(cache_key)
        while connection is None or not connection.can_send:
            if connection is None or not connection.is_open:
                key = self._key(attempt.target, attempt.subject)
                dial = partial(self._shared_dial, key)
                connection = await self._dial_with_retry(attempt.target, dial, retry=retry)
                if self._shared.get(key) is connection:
                    if len(self.cache) >= _CACHED_CONNECTIONS_MAX:
                        self.cache.clear()
                    self.cache[cache_key] = connection
            elif await connection.wait_for_capacity():
                break
            if self._context.is_stopped:
                raise NotRunningError("the service is stopping")
        return connection

    async def acquire_exclusive(self, address: Address, *, retry: bool) -> ClientConnection:
        """Return a connection that only the caller uses; it must release() it."""

        async def dial() -> ClientConnection:
            self.evict_idle()
            connection = await self._dialing_alone.run(self._dial(address))
            self._unshared[connection] = None
            return connection

        return await self._dial_with_retry(address, dial, retry=retry)

    async def _dial_with_retry(
        self, address: Address, dial: Callable[[], Awaitable[ClientConnection]], *, retry: bool
    ) -> ClientConnection:
        """Dial; with `retry`, repeat after retryable failures until the caller is cancelled."""
        limits = self._context.limits
        attempt = 0
        while True:
            try:
                connection = await dial()
                if connection.is_open:
                    return connection
                raise ConnectionClosedError("closed after the handshake", outcome=Outcome.NOT_SENT)
            except MessagingError as error:
                if not (retry and error.retryable):
                    raise
                if len(self._failures) >= _FAILURES_MAX:
                    self._failures.clear()
                self._failures[address] = error.detail
            attempt += 1
            pause_s = backoff(
                attempt,
                initial_delay_s=limits.initial_backoff_s,
                max_delay_s=limits.max_backoff_s,
                jitter=random.random(),
            )
            await asyncio.sleep(pause_s)

    def last_failure(self, address: Address) -> str | None:
        """Return why the last dial of the address failed, or None if it succeeded."""
        return self._failures.get(address)

    def release(self, connection: ClientConnection, reason: str) -> None:
        """Close an exclusive connection."""
        self._unshared.pop(connection, None)
        if connection.is_open:
            connection.wire.goodbye(reason)
        connection.close(reason)

    def _key(self, address: Address, subject: str) -> PoolKey:
        key = (address, subject_class(subject))
        if key in self._shared or key in self._dialing:
            return key
        open_keys = [
            key for key, connection in self._shared.items() if connection.transport is not None
        ]
        open_count = sum(1 for other in (*open_keys, *self._dialing) if other[0] == address)
        # The last connection is for all further classes together.
        return (
            key if open_count < self._context.limits.connections_per_peer_max - 1 else (address, "")
        )

    async def _shared_dial(self, key: PoolKey) -> ClientConnection:
        connection = self._shared.get(key)
        if connection is not None and connection.is_open:
            return connection
        dial = self._dialing.get(key)
        if dial is None:
            if connection is not None and connection.transport is not None:
                # It is no longer open, and drains among the unshared ones.
                self._unshared[connection] = None
            self._shared.pop(key, None)
            self.evict_idle()
            dial = self._dialing[key] = _Dial(self._loop.create_task(self._dial(key[0])), [])
            dial.task.add_done_callback(partial(self._on_dialed, key))
        waiter: asyncio.Future[ClientConnection | MessagingError] = self._loop.create_future()
        dial.waiters.append(waiter)
        outcome = await waiter
        if isinstance(outcome, MessagingError):
            # Each waiter raises its own copy: a shared error would hold the frames of all.
            raise copy.copy(outcome)
        return outcome

    def _on_dialed(self, key: PoolKey, task: asyncio.Task[ClientConnection]) -> None:
        if task.cancelled():
            self._publish(key, NotRunningError("the service stopped while connecting"))
            return
        error = task.exception()
        if isinstance(error, MessagingError):
            self._publish(key, error)
        elif error is not None:
            self._publish(key, ConnectError(f"cannot connect: {error!r}"))
        else:
            self._unshared[task.result()] = None
            self._failures.pop(key[0], None)
            self._publish(key, task.result())

    def _publish(self, key: PoolKey, outcome: ClientConnection | MessagingError) -> None:
        """Give the outcome of a dial to its waiters, in their order.

        A connection becomes shared only when no caller waits any more: callers that come meanwhile
        join the waiters, so that none overtakes an earlier one.
        """
        dial = self._dialing[key]
        waiters = [waiter for waiter in dial.waiters if not waiter.done()]
        dial.waiters.clear()
        for waiter in waiters:
            waiter.set_result(outcome)
        if waiters and isinstance(outcome, ClientConnection):
            self._loop.call_soon(self._publish, key, outcome)
            return
        del self._dialing[key]
        if isinstance(outcome, ClientConnection):
            self._unshared.pop(outcome, None)
            self._shared[key] = outcome

    def evict_idle(self) -> None:
        """Make room for a connection: at the limit, close the least recently used idle one."""
        if self._is_closed:
            raise NotRunningError("the service is stopping")
        self._shared = {
            key: connection
            for key, connection in self._shared.items()
            if connection.transport is not None
        }
        self._unshared = {
            connection: None for connection in self._unshared if connection.transport is not None
        }
        limit = self._context.limits.connections_max
        dialing = len(self._dialing) + len(self._dialing_alone)
        if len(self._shared) + len(self._unshared) + len(self.tunnels) + dialing < limit:
            return
        idle = [key for key, connection in self._shared.items() if connection.is_idle]
        if not idle:
            raise ConnectError(
                f"all {limit} connections are in use; raise the limit connections_max"
            )
        oldest = min(idle, key=lambda key: self._shared[key].last_used)
        connection = self._shared.pop(oldest)
        connection.wire.goodbye("making way for another connection")
        connection.close("closed for another connection")

    async def _dial(self, address: Address) -> ClientConnection:
        connection: ClientConnection | None = None
        try:
            connection = await connect(
                self._context,
                address,
                self.tls,
                lambda: ClientConnection(self._context, self._loop, address),
            )
            down = await asyncio.shield(connection.opened)
        except BaseException:
            self._context.counters.connections_failed += 1
            if connection is not None:
                connection.close("dial cancelled")
            raise
        if isinstance(down, ConnectionDown):
            self._context.counters.connections_failed += 1
            raise down.error
        return connection

    async def close(self, grace_s: float) -> None:
        """Wait `grace_s` seconds for requests in flight, then fail them and close everything."""
        self._is_closed = True
        shared = [dial.task for dial in self._dialing.values()]
        for task in shared:
            task.cancel()
        dialing = [*shared, *self._dialing_alone.cancel()]
        await asyncio.gather(*dialing, return_exceptions=True)
        connections = self.connections
        for connection in connections:
            connection.drain()
        deadline = self._loop.time() + grace_s
        waiting = [
            entry[0] for connection in connections for entry in connection.pending.entries.values()
        ]
        if waiting:
            await asyncio.wait(waiting, timeout=grace_s)
        remaining_s = max(deadline - self._loop.time(), LINGER_S)
        for connection in connections:
            connection.fail_pending(stopped_while_in_flight())
            if connection.is_open:
                connection.wire.goodbye("the node is stopping")
            connection.close("the service stopped", remaining_s)
        await asyncio.gather(*(connection.wait_closed() for connection in connections))
        self._shared.clear()
        self.cache.clear()
        self._unshared.clear()
