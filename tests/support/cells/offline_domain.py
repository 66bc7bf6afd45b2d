"""A domain without sockets for tests: cells at work, and gateways that only keep what they get."""

from __future__ import annotations

import datetime
import os
from typing import Any

from postroad.cells import (
    CellAddress,
    CellHandler,
    CellPath,
    CellsConfig,
    FunctionCell,
    Role,
    Route,
)
from postroad.cells.addresses import DomainInfo
from postroad.cells.delivery.cell_registry import ForwardedMessage
from postroad.cells.delivery.cell_runner import CellRunner
from postroad.cells.delivery.dispatcher import MessageDispatcher
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.failure import DeliveryFailure, decode_failure
from postroad.cells.routing.decision import LOCAL_ORIGIN, MessageOrigin
from postroad.cells.sender import CellMessaging, DomainState
from postroad.core.limits import MIB


class Dock:
    """A gateway that keeps what it is handed, unless it is full."""

    def __init__(self) -> None:
        self.forwarded_messages: list[ForwardedMessage] = []
        self.is_full = False

    def try_send(self, forwarded: ForwardedMessage) -> bool:
        if not self.is_full:
            self.forwarded_messages.append(forwarded)
        return not self.is_full

    def try_send_encoded(self, data: bytes) -> bool:
        return False

    @property
    def envelopes(self) -> list[Envelope]:
        return [forwarded.forward.envelope for forwarded in self.forwarded_messages]

    def failures(self) -> list[DeliveryFailure]:
        """What the error replies say that went this way."""
        return [
            decode_failure(envelope.payload)
            for envelope in self.envelopes
            if envelope.kind is MessageKind.ERROR
        ]


class Workshop(CellMessaging):
    """The satellite S1, by default with nobody around."""

    def __init__(
        self, config: CellsConfig | None = None, *, frame_bytes_max: int = 4 * MIB
    ) -> None:
        super().__init__(DomainInfo("S1"), config or CellsConfig(), frame_bytes_max)
        self.dispatcher: MessageDispatcher = self._start_sending()
        self._state = DomainState.RUNNING

    @property
    def pending(self) -> int:
        return len(self._calls)

    def add(self, name: str, handler: CellHandler, **options: Any) -> CellRunner:
        cell = FunctionCell(name, handler, **options)
        cell.attach(self)  # type: ignore[arg-type]  # It needs no more than a sender has.
        runner = CellRunner(cell, self.dispatcher)
        queues = [Route.to_queue(name, cell.address) for name in cell.queues]
        topics = [Route.to_topic(name, cell.address) for name in cell.topics]
        self.dispatcher.registry.add_cell(runner, [*queues, *topics])
        return runner

    def connect(self, name: str, *, is_default: bool = True) -> Dock:
        dock = self.dispatcher.registry.gateways[f"to-{name}"] = Dock()
        self.add(f"to-{name}", lambda message: None)
        gateway = CellAddress(f"to-{name}", self.name)
        routes = [Route.to_domain(name, gateway)]
        if is_default:
            routes.append(Route.default(CellAddress.of_domain(name)))
        self.dispatcher.registry.change_routes(added=routes)
        return dock

    def disconnect(self, name: str) -> None:
        default = Route.default(CellAddress.of_domain(name))
        self.dispatcher.registry.change_routes(deleted=[default], is_strict=False)
        self.dispatcher.registry.remove_cell(f"to-{name}")

    def arrive(
        self, destination: str, payload: bytes = b"", *, peer: str = "C1", **fields: Any
    ) -> Envelope:
        """A request of the cell `p` comes from a core."""
        envelope = make_request(destination, payload, peer=peer, **fields)
        origin = MessageOrigin.from_peer(peer, Role.CORE)
        self.dispatcher.receive(envelope, origin, self.dispatcher.loop.time())
        return envelope

    def deliver(self, runner: CellRunner, payload: bytes = b"", *, source: str = "S1") -> bool:
        envelope = make_request(f"{runner.name}@S1", payload)
        decision = self.dispatcher.registry.decision_cache.decide(envelope, LOCAL_ORIGIN)
        return runner.deliver(decision.deliveries[0], self.dispatcher.loop.time(), source)

    def answer(
        self, request: Envelope, payload: bytes, *, kind: MessageKind = MessageKind.REPLY
    ) -> None:
        """The answer to a request that went through a gateway comes back."""
        reply = Envelope(
            id=os.urandom(16),
            destination=request.source.reversed(),
            source=CellPath.of("b@S2", "*@C1"),
            kind=kind,
            in_reply_to=request.id,
            payload=payload,
        )
        self.dispatcher.receive(
            reply, MessageOrigin.from_peer("C1", Role.CORE), self.dispatcher.loop.time()
        )


def make_request(
    destination: str, payload: bytes = b"", *, peer: str = "C1", **fields: Any
) -> Envelope:
    """A request as a core sends it on."""
    settings: dict[str, Any] = {"wants_reply": True, "source": CellPath.of("p@S2", f"*@{peer}")}
    return Envelope(
        id=os.urandom(16),
        destination=CellPath.parse(destination),
        payload=payload,
        **settings | fields,
    )


class UnreliableZone(datetime.tzinfo):
    """Makes a datetime whose encoding raises something nobody thinks of."""

    def utcoffset(self, when: datetime.datetime | None) -> datetime.timedelta:
        raise RuntimeError("no idea")

    def dst(self, when: datetime.datetime | None) -> datetime.timedelta:
        return self.utcoffset(when)

    def tzname(self, when: datetime.datetime | None) -> str:
        return "somewhere"
