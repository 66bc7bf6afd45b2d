"""The sending half of a domain: send, publish, call, and the fast paths of calls."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from postroad.cells.addresses import LOCAL, SYSTEM, CellAddress, CellPath, DomainInfo
from postroad.cells.config import CellsConfig
from postroad.cells.delivery.cell_runner import CellRunner, raise_if_fatal
from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.envelope import ENVELOPE_BYTES_MAX, Envelope
from postroad.cells.delivery.envelope_codec import encode_route
from postroad.cells.delivery.fast_paths import CallFastPath, resolve_route
from postroad.cells.delivery.requests import CellCallTracker, FailedRequest
from postroad.cells.errors import NoRouteError
from postroad.cells.messages import BYTES, COMMAND, CellMessage, CellReply, decode_body, encode_body
from postroad.cells.routing.decision import LocalDelivery
from postroad.cells.routing.route_table import CacheSection
from postroad.cells.tracing import inject_trace_headers, start_send_span
from postroad.core import tracing
from postroad.core.errors import (
    ConfigError,
    MessageTooLargeError,
    MessagingError,
    NotRunningError,
    ReplyTimeoutError,
    UsageError,
)
from postroad.core.limits import KIB
from postroad.core.tracing import NOOP_SPAN, SpanKind, SpanLike
from postroad.net.requests import validate_timeout

Destination: TypeAlias = str | CellAddress | CellPath
"""`cell@domain`, the name of a cell or queue, or several of them joined with `:`."""
_CallKey: TypeAlias = Destination | tuple[Destination, CellAddress]
"""Destination of calls, and their sender if it is not the domain."""
DurableSender: TypeAlias = Callable[[Envelope], Awaitable[None]]
"""Sends a message to a durable queue; returns once the message is committed."""

# Part of the largest message that is reserved for paths and headers.
_HEAD_BYTES = 128 * KIB
_CALLS_BEFORE_YIELD = 64
# Parsed destinations, and destinations with a known route.
_DESTINATIONS_MAX = 4_096


class DomainState(enum.Enum):
    """State in the lifecycle of a domain."""

    NEW = "not started"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class CellMessaging:
    """The sending half of a domain."""

    def __init__(self, identity: DomainInfo, config: CellsConfig, frame_bytes_max: int) -> None:
        self.identity = identity
        self.config = config
        message_bytes_max = min(frame_bytes_max, ENVELOPE_BYTES_MAX)
        self._payload_bytes_max = message_bytes_max - min(_HEAD_BYTES, message_bytes_max // 2)
        self._state = DomainState.NEW
        self._system_address = identity.cell(SYSTEM)
        # Queues whose messages are sent as durable messages.
        self._durable_senders: dict[CellPath, DurableSender] = {}
        # Set when the domain starts.
        self._dispatcher: MessageDispatcher
        self._calls: CellCallTracker

    @property
    def name(self) -> str:
        """Name of the domain."""
        return self.identity.name

    def _start_sending(self) -> MessageDispatcher:
        """Create the dispatcher and the call tracker."""
        self._dispatcher = dispatcher = MessageDispatcher(self.identity, self.config)
        self._call_section: CacheSection[_CallKey, CellRunner | CallFastPath | None] = CacheSection(
            dispatcher.registry.cache, _DESTINATIONS_MAX
        )
        # Where calls go: the runner of a local cell, a fast path to another domain, or None if
        # calls need the slow path.
        self._call_routes = self._call_section.results
        self._calls = CellCallTracker(dispatcher)
        return dispatcher

    def _running(self) -> MessageDispatcher:
        if self._state in (DomainState.NEW, DomainState.STOPPED):
            raise NotRunningError(f"cannot use domain {self.name!r}: it is {self._state.value}")
        return self._dispatcher

    async def send(
        self,
        destination: Destination,
        body: Any = b"",
        *,
        sender: CellAddress | None = None,
        timeout: float | None = None,
        session: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a one-way message.

        To a guaranteed queue, it returns once the message is committed. Otherwise it returns once
        the message is dispatched; the message is lost if a node on its path crashes.

        Args:
            destination: address, name or path.
            body: bytes, text or plain values.
            sender: the sending cell of this domain, its cell `System` by default.
            timeout: seconds after which the message expires, never by default.
            session: text for the logs, returned with replies.
            headers: names and values for the receiver.

        Raises:
            NoRouteError: this domain has no route to the destination.
            CellBusyError: a mailbox or the queue of a tunnel is full.
            MessageTooLargeError: the body is larger than a message may be.
        """
        durable_sender = self._durable_senders.get(self._to_path(destination))
        if durable_sender is None:
            self.send_nowait(
                destination, body, sender=sender, timeout=timeout, session=session, headers=headers
            )
            return
        # The durable sender injects the trace, so that a redelivered message is unchanged.
        with start_send_span(self.name, "send", destination, headers, SpanKind.PRODUCER):
            build_envelope = self._envelope_factory(
                destination, body, sender, session=session, headers=headers
            )
            await durable_sender(build_envelope(_to_ms(timeout)))

    def send_nowait(
        self,
        destination: Destination,
        body: Any = b"",
        *,
        sender: CellAddress | None = None,
        timeout: float | None = None,
        session: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a one-way message from synchronous code; see `send`.

        Raises:
            UsageError: the queue is guaranteed here, so that only `send` can be used.
        """
        span: SpanLike = NOOP_SPAN
        if tracing.tracer is not None:
            span = start_send_span(self.name, "send", destination, headers, SpanKind.PRODUCER)
            headers = inject_trace_headers(headers, span.context)
        with span:
            build_envelope = self._envelope_factory(
                destination, body, sender, session=session, headers=headers
            )
            envelope = build_envelope(_to_ms(timeout))
            if envelope.destination in self._durable_senders:
                text = f"cannot send_nowait to guaranteed queue {destination}: use await send()"
                raise UsageError(text)
            self._calls.send(envelope)

    def set_durable_sender(self, queue: str, durable_sender: DurableSender | None) -> None:
        """Send messages from here to a queue as durable messages, or, with None, as usual again."""
        path = CellPath((CellAddress(queue),))
        if durable_sender is None:
            self._durable_senders.pop(path, None)
        else:
            self._durable_senders[path] = durable_sender

    def publish(
        self,
        topic: str,
        body: Any = b"",
        *,
        sender: CellAddress | None = None,
        session: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a copy to every subscriber of a topic; a topic without subscribers is no error."""
        destination = CellAddress(topic)
        span: SpanLike = NOOP_SPAN
        if tracing.tracer is not None:
            span = start_send_span(self.name, "publish", topic, headers, SpanKind.PRODUCER)
            headers = inject_trace_headers(headers, span.context)
        with span:
            build_envelope = self._envelope_factory(
                destination, body, sender, session=session, headers=headers, suppress_errors=True
            )
            self._calls.send(build_envelope(None))

    async def call(
        self,
        destination: Destination,
        body: Any = b"",
        *,
        timeout: float | None = None,
        wait: bool = True,
        sender: CellAddress | None = None,
        session: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request and return the reply.

        Args:
            destination: address, name or path.
            body: bytes, text or plain values.
            timeout: seconds for all attempts, `call_timeout_s` of the settings by default.
            wait: whether to wait for a route until the timeout, or to fail at once.
            sender: the sending cell of this domain, its cell `System` by default.
            session: text for the logs, returned with the reply.
            headers: names and values for the receiver.

        Raises:
            NoRouteError: no domain has a route to the destination.
            CellBusyError: a mailbox or the queue of a tunnel is full.
            ReplyTimeoutError: there was no reply within the timeout.
            MessageExpiredError: the timeout was over before the request was handled.
            RemoteHandlerError: the handler raised; `remote_code` is the error code.
            RemoteDecodeError: the handler could not decode the request.
        """
        timeout_s = self.config.call_timeout_s if timeout is None else validate_timeout(timeout)
        if tracing.tracer is not None:
            with start_send_span(self.name, "call", destination, headers, SpanKind.CLIENT) as span:
                build_envelope = self._envelope_factory(
                    destination,
                    body,
                    sender,
                    session=session,
                    headers=inject_trace_headers(headers, span.context),
                    wants_reply=True,
                )
                reply = await self._calls.call(build_envelope, timeout_s, wait=wait)
                return decode_body(reply.content_type, reply.payload)
        first: FailedRequest | None = None
        key = destination if sender is None else (destination, sender)
        is_small = type(body) is bytes and len(body) <= self._payload_bytes_max
        if is_small and session is None and headers is None:
            route = self._call_routes.get(key)
            if isinstance(route, CallFastPath):
                result = await self._calls.call_fast(route, body, timeout_s)
                if isinstance(result, bytes):
                    return result
                if isinstance(result, CellReply):
                    return decode_body(result.content_type, result.payload)
                first = result
            elif route is not None and route.is_free:
                return await self._call_local(route, body, sender, timeout_s)
        build_envelope = self._envelope_factory(
            destination, body, sender, session=session, headers=headers, wants_reply=True
        )
        reply = await self._calls.call(build_envelope, timeout_s, wait=wait, first=first)
        if key not in self._call_routes:
            self._cache_call_route(key, build_envelope)
        return decode_body(reply.content_type, reply.payload)

    def _cache_call_route(
        self, key: _CallKey, build_envelope: Callable[[int | None], Envelope]
    ) -> None:
        """Cache where the calls of a sender to a destination go, until that may change."""
        registry = self._dispatcher.registry
        result, dependencies = resolve_route(self._dispatcher, build_envelope(None))
        route: CellRunner | CallFastPath | None = None
        if isinstance(result, LocalDelivery):
            if result.route_name is None and result.envelope.destination.is_complete:
                route = registry.runners[result.cell]
        elif result is not None and result.gateway in registry.gateways:
            outgoing = result.envelope
            prefix = encode_route(outgoing.destination, outgoing.source)
            gateway = registry.gateways[result.gateway]
            route = CallFastPath(gateway, prefix, result.selected_target)
        self._call_section.put(key, route, dependencies)

    async def run_command(
        self, destination: Destination, line: str, *, timeout: float | None = None
    ) -> str:
        """Run a command of an operator in a cell, and return its output."""
        timeout_s = self.config.call_timeout_s if timeout is None else validate_timeout(timeout)
        reply = await self.ping(destination, COMMAND, line, timeout_s)
        return str(decode_body(reply.content_type, reply.payload))

    async def ping(
        self, destination: Destination, content_type: str, payload: bytes | str, timeout: float
    ) -> CellReply:
        """Send a ping or command and return the reply with the path that the reply took."""
        build_envelope = self._envelope_factory(
            destination, payload, None, content_type=content_type, wants_reply=True
        )
        return await self._calls.call(build_envelope, timeout, wait=False)

    async def deliver_local(
        self, cell: str, message: Envelope, *, name: str | None, timeout: float, transaction: Any
    ) -> None:
        """Deliver a durable message to a cell of this domain, and wait until it is handled.

        Raises the errors of `call`. The handler finds the transaction in the message.
        """
        if cell not in self._running().registry.runners:
            raise NoRouteError(f"no cell {cell!r} in domain {self.name}")
        envelope = msgspec.structs.replace(
            message,
            id=self._dispatcher.new_id(),
            destination=CellPath((self.identity.cell(cell),)).advanced(),
            wants_reply=True,
            headers=inject_trace_headers(message.headers, tracing.current_span_context()),
        )
        await self._calls.deliver_local(LocalDelivery(cell, envelope, name), timeout, transaction)

    async def _call_local(
        self, runner: CellRunner, body: bytes, sender: CellAddress | None, timeout_s: float
    ) -> Any:
        """Call an idle cell of this domain without an envelope."""
        dispatcher = self._dispatcher
        sender = sender or self._system_address
        message = CellMessage(
            body,
            BYTES,
            sender,
            None,
            dispatcher.new_id(),
            True,
            dispatcher.loop.time() + timeout_s,
            path=CellPath((sender,)),
        )
        dispatcher.statistics.delivered += 1
        runner.handled += 1
        try:
            result = runner.invoke(message)
        except BaseException as error:
            raise self._handler_error(runner, error) from None
        if isinstance(result, Awaitable):
            result = await self._await_local(runner, result, timeout_s)
        elif not runner.handled % _CALLS_BEFORE_YIELD:
            # A caller in a loop must not starve the other tasks of the event loop.
            await asyncio.sleep(0)
        if type(result) is bytes:
            return result
        try:
            return decode_body(*encode_body(result))
        except ConfigError as error:
            raise self._handler_error(runner, error) from None

    async def _await_local(
        self, runner: CellRunner, result: Awaitable[Any], timeout_s: float
    ) -> Any:
        task = runner.track(result)
        try:
            await asyncio.wait({task}, timeout=timeout_s)
        finally:
            if not task.done():
                task.add_done_callback(self._on_late_result)
        if not task.done():
            raise ReplyTimeoutError(
                "no reply in time", subject=str(runner.cell.address), timeout_s=timeout_s
            )
        try:
            return task.result()
        except BaseException as error:
            raise self._handler_error(runner, error) from None

    def _on_late_result(self, task: asyncio.Future[Any]) -> None:
        """Count the failure of a handler whose caller has timed out."""
        if not task.cancelled() and task.exception() is not None:
            self._dispatcher.statistics.failed += 1

    def _handler_error(self, runner: CellRunner, error: BaseException) -> MessagingError:
        """Return the error that the caller of a failed handler gets."""
        raise_if_fatal(error)
        self._dispatcher.statistics.failed += 1
        return self._dispatcher.failure_of(error, runner.name).to_error()

    def _envelope_factory(
        self,
        destination: Destination,
        body: Any,
        sender: CellAddress | None,
        *,
        content_type: str | None = None,
        session: str | None = None,
        headers: Mapping[str, str] | None = None,
        wants_reply: bool = False,
        suppress_errors: bool = False,
    ) -> Callable[[int | None], Envelope]:
        """Validate a message; return a function that builds envelopes of it with new ids."""
        if sender is not None and sender.domain not in (LOCAL, self.name):
            raise ConfigError(f"invalid sender {sender}: it must be a cell of domain {self.name}")
        path = self._to_path(destination)
        default_content_type, payload = encode_body(body)
        if len(payload) > self._payload_bytes_max:
            raise MessageTooLargeError(
                f"payload of {len(payload)} bytes is larger than {self._payload_bytes_max}",
                subject=str(path),
            )
        source = CellPath((sender or self._system_address,))
        sent_headers = _check_headers(headers) if headers else None

        def build(ttl_ms: int | None) -> Envelope:
            return Envelope(
                id=self._running().new_id(),
                destination=path,
                source=source,
                session=session,
                ttl_ms=ttl_ms,
                suppress_errors=suppress_errors,
                wants_reply=wants_reply,
                headers=sent_headers,
                content_type=default_content_type if content_type is None else content_type,
                payload=payload,
            )

        return build

    @staticmethod
    def _to_path(destination: Destination) -> CellPath:
        if isinstance(destination, CellPath):
            return destination
        return _parse_destination(str(destination))


@lru_cache(maxsize=_DESTINATIONS_MAX)
def _parse_destination(text: str) -> CellPath:
    path = CellPath.parse(text)
    if not path:
        raise ConfigError("destination must not be empty")
    return path


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if type(name) is not str or type(value) is not str:
            raise ConfigError(f"invalid header {name!r}: {value!r}; name and value must be strings")
    return dict(headers)


def _to_ms(timeout_s: float | None) -> int | None:
    return None if timeout_s is None else round(validate_timeout(timeout_s) * 1000)
