"""The messaging service: request/reply and one-way messages between nodes."""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Callable, Sequence
from typing import Never

from postroad.core import (
    Address,
    Lifecycle,
    Limits,
    to_address,
    tracing,
    validate_cluster_name,
    validate_node_name,
)
from postroad.core.cluster_secret import ClusterSecret
from postroad.core.errors import NotRunningError, UsageError
from postroad.net.connections.client import ClientConnection
from postroad.net.connections.listener import ConnectionAcceptor
from postroad.net.connections.pool import ConnectionPool
from postroad.net.connections.server import ServerConnection
from postroad.net.connections.tunnel import Tunnel
from postroad.net.connections.tunnel_dialer import TunnelDialer
from postroad.net.context import ConnectionContext, MessagingStatistics, collect_statistics
from postroad.net.dispatch import MessageHandler, SubscriptionTable, start_send_span
from postroad.net.identity import (
    ProtocolConfig,
    ServiceIdentity,
    choose_advertised_address,
    validate_hello_text,
)
from postroad.net.loopback import LoopbackTransport
from postroad.net.requests import (
    Payload,
    RequestAttempt,
    error_from_result,
    validate_message,
    validate_timeout,
)
from postroad.net.tls import TlsConfig


class _ServiceState(enum.Enum):
    NEW = "not started"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class MessagingService(Lifecycle):
    """Requests, replies and one-way messages between this node and others.

        async with MessagingService("demo", "alpha") as service:
            service.serve("echo", lambda message: message.payload)
            reply = await service.request(other.address, "echo", b"hello")

    What is retried: connecting, with `wait_for_connection=True`, until the timeout; and a message
    that still waits when its connection ends goes over another. One that was written is never sent
    again; `retryable` and `outcome` of the error tell the caller whether
    a retry can help, and whether it is safe. docs/messaging.md has a table for all layers.

    Args:
        cluster: the cluster's name; nodes of other clusters are rejected.
        name: this node's name; with TLS also the name in its certificate.
        bind: the address to listen at, `host:port`; with port 0 the system chooses the port.
        advertise: the address at which others reach this node; the bound address by default.
        tls: certificate files; without them messages are not encrypted.
        limits: every maximum and timeout.
        protocol: profile and versions; the default suits Postroad nodes.
        secret: the secret of the cluster, at least 16 characters; nodes that cannot prove it are
            rejected. Several secrets during a change: the first is used, all are accepted.

    Attributes:
        tunnels: opens and accepts tunnels.
    """

    def __init__(
        self,
        cluster: str,
        name: str,
        bind: Address | str = "127.0.0.1:0",
        advertise: Address | str | None = None,
        tls: TlsConfig | None = None,
        limits: Limits | None = None,
        *,
        protocol: ProtocolConfig | None = None,
        secret: str | Sequence[str] | None = None,
    ) -> None:
        self.cluster = validate_cluster_name(cluster)
        self.name = validate_node_name(name)
        self._bind = to_address(bind)
        self._advertise = None if advertise is None else to_address(advertise)
        self._tls = tls
        self.limits = limits or Limits()
        self.secret = None if secret is None else ClusterSecret(cluster, secret)
        self._identity = ServiceIdentity(
            cluster,
            name,
            protocol or ProtocolConfig(),
            self.limits,
            self.secret,
            is_secure=tls is not None,
        )
        self._subscriptions = SubscriptionTable()
        self.tunnels = TunnelDialer(self._check_running)
        # The cache of the pool, once there is one: read by every request.
        self._connection_cache: dict[tuple[Address | str, str], ClientConnection] = {}
        self._timeout_s = self.limits.request_timeout_s
        self._state = _ServiceState.NEW
        # Done when start() is; `_is_stop_requested` says that stop() was called meanwhile.
        self._started: asyncio.Future[None] | None = None
        self._is_stop_requested = False
        self._stop_task: asyncio.Task[None] | None = None
        # Set by start().
        self._address: Address | None = None
        self._bound_address: Address | None = None
        self._loop: asyncio.AbstractEventLoop
        self._now: Callable[[], float]
        self._context: ConnectionContext
        self._pool: ConnectionPool
        self._acceptor: ConnectionAcceptor
        self._loopback: LoopbackTransport

    # Lifecycle.

    async def start(self) -> None:
        """Listen, and be ready to send."""
        if self._state is not _ServiceState.NEW:
            raise UsageError(
                f"cannot start service {self.name!r}: it is {self._state.value}; create a new one"
            )
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        client_tls = None if self._tls is None else self._tls.client_context()
        self._acceptor = ConnectionAcceptor(
            self._loop,
            self._subscriptions,
            self._tls,
            handshake_timeout_s=self.limits.handshake_timeout_s,
        )
        self._state = _ServiceState.STARTING
        self._started = self._loop.create_future()
        self._is_stop_requested = False
        try:
            bound = await self._acceptor.bind(self._bind)
            address = choose_advertised_address(self._advertise, bound)
            config = await self._identity.wire_config_for(address)
            self._check_not_stopped()
        except BaseException:
            self._acceptor.abort()
            self._state = _ServiceState.STOPPED if self._is_stop_requested else _ServiceState.NEW
            raise
        finally:
            self._started.set_result(None)
        self._address, self._bound_address = address, bound
        self._context = ConnectionContext(config, itertools.count(1).__next__)
        self._pool = ConnectionPool(self._context, self._loop)
        self._pool.tls = client_tls
        self._connection_cache = self._pool.cache
        self.tunnels.start(self._context, self._loop, self._pool)
        self._loopback = LoopbackTransport(self._context, self._subscriptions, address)
        self._state = _ServiceState.RUNNING
        try:
            await self._acceptor.start(self._context)
        except BaseException:
            await self.stop(0.0)
            raise
        self._check_not_stopped()

    def _check_not_stopped(self) -> None:
        if self._is_stop_requested:
            raise NotRunningError(f"service {self.name!r} was stopped during its start")

    async def stop(self, grace: float | None = None) -> None:
        """Accept no more requests, wait `grace` seconds for those in flight, close everything.

        A service that is new can no longer start; one that is starting fails to.
        """
        if self._state is _ServiceState.NEW:
            self._state = _ServiceState.STOPPED
        elif self._started is not None:
            self._is_stop_requested = True
            await asyncio.shield(self._started)
        if self._state is _ServiceState.RUNNING:
            self._state = _ServiceState.STOPPING
            self._context.is_stopped = True
            grace_s = self.limits.stop_grace_s if grace is None else grace
            self._stop_task = self._loop.create_task(self._stop(grace_s))
        if self._stop_task is not None:
            await asyncio.shield(self._stop_task)

    async def _stop(self, grace_s: float) -> None:
        """Close everything; runs as a task, so that it finishes if the caller is cancelled."""
        parts = (self.tunnels, self._pool, self._acceptor, self._loopback)
        await asyncio.gather(*(part.close(grace_s) for part in parts))
        self._state = _ServiceState.STOPPED

    @property
    def address(self) -> Address:
        """The address at which others reach this node."""
        if self._address is None:
            raise self._not_started("address")
        return self._address

    @property
    def bound_address(self) -> Address:
        """The address at which this node listens, with the port that was bound."""
        if self._bound_address is None:
            raise self._not_started("bound address")
        return self._bound_address

    @property
    def incarnation(self) -> int:
        """A number unique to this process; a later process of the same name has a higher one."""
        if self._address is None:
            raise self._not_started("incarnation")
        return self._context.config.hello.incarnation

    def _not_started(self, field: str) -> UsageError:
        return UsageError(f"service {self.name!r} has no {field} yet; start() it first")

    def set_duplicate_name_callback(self, callback: Callable[[Address, int], None] | None) -> None:
        """Call back with address and incarnation of each peer that connects with this name."""
        if callback is not None:
            self._check_running()
        self._context.on_duplicate_name = callback

    def set_hello_membership(self, is_member: bool) -> None:
        """Set whether new connections announce this node as a member of its cluster."""
        self._context.replace_hello(is_member=is_member)

    def set_hello_role(self, role: str, zone: str | None) -> None:
        """Set the role and zone among cells that new connections announce; "" means no role."""
        self._check_running()
        self._context.replace_hello(
            role=validate_hello_text("role", role), zone=validate_hello_text("zone", zone or "")
        )

    @property
    def uses_tls(self) -> bool:
        """Whether all connections use TLS."""
        return self._tls is not None

    @property
    def is_closed(self) -> bool:
        """Whether peers must prove their name by certificate, or that they know the secret."""
        return self.secret is not None or (self._tls is not None and self._tls.mutual)

    async def reload_tls(self) -> None:
        """Read the certificate files again; new connections use them."""
        self._check_running()
        if self._tls is None:
            raise UsageError(
                f"cannot reload certificates of service {self.name!r}: it was created without TLS"
            )
        client_tls = self._tls.client_context()
        await self._acceptor.reload_tls()
        self._pool.tls = client_tls

    # Handlers.

    def serve(self, subject: str, handler: MessageHandler) -> None:
        """Register the handler that replies to requests of the subject.

        A handler is a function or a coroutine function; it returns the reply, or None for an empty
        one. Functions run on the event loop and must not block.
        """
        self._subscriptions.add(subject, handler, one_way=False)

    def subscribe(self, subject: str, handler: MessageHandler, **unexpected: Never) -> None:
        """Register the handler of one-way messages of the subject; it never replies."""
        if unexpected:
            raise TypeError(
                f"subscribe() got an unexpected keyword argument {next(iter(unexpected))!r}: "
                "subscribe() registers a handler of one-way messages, serve() one that replies"
            )
        self._subscriptions.add(subject, handler, one_way=True)

    def unsubscribe(self, subject: str) -> bool:
        """Remove the handler of the subject; return False if there was none."""
        return self._subscriptions.remove(subject)

    # Sending.

    async def request(
        self,
        address: Address | str,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | None = None,
        keep_alive: bool = True,
        wait_for_connection: bool = False,
        peer: str | None = None,
    ) -> bytes:
        """Send a request and return the reply.

        Args:
            address: the address that the node advertises.
            subject: selects the handler.
            payload: the body of the message.
            timeout: seconds from connecting to the reply; the limit `request_timeout_s` by default.
            keep_alive: False uses a connection of its own and closes it afterwards.
            wait_for_connection: retry to connect until the timeout instead of failing at once.
            peer: the name that the node at the address must have.

        Raises:
            MessagingError: one of its subclasses; `outcome` says whether the peer may have acted.
        """
        connection = self._connection_cache.get((address, subject))
        if (
            connection is None
            or not connection.can_send
            or type(payload) is not bytes
            # A character takes at most four bytes; the slow path checks the exact size.
            or len(payload) + 4 * len(subject) > connection.send_bytes_max
            or not keep_alive
            or (peer is not None and peer not in connection.peer_names)
        ):
            return await self._request_slow_path(
                address, subject, payload, timeout, keep_alive, wait_for_connection, peer
            )
        timeout = self._timeout_s if timeout is None else validate_timeout(timeout)
        span = trace = None
        if tracing.tracer is not None:
            # No code of the user runs inside the span, so it need not become the current one.
            span = start_send_span(subject, node=self.name, peer=connection.address)
            trace = span.context
        started = self._now()
        id, future = connection.request(subject, payload, started, timeout, trace)
        try:
            result = await future
        except asyncio.CancelledError as error:
            connection.cancel_request(id)
            if span is not None:
                span.end(error)
            raise
        if result.status == 0:
            if span is not None:
                span.end()
            return result.payload  # type: ignore[union-attr]
        failure = error_from_result(result, subject).with_context(
            peer=connection.describe_peer(connection.address),
            subject=subject,
            elapsed_s=self._now() - started,
            timeout_s=timeout,
        )
        if span is not None:
            span.end(failure)
        raise failure

    async def send(
        self,
        address: Address | str,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | None = None,
        wait_for_connection: bool = False,
        peer: str | None = None,
    ) -> None:
        """Send a one-way message; return when the connection has it.

        Waits while the peer reads too slowly. Arguments and errors are those of `request`.
        """
        attempt = self._prepare_attempt(address, subject, payload, timeout, peer)
        span = start_send_span(subject, node=self.name, peer=peer or attempt.peer, one_way=True)
        attempt.trace = span.context
        with span, attempt.annotating_errors(self._pool.last_failure):
            async with asyncio.timeout_at(attempt.deadline):
                if attempt.target == self._address:
                    self._loopback.check(attempt)
                    await self._loopback.send(subject, attempt.payload)
                    return
                connection = await self._pool.acquire(address, attempt, retry=wait_for_connection)
                connection.check(attempt)
                connection.send_one_way(subject, attempt.payload, self._now(), attempt.trace)
                if not connection.has_pending_flush:
                    # The buffer was large enough to be written at once: let other tasks run.
                    await asyncio.sleep(0)

    async def _request_slow_path(
        self,
        address: Address | str,
        subject: str,
        payload: Payload,
        timeout: float | None,
        keep_alive: bool,
        wait_for_connection: bool,
        peer: str | None,
    ) -> bytes:
        """Send a request for which a connection must be opened, awaited or checked."""
        attempt = self._prepare_attempt(address, subject, payload, timeout, peer)
        span = start_send_span(subject, node=self.name, peer=peer or attempt.peer)
        attempt.trace = span.context
        pool, retry = self._pool, wait_for_connection
        with span, attempt.annotating_errors(pool.last_failure):
            if attempt.target == self._address:
                self._loopback.check(attempt)
                return await self._loopback.request(subject, attempt.payload, attempt.deadline)
            async with asyncio.timeout_at(attempt.deadline):
                if keep_alive:
                    connection = await pool.acquire(address, attempt, retry=retry)
                else:
                    connection = await pool.acquire_exclusive(attempt.target, retry=retry)
            try:
                return await self._send_request(connection, attempt)
            finally:
                if not keep_alive:
                    pool.release(connection, "request finished")

    def _prepare_attempt(
        self,
        address: Address | str,
        subject: str,
        payload: Payload,
        timeout: float | None,
        peer: str | None,
    ) -> RequestAttempt:
        self._check_running()
        data = validate_message(subject, payload)
        timeout = self._timeout_s if timeout is None else validate_timeout(timeout)
        return RequestAttempt(to_address(address), subject, data, timeout, peer, self._now)

    async def _send_request(self, connection: ClientConnection, attempt: RequestAttempt) -> bytes:
        connection.check(attempt)
        now = self._now()
        remaining_s = max(attempt.deadline - now, 0.001)
        id, future = connection.request(
            attempt.subject, attempt.payload, now, remaining_s, attempt.trace
        )
        try:
            result = await future
        except asyncio.CancelledError:
            connection.cancel_request(id)
            raise
        if result.status == 0:
            return result.payload  # type: ignore[union-attr]
        raise error_from_result(result, attempt.subject)

    # Checks.

    def _check_running(self) -> None:
        if self._state is not _ServiceState.RUNNING:
            raise NotRunningError(f"service {self.name!r} is {self._state.value}")

    # Monitoring.

    def statistics(self) -> MessagingStatistics:
        """Return counters since the start and the number of open connections."""
        if self._address is None:
            return MessagingStatistics(subscriptions=len(self._subscriptions.by_subject))
        accepted = self._acceptor.connections
        return collect_statistics(
            self._context,
            client_connections=self._pool.connections,
            client_tunnels=list(self._pool.tunnels),
            server_connections=[peer for peer in accepted if isinstance(peer, ServerConnection)],
            server_tunnels=[peer for peer in accepted if isinstance(peer, Tunnel)],
            local_handlers=len(self._loopback),
            subscriptions=len(self._subscriptions.by_subject),
        )

    def __repr__(self) -> str:
        place = f" at {self._address}" if self._address is not None else ""
        return f"<MessagingService {self.name}{place} {self._state.value}>"
