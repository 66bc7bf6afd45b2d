"""The server side of a connection: receives requests, runs handlers, sends replies.

Synchronous handlers reply within the loop iteration that read their requests, and all replies of an
iteration are sent in one write. Asynchronous handlers get a task each, up to a limit; at the limit,
or while the peer does not read its replies, reading from the peer is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import CoroutineType
from typing import TypeAlias

from postroad.core import Address, tracing
from postroad.core.errors import DuplicateNameHandshakeError, RemoteProtocolError
from postroad.net.connections.connection import (
    FRAME_BYTES,
    LARGE_BYTES,
    QUEUED_BYTES_MAX,
    PeerConnection,
)
from postroad.net.connections.disconnect import LINGER_S
from postroad.net.connections.handler_tasks import Backlog, HandlerTask, HandlerTasks
from postroad.net.connections.tunnel import Tunnel
from postroad.net.context import ConnectionContext, logger
from postroad.net.dispatch import (
    HANDLER_TIMEOUT_REPLY,
    STOPPING_REPLY,
    HandlerReply,
    HandlerResult,
    HandlerReturn,
    RawMessage,
    Subscription,
    SubscriptionTable,
    call_handler,
    call_handler_traced,
    error_reply,
    no_handler_reply,
    one_way_handler_reply,
    oversized_reply,
    reply_from_task,
    to_handler_result,
)
from postroad.wire import (
    CancelFrame,
    ConnectionEvent,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    FrameIgnored,
    ReplyStatus,
    RequestFrame,
)

OpenConnections: TypeAlias = "dict[ServerConnection | Tunnel, None]"

_UNKNOWN_SENDER = Address("", 0)


class ServerConnection(PeerConnection):
    """A connection that a peer opened to this node."""

    __slots__ = (
        "_backlog",
        "_can_serve",
        "_fast_path_bytes_max",
        "_finished",
        "_goodbye_timer",
        "_is_stopping",
        "_peer_name",
        "_queue_reply",
        "_registry",
        "_sender",
        "_subscriptions",
        "replies_sent",
        "requests_received",
        "running",
    )

    role = ConnectionRole.SERVER
    # Handlers of one-way messages continue after the peer has gone; their deadlines still apply.
    outlives_socket = True

    def __init__(
        self,
        context: ConnectionContext,
        loop: asyncio.AbstractEventLoop,
        subscriptions: SubscriptionTable,
        registry: OpenConnections,
    ) -> None:
        super().__init__(context, loop)
        self._subscriptions = subscriptions.by_subject
        # All server connections that are open or still run handlers; this one adds itself.
        self._registry = registry
        # Requests that wait, because the handlers or the socket are at their limit.
        self._backlog = Backlog()
        self.running = HandlerTasks(context.limits.handlers_running_max)
        # Set by the first request: versions 1 and 2 do not tell it earlier.
        self._sender: Address | None = None
        self._peer_name: str | None = None
        # Whether the next request can be handled at once.
        self._can_serve = True
        # Replies up to this size take the fast path; set when the connection opens.
        self._fast_path_bytes_max = 0
        # Set when the version is negotiated.
        self._queue_reply: Callable[[int, int, bytes, int, bool], None]
        # Added to the counters of the service when the connection is lost.
        self.requests_received = 0
        self.replies_sent = 0
        self._is_stopping = False
        # Closes the connection if the peer does not after this node's goodbye.
        self._goodbye_timer: asyncio.TimerHandle | None = None
        # Done when the socket is closed and no handler is running.
        self._finished: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._context.is_stopped:
            # The TLS handshake ended after the service had stopped.
            self.abort()
        elif len(self._registry) >= self._context.limits.accepted_connections_max:
            # Closed at once, because the limit is reached.
            self._context.counters.connections_rejected += 1
            self._context.warn(
                "accepted_connections_max",
                "new connection closed: %d are open, the limit accepted_connections_max",
                len(self._registry),
            )
            self.abort()
        else:
            self._context.counters.connections_accepted += 1
            self._registry[self] = None

    # Receiving.

    def _fail(self, error: RemoteProtocolError) -> None:
        on_duplicate_name = self._context.on_duplicate_name
        if isinstance(error, DuplicateNameHandshakeError) and on_duplicate_name is not None:
            try:
                on_duplicate_name(Address(error.host, error.port), error.incarnation)
            except (Exception, asyncio.CancelledError) as failure:
                logger.error("callback for duplicate names failed", exc_info=failure)
        super()._fail(error)

    def _on_events(self, events: list[ConnectionEvent], now: float) -> None:
        if self.wire.is_tunnel:
            self._upgrade_to_tunnel(events, now)
            return
        for event in events:
            if type(event) is not RequestFrame:
                self._on_event(event, now)
            elif self._can_serve:
                self._handle_request(event, now)
            else:
                self._backlog.add(event, now)
        if not self._can_serve:
            self._process_backlog()

    def _upgrade_to_tunnel(self, events: list[ConnectionEvent], now: float) -> None:
        """Replace this connection by a tunnel, as the client requested."""
        accept = self._context.accept_tunnel
        registry = self._registry
        tunnel = Tunnel(self._context, self._loop, ConnectionRole.SERVER, accept, registry.pop)
        registry[tunnel] = None
        self._report_finished()
        tunnel.adopt_connection(self, events, now)

    def _on_event(self, event: ConnectionEvent, now: float) -> None:
        if isinstance(event, ConnectionOpened):
            self._peer_name = self.peer_name
            self._queue_reply = self.wire.queue_reply
            self._fast_path_bytes_max = min(LARGE_BYTES - 1, self.wire.send_bytes_max)
        elif isinstance(event, CancelFrame):
            if self.running.cancel(event.id) or self._backlog.cancel(event.id):
                self._context.counters.requests_cancelled += 1
        elif isinstance(event, FrameIgnored):
            self._log_ignored_frame(event)
        elif self.wire.state is ConnectionState.DRAINING:
            self._close_when_drained()

    # Handling.

    def _handle_request(self, request: RequestFrame, arrived: float) -> None:
        self.requests_received += 1
        subject = request.subject
        subscription = self._subscriptions.get(subject)
        if subscription is None or (self._is_stopping and not self._is_one_way(request)):
            self._reply_no_handler(request)
            return
        sender = self._sender
        if sender is None:
            sender = self._sender = self.wire.sender or _UNKNOWN_SENDER
        timeout_ms = request.timeout_ms
        deadline = arrived + timeout_ms / 1000 if timeout_ms else None
        message = RawMessage(request.payload, subject, sender, self._peer_name, deadline)
        if request.one_way or subscription.one_way or tracing.tracer is not None:
            self._handle_slow_path(request, subscription, message, arrived)
            return
        try:
            result = subscription.handler(message)
        except (Exception, asyncio.CancelledError) as error:
            self._send_reply(request, subscription, error_reply(error, subscription))
            return
        if type(result) is bytes and len(result) <= self._fast_path_bytes_max:
            self.replies_sent += 1
            self._queue_reply(request.id, 0, result, 0, False)
            self._queued_bytes += len(result) + FRAME_BYTES
            if self._queued_bytes > QUEUED_BYTES_MAX:
                self._flush()
        elif type(result) is CoroutineType:
            self._spawn(request, subscription, self._loop.create_task(result), arrived)
        else:
            self._complete(request, subscription, to_handler_result(result, subscription), arrived)

    def _handle_slow_path(
        self, request: RequestFrame, subscription: Subscription, message: RawMessage, now: float
    ) -> None:
        """Handle a request that is one-way or traced, or whose handler is one-way."""
        if subscription.one_way and not request.one_way and self.wire.version >= 3:
            self._context.counters.no_handler += 1
            self._reply(request.id, one_way_handler_reply(request.subject))
        elif tracing.tracer is None:
            self._complete(request, subscription, call_handler(subscription, message), now)
        else:
            node = self._context.config.hello.name
            result = call_handler_traced(subscription, message, request.trace, node=node)
            self._complete(request, subscription, result, now)

    def _complete(
        self, request: RequestFrame, subscription: Subscription, result: HandlerResult, now: float
    ) -> None:
        if isinstance(result, bytes | HandlerReply):
            self._send_reply(request, subscription, result)
        else:
            future = asyncio.ensure_future(result, loop=self._loop)
            self._spawn(request, subscription, future, now)

    def _reply_no_handler(self, request: RequestFrame) -> None:
        """Reply that there is no handler, or log it if the message is one-way."""
        is_stopping_reply = self._is_stopping and self.wire.version >= 3
        reply = STOPPING_REPLY if is_stopping_reply else no_handler_reply(request.subject)
        self._context.counters.no_handler += 1
        if request.one_way:
            self._context.warn(
                "no handler",
                "message from %s dropped: no handler for %r",
                self.describe_peer(),
                request.subject,
            )
        else:
            self._reply(request.id, reply)

    def _send_reply(
        self, request: RequestFrame, subscription: Subscription, reply: bytes | HandlerReply
    ) -> None:
        """Send the reply, unless the request or its handler is one-way."""
        is_one_way = request.one_way or subscription.one_way
        if type(reply) is bytes and len(reply) <= self._fast_path_bytes_max and not is_one_way:
            if self.transport is not None:
                self.replies_sent += 1
                self._queue_reply(request.id, 0, reply, 0, False)
                self._queued_bytes += len(reply) + FRAME_BYTES
                if self._queued_bytes > QUEUED_BYTES_MAX:
                    self._flush()
            return
        if isinstance(reply, HandlerReply):
            self._context.counters.handlers_failed += 1
        elif len(reply) > self.wire.send_bytes_max:
            reply = oversized_reply(len(reply), self.wire.send_bytes_max)
        else:
            reply = HandlerReply(ReplyStatus.OK, reply)
        if is_one_way:
            if reply.status != ReplyStatus.OK:
                self._context.warn(
                    "one-way",
                    "handler of one-way %r failed: %s",
                    request.subject,
                    reply.payload.decode(),
                )
        else:
            self._reply(request.id, reply)

    def _reply(self, id: int, reply: HandlerReply) -> None:
        if self.transport is None:
            return
        self.replies_sent += 1
        payload = reply.payload[: self.wire.send_bytes_max]
        self.wire.reply(id, reply.status, payload, reply.code, reply.retryable)
        self._queued_bytes += len(payload) + FRAME_BYTES
        if self._queued_bytes > QUEUED_BYTES_MAX:
            self._flush()

    # Asynchronous handlers.

    def _spawn(
        self,
        request: RequestFrame,
        subscription: Subscription,
        future: asyncio.Future[HandlerReturn],
        arrived: float,
    ) -> None:
        is_one_way = request.one_way or subscription.one_way
        run = HandlerTask(future, request, subscription, self, is_one_way)
        handler_s = self._context.limits.handler_timeout_s
        if is_one_way:
            # No caller waits, so the request has no deadline: the handler's timeout starts with the
            # handler, however long the message waited.
            deadline = self._loop.time() + handler_s
        else:
            deadline = arrived + (request.timeout_ms / 1000 or handler_s)
        self.running.add(run, deadline)
        future.add_done_callback(run)
        if deadline < self._timer_at:
            self._set_timer(deadline)
        if not self.running.has_capacity:
            self._can_serve = False

    def on_handled(self, run: HandlerTask) -> None:
        """Send the reply of a handler that has finished, and start those that wait."""
        if self.running.finish(run):
            reply = reply_from_task(run.future, run.subscription)
            self._send_reply(run.request, run.subscription, reply)
        if self._can_serve and self.wire.state is ConnectionState.OPEN:
            # Nothing waits for the capacity that is free now.
            if not self._flush_scheduled:
                self._schedule_flush()
        else:
            self._process_backlog()

    def _on_timer(self, now: float) -> None:
        self._abort_if_stalled(now, "none of its replies")
        for run in self.running.expire(now):
            self._context.counters.handlers_timed_out += 1
            # A caller that sent its deadline has timed out by itself.
            if not run.is_one_way and not run.request.timeout_ms:
                self._reply(run.request.id, HANDLER_TIMEOUT_REPLY)
        self._process_backlog()

    def _own_deadline(self) -> float:
        return min(self.running.next_deadline, self._stall.deadline)

    # Backpressure.

    @property
    def _has_capacity(self) -> bool:
        return self.running.has_capacity and (self._is_writable or self.transport is None)

    def _process_backlog(self) -> None:
        """Handle waiting requests while there is capacity."""
        backlog, now = self._backlog, self._loop.time()
        has_capacity = self._has_capacity
        while has_capacity and backlog.entries:
            request, arrived = backlog.pop_first()
            if request.timeout_ms and arrived + request.timeout_ms / 1000 <= now:
                self._context.counters.requests_expired += 1
            else:
                self._handle_request(request, arrived)
                has_capacity = self._has_capacity
        self._can_serve = has_capacity and not backlog.entries
        if self.transport is None:
            self._report_finished()
            return
        if self.wire.outgoing and not self._flush_scheduled:
            self._schedule_flush()
        self._update_backpressure()
        self._close_when_drained()

    def _update_backpressure(self) -> None:
        """Read from the peer only while there is capacity for more requests."""
        should_read = self._can_serve and self._capacity_timer is None
        if should_read != self._reads:
            self._read(should_read)

    def _on_writable(self, is_writable: bool) -> None:
        if is_writable:
            self._stall.stop()
            self._process_backlog()
        else:
            self._watch_full_buffer()
            self._can_serve = False
            self._update_backpressure()

    # Lifecycle.

    def drain(self) -> None:
        """Stop accepting requests, wait for running handlers, then close the connection."""
        self._is_stopping = True
        self.wire.goodbye("the node is stopping")
        # The sender of a one-way message gets no rejection, so those are still handled.
        for request in self._backlog.retain(self._is_one_way):
            self._reply_no_handler(request)
        self._flush()
        if self.wire.state is ConnectionState.CLOSED:
            self.close("stopped before the handshake was done")
        self._close_when_drained()

    def _close_when_drained(self) -> None:
        if self.wire.state is not ConnectionState.DRAINING or self.is_busy:
            return
        if not self._is_stopping:
            self.close("the peer said goodbye")
        elif self.wire.version < 3:
            self.close("stopped")
        elif self._goodbye_timer is None:
            # Requests that the peer sent before it received the goodbye must be rejected; the peer
            # closes the connection when none of its requests is in flight.
            self._goodbye_timer = self._loop.call_later(LINGER_S, self.close, "stopped")

    def _on_connection_lost(self, exc: Exception | None, *, was_open: bool) -> None:
        # Versions 1 and 2 have no goodbye, so a close is not counted as a loss.
        has_goodbye = self.wire.version >= 3
        if self._close_reason is None and was_open and (exc is not None or has_goodbye):
            self._context.counters.connections_lost += 1
        offered = self.wire.offered_version
        if 0 < offered < self.wire.version:
            # A client offers its newest version, so it cannot speak the one that was answered.
            self._context.counters.versions_declined += 1
            self._context.warn(
                "version",
                "peer %s offered protocol version %d and was answered %d, which it cannot speak",
                self.remote,
                offered,
                self.wire.version,
            )
        if self._goodbye_timer is not None:
            self._goodbye_timer.cancel()
        # Replies cannot be sent any more; one-way messages are still handled.
        self._backlog.retain(self._is_one_way)
        self.running.cancel_requests()
        self._stall.stop()
        self._process_backlog()
        if self.running:
            self._set_timer(self._own_deadline())

    def _is_one_way(self, request: RequestFrame) -> bool:
        """Whether no reply is expected; versions 1 and 2 do not say, so the handler decides."""
        subscription = self._subscriptions.get(request.subject)
        return request.one_way or (subscription is not None and subscription.one_way)

    def abort(self) -> None:
        """Cancel all handlers and abort the socket."""
        self._backlog.entries.clear()
        self.running.cancel_all()
        if self.transport is not None:
            self.transport.abort()
        else:
            self._report_finished()

    @property
    def is_busy(self) -> bool:
        """Whether requests wait or handlers run."""
        return bool(self.running or self._backlog)

    async def wait_finished(self) -> None:
        """Return when the socket is closed and no handler is running."""
        await asyncio.shield(self._finished)

    def _report_finished(self) -> None:
        if not self.is_busy and self in self._registry:
            self._registry.pop(self, None)
            self._finished.set_result(None)
            if self._timer is not None and self.transport is None:
                self._timer.cancel()
                self._timer = None
            self._context.counters.requests_received += self.requests_received
            self._context.counters.replies_sent += self.replies_sent

    def __repr__(self) -> str:
        state = self.wire.state.value if self.transport is not None else "closed"
        return f"<ServerConnection {self.describe_peer()} {state}, {len(self.running)} running>"
