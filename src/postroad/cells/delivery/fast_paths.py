"""Short ways: what is done with messages whose route was seen before, without an envelope.

The same few routes come with nearly all messages. Once it is known what becomes of one, a short way
does the same with the next in bytes: sends it on, has a cell handle it and writes the reply, or
gives a reply to the call that waits for it. Whatever is unusual about a message, it is left to the
long way. All short ways are forgotten when any route changes.
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

_PLAIN = frozenset({BYTES, TEXT, JSON, MSGPACK})
_MESSAGE, _REPLY = MessageKind.MESSAGE.value, MessageKind.REPLY.value


class FastPath(Protocol):
    """What becomes of messages of one route."""

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        """Deal with a message whose route ends at a place in its bytes.

        False, and nothing is done, if it needs a closer look.
        """
        ...


class ForwardFastPath:
    """They are sent on to another domain."""

    __slots__ = ("_begin", "_link", "_statistics")

    def __init__(self, link: DomainLink, leaving: Envelope, exchange: MessageDispatcher) -> None:
        """`leaving` is one of them as it leaves this domain."""
        self._link = link
        self._begin = encode_route(leaving.destination, leaving.source)
        self._statistics = exchange.statistics

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        if not self._link.can_send_now or is_expired(data, at):
            return False
        if tracing.tracer is not None and may_carry_trace(data):
            return False
        try:
            self._link.post(self._begin + data[at:])
        except (MessageTooLargeError, ConnectionClosedError):
            return False
        self._statistics.forwarded += 1
        return True


class DeliverFastPath:
    """A cell of this domain handles them, and the replies go back by the link they came from."""

    __slots__ = (
        "_arrived", "_back", "_exchange", "_link", "_name", "_runner", "_sender", "_way",
    )  # fmt: skip

    def __init__(
        self,
        link: DomainLink,
        runner: CellRunner,
        delivery: LocalDelivery,
        back: Forward,
        exchange: MessageDispatcher,
    ) -> None:
        """`delivery` is one of them, and `back` how the reply to it leaves."""
        self._link = link
        self._runner = runner
        self._exchange = exchange
        self._name = delivery.route_name
        self._arrived = delivery.envelope.destination
        self._way = delivery.envelope.source
        self._sender = self._way.sender
        self._back = encode_route(back.envelope.destination, back.envelope.source)

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        runner = self._runner
        if self._exchange.depth or not runner.is_free or not self._link.can_send_now:
            return False
        plain = decode_fast(data, at)
        if plain is None:
            return False
        kind, ttl_ms, id, rest = plain
        if (
            kind != _MESSAGE
            or ttl_ms == 0
            or not rest.wants_reply
            or rest.suppress_errors
            or rest.answers is not None
            or rest.content not in _PLAIN
        ):
            return False
        deadline = None if ttl_ms is None else now + ttl_ms / 1000
        message = CellMessage(
            rest.payload, rest.content, self._sender, self._name, id, True, deadline,
            None, None, self._way,
        )  # fmt: skip
        self._exchange.statistics.delivered += 1
        runner.handled += 1
        try:
            result = runner.invoke(message)
        except BaseException as error:
            raise_if_fatal(error)
            self._exchange.fail(self._envelope(data), error, runner.name)
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
            content, payload = encode_body(result)
        except ConfigError as error:
            self._exchange.fail(self._envelope(data), error, self._runner.name)
        else:
            self._reply(data, id, ttl_ms, content, payload)

    def _reply(
        self, data: bytes, id: bytes, ttl_ms: int | None, content: str, payload: bytes
    ) -> None:
        exchange = self._exchange
        reply = encode_fast(
            self._back, _REPLY, ttl_ms, exchange.new_id(),
            answers=id, wants_reply=False, content=content, payload=payload,
        )  # fmt: skip
        try:
            if not self._link.can_send_now:
                raise ConnectionClosedError("others wait for the tunnel")
            self._link.post(reply)
        except (MessageTooLargeError, ConnectionClosedError):
            exchange.reply_encoded(self._envelope(data), content, payload, self._runner.name)
        else:
            exchange.statistics.forwarded += 1

    def _envelope(self, data: bytes) -> Envelope:
        """The message as it is delivered the long way."""
        return decode_envelope(data).with_destination(self._arrived)


class ReplyFastPath:
    """They are the replies to calls of this domain."""

    __slots__ = ("_exchange", "_way")

    def __init__(self, exchange: MessageDispatcher, way: CellPath) -> None:
        """`way` is the one they took."""
        self._exchange = exchange
        self._way = way

    def try_handle(self, data: bytes, at: int, now: float) -> bool:
        plain = decode_fast(data, at)
        if plain is None:
            return False
        kind, _, _, rest = plain
        if kind != _REPLY or rest.answers is None or rest.content not in _PLAIN:
            return False
        answer = CellReply(rest.content, rest.payload, self._way)
        return self._exchange.on_reply(rest.answers, answer)


class CallFastPath(NamedTuple):
    """How requests of one cell to one destination leave this domain."""

    link: DomainLink
    begin: bytes
    selected_target: str | None
    """What was chosen among routes, to be avoided if it fails."""
    sender: CellAddress | None
    """The cell, as whoever sends names it."""

    def send(self, id: bytes, ttl_ms: int, payload: bytes) -> bool:
        """Send a request; False if that needs the long way."""
        if not self.link.can_send_now:
            return False
        try:
            self.link.post(
                encode_fast(
                    self.begin, _MESSAGE, ttl_ms, id,
                    answers=None, wants_reply=True, content=BYTES, payload=payload,
                )
            )  # fmt: skip
        except (MessageTooLargeError, ConnectionClosedError):
            return False
        return True
