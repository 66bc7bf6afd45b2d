"""Fast paths: handling of messages with a known route, on bytes, without decoding the envelope.

Nearly all messages use the same few routes. Once a message of a route was decoded, verified and
routed, a fast path does the same with the next one: forwards its bytes, calls the handler and
encodes the reply, or completes a call. Unusual messages take the slow path through the dispatcher.
A fast path is kept until something that it depends on changes; so is the knowledge that a route
has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from postroad.cells.addresses import ANY, CellPath
from postroad.cells.delivery.cell_registry import Gateway, gateway_name
from postroad.cells.delivery.cell_runner import CellRunner, raise_if_fatal
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.envelope_codec import (
    decode_envelope,
    decode_fast,
    decode_short_reply,
    decode_short_request,
    encode_reply,
    encode_request,
    encode_route,
    is_expired,
)
from postroad.cells.messages import BYTES, JSON, MSGPACK, TEXT, CellMessage, CellReply, encode_body
from postroad.cells.routing.decision import LOCAL_ORIGIN, Forward, LocalDelivery, MessageOrigin
from postroad.cells.routing.route import RouteType
from postroad.cells.routing.route_table import Dependency, RouteTable
from postroad.cells.tracing import TRACE_MARK
from postroad.core import tracing
from postroad.core.errors import ConfigError

if TYPE_CHECKING:
    from postroad.cells.delivery.dispatcher import MessageDispatcher

_FAST_CONTENT_TYPES = frozenset({BYTES, TEXT, JSON, MSGPACK})
_MESSAGE, _REPLY = MessageKind.MESSAGE.value, MessageKind.REPLY.value
_DEFAULTS = (RouteType.DEFAULT, ANY, ANY)


class FastPath(Protocol):
    """Handler of encoded messages with one route."""

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        """Handle a message whose route prefix ends at `at`.

        Returns False, and has done nothing, if the message needs the slow path.
        """
        ...


class NoFastPath:
    """Stands for routes whose messages all need the slow path."""

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        return False


NO_FAST_PATH = NoFastPath()


class ResolvedRoute(NamedTuple):
    """Where all messages of a route and origin go, and what that depends on."""

    result: Forward | LocalDelivery | None
    """None if they go to several places, fail, or differ in where they go."""
    dependencies: set[Dependency]


def resolve_route(
    dispatcher: MessageDispatcher, envelope: Envelope, origin: MessageOrigin = LOCAL_ORIGIN
) -> ResolvedRoute:
    """Return where all messages go that have the route of this one; it must not be expired."""
    resolution = dispatcher.registry.decision_cache.resolve(envelope, origin)
    decision = resolution.decide()
    results: list[Forward | LocalDelivery] = [*decision.deliveries, *decision.forwards]
    is_same_for_all = decision.failure is None and not resolution.candidates and len(results) == 1
    return ResolvedRoute(results[0] if is_same_for_all else None, resolution.dependencies)


def find_fast_path(
    dispatcher: MessageDispatcher, envelope: Envelope, origin: MessageOrigin
) -> tuple[FastPath, set[Dependency]]:
    """Return the fast path for messages with the route of this one, and what it depends on."""
    path, local_domain = envelope.destination, dispatcher.domain.name
    is_local = path.is_complete or path.current.domain == local_domain
    if is_local and envelope.is_reply:
        is_for_caller = path.last is not None and path.last.domain == local_domain
        return ReplyFastPath(dispatcher, envelope.source) if is_for_caller else NO_FAST_PATH, set()
    result, dependencies = resolve_route(dispatcher, envelope, origin)
    if isinstance(result, Forward) and result.gateway in dispatcher.registry.gateways:
        gateway = dispatcher.registry.gateways[result.gateway]
        return ForwardFastPath(gateway, result.envelope, dispatcher), dependencies
    if isinstance(result, LocalDelivery) and result.envelope.destination.is_complete:
        reply = _resolve_reply(dispatcher, result)
        dependencies |= reply.dependencies
        return DeliverFastPath(dispatcher, result, reply.result), dependencies
    return NO_FAST_PATH, dependencies


def _resolve_reply(dispatcher: MessageDispatcher, delivery: LocalDelivery) -> ResolvedRoute:
    """Return how the replies to the messages of a delivery leave this domain."""
    request = delivery.envelope
    if not request.can_reply:
        return ResolvedRoute(None, set())
    reply = dispatcher.reply_to(request, b"", "", delivery.cell)
    forward = dispatcher.reply_forward(reply, request)
    if forward is not None:
        return ResolvedRoute(forward, {_DEFAULTS, forward.gateway})
    resolved = resolve_route(dispatcher, reply)
    last_hop = request.source.last
    if last_hop is not None:
        resolved.dependencies.update((_DEFAULTS, gateway_name(last_hop.domain)))
    return resolved


class ForwardFastPath:
    """Forwards messages to another domain."""

    __slots__ = ("_gateway", "_route", "_statistics")

    def __init__(self, gateway: Gateway, outgoing: Envelope, dispatcher: MessageDispatcher) -> None:
        """`outgoing` is one of the messages as it leaves this domain."""
        self._gateway = gateway
        self._route = encode_route(outgoing.destination, outgoing.source)
        self._statistics = dispatcher.statistics

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        if is_expired(data, at) or (tracing.tracer is not None and TRACE_MARK in data):
            return False
        if not self._gateway.try_send_encoded(self._route + data[at:]):
            return False
        self._statistics.forwarded += 1
        return True


class DeliverFastPath:
    """Calls a local handler, and sends its reply, if one is wanted."""

    def __init__(
        self,
        dispatcher: MessageDispatcher,
        delivery: LocalDelivery,
        reply: Forward | LocalDelivery | None,
    ) -> None:
        """`delivery` is one of the deliveries, `reply` where all replies go."""
        self._dispatcher = dispatcher
        self._runner: CellRunner = dispatcher.registry.runners[delivery.cell]
        self._route_name = delivery.route_name
        self._destination = delivery.envelope.destination
        self._path = delivery.envelope.source
        self._sender = self._path.sender
        self._reply_gateway: Gateway | None = None
        self._reply_route = b""
        if isinstance(reply, Forward):
            self._reply_gateway = dispatcher.registry.gateways.get(reply.gateway)
            self._reply_route = encode_route(reply.envelope.destination, reply.envelope.source)

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        if self._dispatcher.depth or not self._runner.is_free:
            return False
        short = decode_short_request(data, at)
        if short is not None:
            if self._reply_gateway is None:
                return False
            ttl_ms, id, payload = short
            self._handle(data, id, ttl_ms, True, BYTES, payload, now)
            return True
        fields = decode_fast(data, at)
        if fields is None:
            return False
        kind, ttl_ms, id, tail = fields
        if (
            kind != _MESSAGE
            or ttl_ms == 0
            or tail.in_reply_to is not None
            or tail.content_type not in _FAST_CONTENT_TYPES
            or (tail.wants_reply and self._reply_gateway is None)
        ):
            return False
        self._handle(data, id, ttl_ms, tail.wants_reply, tail.content_type, tail.payload, now)
        return True

    def _handle(
        self,
        data: bytes,
        id: bytes,
        ttl_ms: int | None,
        wants_reply: bool,
        content_type: str,
        payload: bytes,
        now: float,
    ) -> None:
        runner = self._runner
        message = CellMessage(
            payload, content_type, self._sender, self._route_name, id, wants_reply,
            None if ttl_ms is None else now + ttl_ms / 1000, None, None, self._path,
        )  # fmt: skip
        self._dispatcher.statistics.delivered += 1
        runner.handled += 1
        try:
            result = runner.invoke(message)
        except BaseException as error:
            raise_if_fatal(error)
            self._fail(data, error)
            return
        if type(result) is not bytes and isinstance(result, Awaitable):
            table = self._dispatcher.registry.table
            task = runner.track(result)
            task.add_done_callback(
                lambda done: self._on_done(data, id, ttl_ms, wants_reply, table, done)
            )
        elif wants_reply:
            self._reply(data, id, ttl_ms, result)

    def _on_done(
        self,
        data: bytes,
        id: bytes,
        ttl_ms: int | None,
        wants_reply: bool,
        table: RouteTable,
        done: asyncio.Future[object],
    ) -> None:
        try:
            result = done.result()
        except BaseException as error:
            self._fail(data, error)
            return
        if not wants_reply:
            return
        if table is self._dispatcher.registry.table:
            self._reply(data, id, ttl_ms, result)
        else:
            # The core that the request came through may be about to stop.
            self._dispatcher.reply(self._envelope(data), result, self._runner.name)

    def _reply(self, data: bytes, id: bytes, ttl_ms: int | None, result: object) -> None:
        dispatcher = self._dispatcher
        content_type = BYTES
        if type(result) is bytes:
            payload = result
        else:
            try:
                content_type, payload = encode_body(result)
            except ConfigError as error:
                self._fail(data, error)
                return
        reply = encode_reply(
            self._reply_route, ttl_ms, dispatcher.new_id(), id, content_type, payload
        )
        if self._reply_gateway is not None and self._reply_gateway.try_send_encoded(reply):
            dispatcher.statistics.forwarded += 1
        else:
            envelope = self._envelope(data)
            dispatcher.reply_encoded(envelope, content_type, payload, self._runner.name)

    def _fail(self, data: bytes, error: BaseException) -> None:
        self._dispatcher.fail(self._envelope(data), error, self._runner.name)

    def _envelope(self, data: bytes) -> Envelope:
        """Return the message as the slow path delivers it."""
        return decode_envelope(data).with_destination(self._destination)


class ReplyFastPath(NamedTuple):
    """Completes calls of this domain with their replies."""

    dispatcher: MessageDispatcher
    path: CellPath
    """Source path of the replies."""

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        short = decode_short_reply(data, at)
        if short is not None:
            return self.dispatcher.on_reply(*short)
        fields = decode_fast(data, at)
        if fields is None:
            return False
        kind, _, _, tail = fields
        if (
            kind != _REPLY
            or tail.in_reply_to is None
            or tail.content_type not in _FAST_CONTENT_TYPES
        ):
            return False
        reply = CellReply(tail.content_type, tail.payload, self.path)
        return self.dispatcher.on_reply(tail.in_reply_to, reply)


class CallFastPath(NamedTuple):
    """Sends requests of one cell to one destination over a known tunnel."""

    gateway: Gateway
    route: bytes
    selected_target: str | None
    """Selected target of a queue or default route, to be avoided if it fails."""

    def send(self, id: bytes, ttl_ms: int, payload: bytes) -> bool:
        """Send a request; return False if it needs the slow path."""
        return self.gateway.try_send_encoded(encode_request(self.route, ttl_ms, id, payload))
