"""The messaging service: request/reply and one-way messages between nodes."""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Callable, Sequence

from postroad.core import (
    Address,
    Limits,
    to_address,
    tracing,
    validate_cluster_name,
    validate_node_name,
)
from postroad.core.cluster_secret import ClusterSecret
from postroad.core.errors import (
    ConnectionClosedError,
    MessagingError,
    NotRunningError,
    Outcome,
    UsageError,
    WrongPeerError,
)
from postroad.net.connections.client import ClientConnection
from postroad.net.connections.listener import ConnectionAcceptor
from postroad.net.connections.pool import ConnectionPool
from postroad.net.connections.server import ServerConnection
from postroad.net.connections.tunnel import Tunnel
from postroad.net.connections.tunnel_dialer import TunnelCalls, TunnelDialer
from postroad.net.context import ConnectionContext
from postroad.net.dispatch import MessageHandler, SubscriptionTable
from postroad.net.identity import ProtocolConfig, ServiceIdentity, choose_advertised_address
from postroad.net.loopback import LoopbackTransport
from postroad.net.requests import (
    Payload,
    RequestAttempt,
    RequestResult,
    check_size,
    error_from_result,
    validate_message,
    validate_timeout,
)
from postroad.net.statistics import MessagingStatistics, collect_statistics
from postroad.net.tls import TlsConfig
from postroad.net.tracing import start_send_span

# Addresses and subjects remembered with their link; forgetting them all costs one look-up each.
_ROUTES_MAX = 4_096


