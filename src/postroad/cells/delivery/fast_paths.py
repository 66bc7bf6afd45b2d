"""Fast paths: handling of messages with a known route, on bytes, without decoding the envelope.

Nearly all messages use the same few routes. Once the routing decision of a route is cached, a fast
path does the same with the next message: forwards its bytes, calls the handler and encodes the
reply, or completes a call. Unusual messages take the slow path through the dispatcher. All fast
paths are dropped when a route changes.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from postroad.cells.addresses import CellAddress, CellPath
from postroad.cells.delivery.cell_runner import CellRunner, raise_if_fatal
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.envelope_codec import (
    decode_envelope,
    decode_fast,
    encode_fast,
    encode_route,
    is_expired,
)
from postroad.cells.messages import BYTES, JSON, MSGPACK, TEXT, CellMessage, CellReply, encode_body
from postroad.cells.tracing import may_carry_trace
from postroad.core import tracing
from postroad.core.errors import ConfigError, ConnectionClosedError, MessageTooLargeError

if TYPE_CHECKING:
    from postroad.cells.delivery.dispatcher import MessageDispatcher
    from postroad.cells.delivery.domain_links import DomainLink
    from postroad.cells.routing.decision import Forward, LocalDelivery

_FAST_CONTENT_TYPES = frozenset({BYTES, TEXT, JSON, MSGPACK})
_MESSAGE, _REPLY = MessageKind.MESSAGE.value, MessageKind.REPLY.value


class FastPath(Protocol):
    """Handler of encoded messages with one route."""

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        """Handle a message whose route prefix ends at `at`.

        Returns False, and has done nothing, if the message needs the slow path.
        """
        ...


class ForwardFastPath:
    """Forwards messages to another domain."""

    __slots__ = ("_link", "_route", "_statistics")

    def __init__(self, link: DomainLink, outgoing: Envelope, dispatcher: MessageDispatcher) -> None:
        """`outgoing` is one of the messages as it leaves this domain."""
        self._link = link
        self._route = encode_route(outgoing.destination, outgoing.source)
        self._statistics = dispatcher.statistics

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        if not self._link.can_send_now or is_expired(data, at):
            return False
        if tracing.tracer is not None and may_carry_trace(data):
            return False
        try:
            self._link.send_encoded(self._route + data[at:])
        except (MessageTooLargeError, ConnectionClosedError):
            return False
        self._statistics.forwarded += 1
        return True


class DeliverFastPath:
    """Calls a local handler, and replies through the tunnel that the message came from."""

    __slots__ = (
        "_destination",
        "_dispatcher",
        "_link",
        "_path",
        "_reply_route",
        "_route_name",
        "_runner",
        "_sender",
    )  # fmt: skip

    def __init__(
        self,
        link: DomainLink,
        runner: CellRunner,
        delivery: LocalDelivery,
        reply_forward: Forward,
        dispatcher: MessageDispatcher,
    ) -> None:
        """`delivery` is one of the deliveries, `reply_forward` the forward of its reply."""
        self._link = link
        self._runner = runner
        self._dispatcher = dispatcher
        self._route_name = delivery.route_name
        self._destination = delivery.envelope.destination
        self._path = delivery.envelope.source
        self._sender = self._path.sender
        self._reply_route = encode_route(
            reply_forward.envelope.destination, reply_forward.envelope.source
        )

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        runner = self._runner
        if self._dispatcher.depth or not runner.is_free or not self._link.can_send_now:
            return False
        fields = decode_fast(data, at)
        if fields is None:
            return False
        kind, ttl_ms, id, tail = fields
        if (
            kind != _MESSAGE
            or ttl_ms == 0
            or not tail.wants_reply
            or tail.suppress_errors
            or tail.in_reply_to is not None
            or tail.content_type not in _FAST_CONTENT_TYPES
        ):
            return False
        deadline = None if ttl_ms is None else now + ttl_ms / 1000
        message = CellMessage(
            tail.payload, tail.content_type, self._sender, self._route_name, id, True, deadline,
            None, None, self._path,
        )  # fmt: skip
        self._dispatcher.statistics.delivered += 1
        runner.handled += 1
        try:
            result = runner.invoke(message)
        except BaseException as error:
            raise_if_fatal(error)
            self._dispatcher.fail(self._envelope(data), error, runner.name)
            return True
        if type(result) is bytes:
            self._reply(data, id, ttl_ms, BYTES, result)
        elif isinstance(result, Awaitable):
            runner.reply_with(self._envelope(data), result)
        else:
            self._reply_encoded(data, id, ttl_ms, result)
        return True

    def _reply_encoded(self, data: bytes, id: bytes, ttl_ms: int | None, result: object) -> None:
        try:
            content_type, payload = encode_body(result)
        except ConfigError as error:
            self._dispatcher.fail(self._envelope(data), error, self._runner.name)
        else:
            self._reply(data, id, ttl_ms, content_type, payload)

    def _reply(
        self, data: bytes, id: bytes, ttl_ms: int | None, content_type: str, payload: bytes
    ) -> None:
        dispatcher = self._dispatcher
        reply = encode_fast(
            self._reply_route, _REPLY, ttl_ms, dispatcher.new_id(),
            in_reply_to=id, wants_reply=False, content_type=content_type, payload=payload,
        )  # fmt: skip
        try:
            if not self._link.can_send_now:
                raise ConnectionClosedError("the tunnel has queued messages")
            self._link.send_encoded(reply)
        except (MessageTooLargeError, ConnectionClosedError):
            dispatcher.reply_encoded(self._envelope(data), content_type, payload, self._runner.name)
        else:
            dispatcher.statistics.forwarded += 1

    def _envelope(self, data: bytes) -> Envelope:
        """Return the message as the slow path delivers it."""
        return decode_envelope(data).with_destination(self._destination)


class ReplyFastPath:
    """Completes calls of this domain with their replies."""

    __slots__ = ("_dispatcher", "_path")

    def __init__(self, dispatcher: MessageDispatcher, path: CellPath) -> None:
        """`path` is the source path of the replies."""
        self._dispatcher = dispatcher
        self._path = path

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
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
        reply = CellReply(tail.content_type, tail.payload, self._path)
        return self._dispatcher.on_reply(tail.in_reply_to, reply)


class CallFastPath(NamedTuple):
    """Sends requests of one cell to one destination over a known tunnel."""

    link: DomainLink
    route: bytes
    selected_target: str | None
    """Selected target of a default route, to be avoided if it fails."""
    sender: CellAddress | None
    """The sending cell, as passed to `call`."""

    def send(self, id: bytes, ttl_ms: int, payload: bytes) -> bool:
        """Send a request; return False if it needs the slow path."""
        if not self.link.can_send_now:
            return False
        try:
            self.link.send_encoded(
                encode_fast(
                    self.route, _MESSAGE, ttl_ms, id,
                    in_reply_to=None, wants_reply=True, content_type=BYTES, payload=payload,
                )
            )  # fmt: skip
        except (MessageTooLargeError, ConnectionClosedError):
            return False
        return True
