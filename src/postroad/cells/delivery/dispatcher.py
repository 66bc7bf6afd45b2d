"""The message dispatcher of a domain: from local senders and tunnels to cells and tunnels.

Every message that is neither delivered nor forwarded is reported as a failure: to a caller of this
domain directly, to remote senders as an error reply. A rejected message is never queued as well.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from postroad.cells.addresses import CellPath, DomainInfo
from postroad.cells.config import CellsConfig, DomainStatistics, RemoteCommands
from postroad.cells.delivery.cell_registry import (
    CellRegistry,
    ForwardedMessage,
    gateway_name,
    logger,
)
from postroad.cells.delivery.envelope import ID_BYTES, Envelope, MessageKind, make_reply
from postroad.cells.delivery.failure import (
    DeliveryFailure,
    decode_failure,
    make_error_reply,
    reply_to_error,
)
from postroad.cells.errors import CellBusyError, NoRouteError, RoutingError
from postroad.cells.messages import CellReply, encode_body
from postroad.cells.routing.decision import LOCAL_ORIGIN, Forward, LocalDelivery, MessageOrigin
from postroad.cells.routing.neighbors import NeighborTable
from postroad.cells.routing.router import SOURCE_HOPS_MAX
from postroad.cells.tracing import record_forward_span
from postroad.core import PostroadError, ThrottledLogger, tracing
from postroad.core.errors import LocalProtocolError, MalformedPayloadError

_WARN_INTERVAL_S = 5.0
_IDS_PER_READ = 256
_NO_TARGETS: frozenset[str] = frozenset()


class MessageDispatcher:
    """Delivers, forwards and replies to the messages of one domain."""

    def __init__(self, domain: DomainInfo, config: CellsConfig) -> None:
        self.domain = domain
        self.registry = registry = CellRegistry(domain)
        self._runners, self._gateways = registry.runners, registry.gateways
        self._decision_cache = registry.decision_cache
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.statistics = DomainStatistics()
        # Handlers on the call stack; messages that they send are queued, to bound recursion.
        self.depth = 0
        # Completes a pending call with its reply or failure; returns False if none waits for it.
        self.on_reply: Callable[[bytes, bytes | CellReply | DeliveryFailure], bool] = (
            lambda id, reply: False
        )
        self._address = domain.address
        self.neighbors = NeighborTable(domain)
        # Commands that other domains may run in cells of this one.
        self.remote_commands: RemoteCommands = "read"
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        self.new_id: Callable[[], bytes] = _random_ids().__next__
        """Returns a random, unguessable message id."""

    def warn(self, key: str, text: str, *args: object) -> None:
        self._log.log(key, self.loop.time(), f"domain %s: {text}", self.domain.name, *args)

    # Messages.

    def receive(self, envelope: Envelope, origin: MessageOrigin, arrived: float) -> None:
        """Dispatch a message that arrived through a tunnel."""
        if envelope.kind is not MessageKind.MESSAGE and self._complete_call(envelope):
            return
        if tracing.tracer is not None and envelope.headers:
            forwards = self._decision_cache.decide(envelope, origin).forwards
            if forwards:
                onward = ", ".join(forward.gateway for forward in forwards)
                envelope = record_forward_span(self.domain.name, envelope, onward)
        failure = self.dispatch(envelope, origin, arrived=arrived)
        if failure is not None:
            self._send_error(envelope, failure)

    def forward_from_cell(self, envelope: Envelope) -> None:
        """Dispatch a message that a cell of this domain forwards."""
        failure = self.dispatch(envelope)
        if failure is not None:
            self._send_error(envelope, failure)

    def dispatch(
        self,
        envelope: Envelope,
        origin: MessageOrigin = LOCAL_ORIGIN,
        avoid: frozenset[str] = _NO_TARGETS,
        arrived: float | None = None,
        selected_targets: list[str] | None = None,
    ) -> DeliveryFailure | None:
        """Deliver and forward a message; return the failure to report to its sender, or None.

        Args:
            avoid: targets of queue and default routes that were tried already.
            arrived: when it arrived, by the clock of the event loop; now by default.
            selected_targets: list that gets the selected targets of queue and default routes.
        """
        now = self.loop.time() if arrived is None else arrived
        decision = self._decision_cache.decide(envelope, origin, avoid)
        failure = decision.failure if decision.should_reply else None
        if decision.failure is not None:
            self.statistics.undelivered += 1
        for delivery in decision.deliveries:
            failure = self._deliver(delivery, origin, now) or failure
        for forward in decision.forwards:
            if selected_targets is not None and forward.selected_target is not None:
                selected_targets.append(forward.selected_target)
            forwarded = ForwardedMessage(forward, envelope, origin, avoid, now)
            failure = self._forward(forwarded, selected_targets) or failure
        return failure

    def _deliver(
        self, delivery: LocalDelivery, origin: MessageOrigin, now: float
    ) -> DeliveryFailure | None:
        if delivery.envelope.kind is not MessageKind.MESSAGE:
            # Completes the call of the reply, or forwards it along the cells of its request.
            envelope = delivery.envelope
            is_done = self._complete_call(envelope) or envelope.destination.is_complete
            if not is_done and len(envelope.source) < SOURCE_HOPS_MAX:
                self.dispatch(envelope.with_source_hop(self.domain.cell(delivery.cell)))
            return None
        runner = self._runners[delivery.cell]
        source, via = self.fairness_key(delivery.envelope, origin)
        if runner.deliver(delivery, now, source, via=via):
            self.statistics.delivered += 1
            return None
        text = f"mailbox of cell {runner.name} is full: {len(runner.mailbox)} messages"
        return self._reject_busy(delivery.envelope, text)

    def _forward(
        self, forwarded: ForwardedMessage, selected_targets: list[str] | None = None
    ) -> DeliveryFailure | None:
        forward = forwarded.forward
        gateway = self._gateways.get(forward.gateway)
        if gateway is None:
            text = f"cannot forward through {forward.gateway}: it is no tunnel"
            return self._failure(NoRouteError, text, forwarded.envelope)
        if gateway.try_send(forwarded):
            self.statistics.forwarded += 1
            return None
        if forward.selected_target is not None and self.has_alternative(forwarded):
            return self.reroute(forwarded, selected_targets)
        return self._reject_busy(forwarded.envelope, f"queue of {forward.gateway} is full")

    def has_alternative(self, forwarded: ForwardedMessage) -> bool:
        """Return whether there is a route that avoids the selected target of a forward."""
        assert forwarded.forward.selected_target is not None
        avoid = forwarded.avoid | {forwarded.forward.selected_target}
        return (
            self._decision_cache.decide(
                forwarded.envelope, _reroute_origin(forwarded), avoid
            ).failure
            is None
        )

    def reroute(
        self, forwarded: ForwardedMessage, selected_targets: list[str] | None = None
    ) -> DeliveryFailure | None:
        """Dispatch a message that a gateway could not send again, avoiding that target."""
        avoid = forwarded.avoid
        hop = forwarded.envelope.destination.current
        if forwarded.forward.selected_target is not None:
            avoid |= {forwarded.forward.selected_target}
        elif hop.is_local and self.registry.table.topics(hop.cell):
            # The copy of a topic for that domain; no other route leads to its subscribers.
            self.statistics.undelivered += 1
            return None
        self.statistics.resent += 1
        waited_ms = int((self.loop.time() - forwarded.arrived) * 1000)
        envelope = forwarded.envelope.with_elapsed(waited_ms)
        return self.dispatch(
            envelope, _reroute_origin(forwarded), avoid, selected_targets=selected_targets
        )

    def reroute_or_fail(self, forwarded: ForwardedMessage) -> None:
        """Reroute a message of a lost tunnel that was not sent, or report its failure."""
        failure = self.reroute(forwarded)
        if failure is not None:
            self.notify_sender(forwarded.envelope, forwarded.origin, failure)

    def _reject_busy(self, envelope: Envelope, text: str) -> DeliveryFailure | None:
        self.statistics.refused += 1
        failure = self._failure(CellBusyError, text, envelope)
        if envelope.is_reply:
            # Logged, because its caller now waits in vain until its timeout.
            self.log_undelivered(envelope, failure)
        return None if envelope.suppress_errors or not envelope.can_reply else failure

    def fairness_key(self, envelope: Envelope, origin: MessageOrigin) -> tuple[str, str | None]:
        """Return the domain whose share of a queue a message uses, and the core it came through.

        A core verifies from which domain it got a message. It could also invent domains, so its
        messages stay within the share of the core.
        """
        if origin.peer is None or origin.allow_remote:
            return origin.peer or self.domain.name, None
        hops = envelope.source.hops
        is_forwarded = len(hops) > 1 and hops[-2].is_domain
        return hops[-2].domain if is_forwarded else origin.peer, origin.peer

    # Replies.

    def reply(self, request: Envelope, body: Any, cell: str) -> None:
        """Reply to a message with the return value of its handler."""
        try:
            content_type, payload = encode_body(body)
        except PostroadError as error:
            self.fail(request, error, cell)
            return
        self.reply_encoded(request, content_type, payload, cell)

    def reply_encoded(
        self, request: Envelope, content_type: str, payload: bytes, cell: str
    ) -> None:
        if self.on_reply(request.id, CellReply(content_type, payload)):
            return
        try:
            reply = self.reply_to(request, payload, content_type, cell)
        except LocalProtocolError:
            # The sender has no address to reply to.
            return
        self._send_reply(reply, request)

    def reply_to(self, request: Envelope, payload: bytes, content_type: str, cell: str) -> Envelope:
        """Return the reply of a cell to a message; raises LocalProtocolError if it takes none."""
        source = CellPath((self.domain.cell(cell),))
        return make_reply(
            request, id=self.new_id(), payload=payload, content_type=content_type, source=source
        )

    def fail(self, request: Envelope, error: BaseException, cell: str) -> None:
        """Report the error of a handler: to the caller if it waits for a reply, else to the log."""
        self.statistics.failed += 1
        logger.debug("cell %s@%s: handler raised", cell, self.domain.name, exc_info=error)
        failure = self.failure_of(error, cell)
        if request.wants_reply:
            self._send_error(request, failure)
        else:
            kind = type(error).__name__
            self.warn(f"failed {cell}", "cell %s: handler raised %s: %s", cell, kind, failure.text)

    def failure_of(self, error: BaseException, cell: str) -> DeliveryFailure:
        """Return the failure that reports an error of a handler."""
        return DeliveryFailure.raised(error, hop=self.domain.cell(cell), at=self.domain.name)

    def reject(self, request: Envelope, error: type[RoutingError], text: str) -> None:
        """Reply to a message with a routing error, if it can be replied to."""
        self._send_error(request, self._failure(error, text, request))

    def notify_sender(
        self, envelope: Envelope, origin: MessageOrigin, failure: DeliveryFailure
    ) -> None:
        """Report a failure to the sender of a message, local or remote."""
        if envelope.kind is MessageKind.REPLY:
            # The request was handled, so the caller must not retry it as a routing failure.
            handler_failure = msgspec.structs.replace(failure, is_handler_error=True)
            self.dispatch(reply_to_error(envelope, handler_failure, id=self.new_id()))
        elif origin.peer is None and not self.on_reply(envelope.id, failure):
            self.log_undelivered(envelope, failure)
        elif origin.peer is not None:
            self._send_error(envelope, failure)

    def log_undelivered(self, envelope: Envelope, failure: DeliveryFailure) -> None:
        """Log the loss of a message that no caller waits for."""
        target = envelope.destination.last
        self.warn(f"lost {target}", "message to %s not delivered: %s", target, failure.text)

    def _send_error(self, envelope: Envelope, failure: DeliveryFailure) -> None:
        if self.on_reply(envelope.id, failure):
            return
        if envelope.can_reply:
            self._send_reply(make_error_reply(envelope, failure, id=self.new_id()), envelope)

    def _send_reply(self, reply: Envelope, request: Envelope) -> None:
        """Send a reply, through the core that forwarded the request if possible."""
        forward = self.reply_forward(reply, request)
        if forward is None:
            self.dispatch(reply)
            return
        failure = self._forward(
            ForwardedMessage(forward, reply, LOCAL_ORIGIN, _NO_TARGETS, self.loop.time())
        )
        if failure is not None:
            self.log_undelivered(reply, failure)

    def reply_forward(self, reply: Envelope, request: Envelope) -> Forward | None:
        """Return the forward of a reply through the core that forwarded the request, or None.

        That core has a route to the caller; another core may have lost its route.
        """
        last_hop = request.source.last
        if (
            last_hop is None
            or gateway_name(last_hop.domain) not in self._gateways
            or last_hop.domain not in self.registry.upstream_cores
            or reply.destination.current.domain == self.domain.name
        ):
            return None
        return Forward(
            gateway_name(last_hop.domain), reply.with_source_hop(self._address), last_hop.domain
        )

    def _complete_call(self, envelope: Envelope) -> bool:
        """Complete the local call that a reply belongs to; return False if it is not from here."""
        assert envelope.in_reply_to is not None
        reply: CellReply | DeliveryFailure
        if envelope.kind is MessageKind.ERROR:
            try:
                reply = decode_failure(envelope.payload)
            except MalformedPayloadError as error:
                self.statistics.malformed += 1
                reply = self._failure(MalformedPayloadError, str(error), envelope)
        else:
            reply = CellReply(envelope.content_type, envelope.payload, envelope.source)
        if self.on_reply(envelope.in_reply_to, reply):
            return True
        last = envelope.destination.last
        is_local = last is not None and last.domain == self.domain.name
        self.statistics.replies_late += is_local
        return is_local

    def _failure(
        self, error: type[PostroadError], text: str, envelope: Envelope
    ) -> DeliveryFailure:
        return DeliveryFailure.of(error, text, hop=envelope.destination.last, at=self.domain.name)


def _reroute_origin(forwarded: ForwardedMessage) -> MessageOrigin:
    """Return the origin for rerouting a message: its subscribers have their copies already."""
    return msgspec.structs.replace(forwarded.origin, allow_fan_out=False)


def _random_ids() -> Iterator[bytes]:
    """Yield message ids for ever; one system call is for many of them."""
    while True:
        random_bytes = os.urandom(_IDS_PER_READ * ID_BYTES)
        for start in range(0, len(random_bytes), ID_BYTES):
            yield random_bytes[start : start + ID_BYTES]