class _ServiceState(enum.Enum):
    NEW = "not started"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class MessagingService(TunnelCalls):
    """Sends messages to other nodes and answers theirs.

        async with MessagingService("demo", "alpha") as service:
            service.subscribe("echo", lambda message: message.payload)
            reply = await service.request(other.address, "echo", b"hello")

    Args:
        cluster: nodes of another cluster are refused.
        name: this node's name; with TLS also the name in its certificate.
        bind: where to listen, `host:port`; port 0 lets the system choose.
        advertise: the address others reach this node at; the bound one by default.
        tls: certificate files; without them everything travels in the clear.
        limits: every maximum and timeout.
        protocol: what to speak; the default suits Postroad nodes.
        secret: what all nodes of the cluster know, at least 16 characters; who does not is
            refused. Several while it is being changed: the first is used, all are accepted.
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
        self._connection_cache: dict[tuple[Address | str, str], ClientConnection] = {}
        self._timeout_s = self.limits.request_timeout_s
        self._state = _ServiceState.NEW
        # Ends with the start; and whether somebody wants the service stopped meanwhile.
        self._started: asyncio.Future[None] | None = None
        self._is_stop_wanted = False
        # The task that stops the service, once somebody wants that.
        self._stopping: asyncio.Task[None] | None = None
        # Set by start.
        self._address: Address | None = None
        self._bound: Address | None = None
        self._loop: asyncio.AbstractEventLoop
        self._now: Callable[[], float]
        self._context: ConnectionContext
        self._pool: ConnectionPool
        self._reception: ConnectionAcceptor
        self._local: LoopbackTransport

    # Life.

    async def start(self) -> None:
        """Listen and be ready to send."""
        if self._state is not _ServiceState.NEW:
            raise UsageError(f"service {self.name!r} is {self._state.value}; make a new one")
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        client_tls = None if self._tls is None else self._tls.client_context()
        self._reception = ConnectionAcceptor(
            self._loop,
            self._subscriptions,
            self._tls,
            handshake_timeout_s=self.limits.handshake_timeout_s,
        )
        self._state = _ServiceState.STARTING
        self._started = self._loop.create_future()
        self._is_stop_wanted = False
        try:
            bound = await self._reception.bind(self._bind)
            address = choose_advertised_address(self._advertise, bound)
            config = await self._identity.wire_config_for(address)
            self._check_still_wanted()
        except BaseException:
            self._reception.abort()
            self._state = _ServiceState.STOPPED if self._is_stop_wanted else _ServiceState.NEW
            raise
        finally:
            self._started.set_result(None)
        self._address, self._bound = address, bound
        self._context = ConnectionContext(config, itertools.count(1).__next__)
        self._pool = ConnectionPool(self._context, self._loop)
        self._pool.tls = client_tls
        self._tunnels = TunnelDialer(self._context, self._loop, self._pool)
        self._local = LoopbackTransport(self._context, self._subscriptions, address)
        self._state = _ServiceState.RUNNING
        try:
            await self._reception.start(self._context)
        except BaseException:
            await self.stop(0.0)
            raise
        self._check_still_wanted()

    def _check_still_wanted(self) -> None:
        if self._is_stop_wanted:
            raise NotRunningError(f"service {self.name!r} was stopped while it started")

    async def stop(self, grace: float | None = None) -> None:
        """Take no more requests, give those in flight `grace` seconds, close everything.

        A service that is starting, or about to, does not start any more.
        """
        if self._state is _ServiceState.NEW:
            self._state = _ServiceState.STOPPED
        elif self._started is not None:
            self._is_stop_wanted = True
            await asyncio.shield(self._started)
        if self._state is _ServiceState.RUNNING:
            self._state = _ServiceState.STOPPING
            self._context.is_stopped = True
            grace_s = self.limits.stop_grace_s if grace is None else grace
            self._stopping = self._loop.create_task(self._stop(grace_s))
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        """Close everything; a task of its own, so that it ends even if its caller is cancelled."""
        parts = (self._tunnels, self._pool, self._reception, self._local)
        await asyncio.gather(*(part.close(grace_s) for part in parts))
        self._connection_cache.clear()
        self._state = _ServiceState.STOPPED

    @property
    def address(self) -> Address:
        """The address others reach this node at."""
        if self._address is None:
            raise UsageError("start() the service first; its address is known from then on")
        return self._address

    @property
    def bound_address(self) -> Address:
        """The address this node listens at, with the port that was really bound."""
        if self._bound is None:
            raise UsageError("start() the service first; its address is known from then on")
        return self._bound

    @property
    def incarnation(self) -> int:
        """The number that tells this process from others of its name; later ones have higher."""
        if self._address is None:
            raise UsageError("start() the service first; its incarnation is known from then on")
        return self._context.config.hello.incarnation

    def set_duplicate_name_callback(self, callback: Callable[[Address, int], None]) -> None:
        """Have a callback told the address and incarnation of nodes of this name that connect."""
        self._check_running()
        self._context.on_duplicate_name = callback

    def clear_duplicate_name_callback(self) -> None:
        """Tell nobody any more."""
        self._context.on_duplicate_name = None

    @property
    def uses_tls(self) -> bool:
        """Whether everything it sends and accepts goes through TLS."""
        return self._tls is not None

    @property
    def is_closed(self) -> bool:
        """Whether peers have proven who they are, or at least that they belong to the cluster."""
        return self.secret is not None or (self._tls is not None and self._tls.is_mutual)

    async def reload_tls(self) -> None:
        """Read the certificate files again and use them for every new connection."""
        self._check_running()
        if self._tls is None:
            raise UsageError("this service was made without TLS")
        client_tls = self._tls.client_context()
        await self._reception.reload_tls()
        self._pool.tls = client_tls

    # Handlers.

    def subscribe(self, subject: str, handler: MessageHandler, *, one_way: bool = False) -> None:
        """Have `handler(message)` called for messages to the subject.

        A handler is a function or a coroutine function; it returns the reply, or None for an empty
        one. Functions run on the event loop and must not block. A `one_way` handler consumes
        messages and never replies.
        """
        self._subscriptions.add(subject, handler, one_way=one_way)

    def unsubscribe(self, subject: str) -> bool:
        """Forget the handler of the subject; False if there was none."""
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
        wait: bool = False,
        peer: str | None = None,
    ) -> bytes:
        """Send a request and return the reply.

        Args:
            address: the node, as it advertises itself.
            subject: chooses the handler there.
            payload: what the handler gets.
            timeout: seconds for everything, from connecting to the reply.
            keep_alive: False uses a connection of its own and closes it afterwards.
            wait: keep trying to connect until the timeout instead of failing at once.
            peer: the name of the node that must answer at the address.

        Raises:
            MessagingError: one of its sub-classes; `outcome` says whether the peer may have acted.
        """
        link = self._connection_cache.get((address, subject))
        if (
            link is None
            or not link.can_send
            or type(payload) is not bytes
            # No character takes more than four bytes; the exact size is checked thoroughly.
            or len(payload) + 4 * len(subject) > link.send_bytes_max
            or not keep_alive
            or (peer is not None and not link.is_peer(peer))
        ):
            return await self._request_slow_path(
                address, subject, payload, timeout, keep_alive, wait, peer
            )
        timeout = self._timeout_s if timeout is None else validate_timeout(timeout)
        span = trace = None
        if tracing.tracer is not None:
            # Nothing of the user's runs inside of it, so that nobody has to know of it here.
            span = start_send_span(subject, node=self.name, peer=link.address)
            trace = span.context
        started = self._now()
        id, future = link.request(subject, payload, started, timeout, trace)
        try:
            result = await future
        except asyncio.CancelledError as error:
            link.cancel_request(id)
            if span is not None:
                span.end(error)
            raise
        if result.status == 0:
            if span is not None:
                span.end()
            return result.payload  # type: ignore[union-attr]
        failure = self._failure(link, result, subject, started, timeout)
        if span is not None:
            span.end(failure)
        raise failure

    def _failure(
        self,
        link: ClientConnection,
        result: RequestResult,
        subject: str,
        started: float,
        timeout: float,
    ) -> MessagingError:
        return error_from_result(result, subject).with_context(
            peer=link.describe_peer(link.address),
            subject=subject,
            elapsed_s=self._now() - started,
            timeout_s=timeout,
        )

    async def send(
        self,
        address: Address | str,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | None = None,
        wait: bool = False,
        peer: str | None = None,
    ) -> None:
        """Send a one-way message; returns once it is handed to the connection.

        Waits while the peer is slow to read. The arguments are those of `request`.
        """
        attempt, data = self._prepare_attempt(address, subject, payload, timeout)
        span = start_send_span(subject, node=self.name, peer=peer or attempt.peer, one_way=True)
        attempt.trace = span.context
        with span, attempt.annotating_errors(self._pool.last_failure):
            async with asyncio.timeout_at(attempt.deadline):
                if attempt.target == self._address:
                    self._check_local(attempt, data, peer)
                    await self._local.send(subject, data)
                    return
                link = await self._acquire_connection(address, attempt, wait=wait, peer=peer)
                check_size(subject, data, link.send_bytes_max)
                link.send_one_way(subject, data, self._now(), attempt.trace)
                if not link.has_pending_flush:
                    # So much was queued that it was written at once: let others have a turn.
                    await asyncio.sleep(0)

    async def _request_slow_path(
        self,
        address: Address | str,
        subject: str,
        payload: Payload,
        timeout: float | None,
        keep_alive: bool,
        wait: bool,
        peer: str | None,
    ) -> bytes:
        """The request as it goes when anything has to be found, opened, checked or awaited."""
        attempt, data = self._prepare_attempt(address, subject, payload, timeout)
        span = start_send_span(subject, node=self.name, peer=peer or attempt.peer)
        attempt.trace = span.context
        with span, attempt.annotating_errors(self._pool.last_failure):
            if attempt.target == self._address:
                self._check_local(attempt, data, peer)
                return await self._local.request(subject, data, attempt.deadline)
            if keep_alive:
                async with asyncio.timeout_at(attempt.deadline):
                    link = await self._acquire_connection(address, attempt, wait=wait, peer=peer)
                return await self._send_request(link, attempt, data)
            async with asyncio.timeout_at(attempt.deadline):
                link = await self._pool.acquire_exclusive(attempt.target, wait=wait)
            try:
                link.check_peer(peer)
                return await self._send_request(link, attempt, data)
            finally:
                self._pool.release(link, "transient request done")

    def _prepare_attempt(
        self, address: Address | str, subject: str, payload: Payload, timeout: float | None
    ) -> tuple[RequestAttempt, bytes]:
        self._check_running()
        data = validate_message(subject, payload)
        timeout = self._timeout_s if timeout is None else validate_timeout(timeout)
        return RequestAttempt(to_address(address), subject, timeout, self._now), data

    async def _send_request(
        self, link: ClientConnection, attempt: RequestAttempt, data: bytes
    ) -> bytes:
        attempt.peer = link.describe_peer(attempt.target)
        if not link.is_open:
            raise ConnectionClosedError("closed before the request", outcome=Outcome.NOT_SENT)
        check_size(attempt.subject, data, link.send_bytes_max)
        now = self._now()
        left_s = max(attempt.deadline - now, 0.001)
        id, future = link.request(attempt.subject, data, now, left_s, attempt.trace)
        try:
            result = await future
        except asyncio.CancelledError:
            link.cancel_request(id)
            raise
        if result.status == 0:
            return result.payload  # type: ignore[union-attr]
        raise error_from_result(result, attempt.subject)

    async def _acquire_connection(
        self, address: Address | str, attempt: RequestAttempt, *, wait: bool, peer: str | None
    ) -> ClientConnection:
        """A link with room for one more message."""
        route = (address, attempt.subject)
        link = self._connection_cache.get(route)
        while link is None or not link.can_send:
            if link is None or not link.is_open:
                link = await self._pool.acquire(attempt.target, attempt.subject, wait=wait)
                if link.is_shared:
                    if len(self._connection_cache) >= _ROUTES_MAX:
                        self._connection_cache.clear()
                    self._connection_cache[route] = link
            elif await link.wait_for_capacity():
                break
            self._check_running()
        link.check_peer(peer)
        return link

    # Checks.

    def _check_running(self) -> None:
        if self._state is not _ServiceState.RUNNING:
            raise NotRunningError(f"service {self.name!r} is {self._state.value}")

    def _check_local(self, attempt: RequestAttempt, data: bytes, peer: str | None) -> None:
        """What the connection would check if there were one."""
        attempt.peer = f"{attempt.target} ({self.name})"
        check_size(attempt.subject, data, self.limits.frame_bytes_max)
        if peer is not None and peer != self.name:
            raise WrongPeerError(f"expected node {peer!r}, but this node, {self.name!r}, is there")

    # Looking inside.

    def statistics(self) -> MessagingStatistics:
        """Counters since the start, and what is open now."""
        if self._address is None:
            return MessagingStatistics(subscriptions=len(self._subscriptions.by_subject))
        accepted = self._reception.links
        return collect_statistics(
            self._context,
            dialed=[link for link in self._pool.links if link.transport is not None],
            accepted=[link for link in accepted if isinstance(link, ServerConnection)],
            dialed_tunnels=[link for link in self._pool.tunnels if link.transport is not None],
            accepted_tunnels=[link for link in accepted if isinstance(link, Tunnel)],
            local_handlers=len(self._local),
            subscriptions=len(self._subscriptions.by_subject),
        )

    def __repr__(self) -> str:
        where = f" at {self._address}" if self._address is not None else ""
        return f"<MessagingService {self.name}{where} {self._state.value}>"
