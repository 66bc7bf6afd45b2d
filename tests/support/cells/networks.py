"""Domains in one process: the pure parts of cells, one node after the other, without any I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from postroad.cells import CellAddress, CellPath, Role, Route, RouteLearnerConfig, RouteTable
from postroad.cells.addresses import DomainInfo
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.envelope_codec import decode_envelope, encode_envelope
from postroad.cells.delivery.failure import DeliveryFailure, make_error_reply
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    RoutingUpdate,
    decode_routing_update,
    encode_routing_update,
)
from postroad.cells.routing.advertiser import RouteAdvertiser, build_advertisement
from postroad.cells.routing.decision import (
    LOCAL_ORIGIN,
    Forward,
    LocalDelivery,
    MessageOrigin,
    RoutingDecision,
)
from postroad.cells.routing.route_learner import RouteLearner
from postroad.cells.routing.route_table import check_route_target
from postroad.cells.routing.router import route_message

NOW = 0.0

_ids = count(1)


def make_id() -> bytes:
    return next(_ids).to_bytes(16)


def make_envelope(path: str, sender: str = "", **fields: object) -> Envelope:
    """A fresh message, sent by a cell if one is named."""
    source = CellPath.parse(sender)
    return Envelope(id=make_id(), destination=CellPath.parse(path), source=source, **fields)  # type: ignore[arg-type]


class Node:
    """One domain with its cells, its table, and both halves of its routing manager."""

    def __init__(self, name: str, role: Role, zone: str | None = None) -> None:
        self.domain = DomainInfo(name, role, zone)
        self.cells: set[str] = set()
        self.table = RouteTable()
        self.advertiser = RouteAdvertiser(self.domain, incarnation=1)
        self.learner = RouteLearner(self.domain, config=RouteLearnerConfig(default_delay_s=0))

    def address(self, cell: str) -> CellAddress:
        return CellAddress(cell, self.domain.name)

    def add(self, route: Route) -> None:
        check_route_target(route, domain=self.domain.name, cells=self.cells)
        self.table = self.table.added(route)

    def route(
        self,
        envelope: Envelope,
        origin: MessageOrigin = LOCAL_ORIGIN,
        avoid: frozenset[str] = frozenset(),
    ) -> RoutingDecision:
        return route_message(
            envelope, origin, table=self.table, cells=self.cells, domain=self.domain, avoid=avoid
        )

    def apply_changes(self) -> None:
        changes = self.learner.drain_changes()
        self.table = self.table.changed(
            added=changes.added, deleted=changes.deleted, is_strict=False
        )


class Hit(NamedTuple):
    domain: str
    delivery: LocalDelivery


class Journey:
    def __init__(self) -> None:
        self.hits: list[Hit] = []
        self.crossings: list[tuple[str, str]] = []
        self.failures: list[DeliveryFailure] = []
        # Cells that were told of a failure.
        self.told: list[str] = []

    @property
    def receivers(self) -> list[str]:
        """Who got it, in order of their names; once for each copy."""
        return sorted(f"{hit.delivery.cell}@{hit.domain}" for hit in self.hits)

    @property
    def failed_at(self) -> list[str]:
        return [failure.domain for failure in self.failures]


class _Bag(NamedTuple):
    node: Node
    envelope: Envelope
    origin: MessageOrigin


class Network:
    """Domains and the tunnels between them; a gateway to X is a cell `to-X`."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def add(self, name: str, role: Role, zone: str | None = None) -> Node:
        node = self.nodes[name] = Node(name, role, zone)
        return node

    def link(self, one: str, other: str) -> None:
        for near, far in ((one, other), (other, one)):
            self._open(self.nodes[near], self.nodes[far])

    def _open(self, near: Node, far: Node) -> None:
        gateway = f"to-{far.domain.name}"
        near.cells.add(gateway)
        near.add(Route.to_domain(far.domain.name, near.address(gateway)))
        near.learner.peer_up(far.domain, NOW)
        near.advertiser.peer_up(far.domain.name, far.domain.role, NOW)

    def link_all(self) -> None:
        """Each core with every other domain."""
        cores = [name for name, node in self.nodes.items() if node.domain.role is Role.CORE]
        for core in cores:
            for name, node in self.nodes.items():
                if node.domain.role is Role.SATELLITE or name < core:
                    self.link(core, name)

    def unlink(self, one: str, other: str) -> None:
        for near, far in ((one, other), (other, one)):
            node = self.nodes[near]
            node.cells.discard(f"to-{far}")
            node.table = node.table.without_target(node.address(f"to-{far}"))
            node.learner.peer_down(far, NOW)
            node.advertiser.peer_down(far)
        self.settle()

    def start(self, cell: str, *, queues: Iterable[str] = (), topics: Iterable[str] = ()) -> None:
        """Start `cell@domain`, which consumes and subscribes."""
        address = CellAddress.parse(cell)
        node = self.nodes[address.domain]
        node.cells.add(address.cell)
        for queue in queues:
            node.add(Route.to_queue(queue, address, node.domain.zone))
        for topic in topics:
            node.add(Route.to_topic(topic, address, node.domain.zone))

    def stop(self, cell: str) -> None:
        address = CellAddress.parse(cell)
        node = self.nodes[address.domain]
        node.cells.discard(address.cell)
        node.table = node.table.without_target(address)

    def settle(self) -> None:
        """Have all domains tell the others what they offer until there is nothing to tell."""
        for node in self.nodes.values():
            node.advertiser.advertise(build_advertisement(node.table, node.domain), NOW)
        updates = deque(self._outgoing())
        while updates:
            sender, receiver, update = updates.popleft()
            self._tell(sender, receiver, decode_routing_update(encode_routing_update(update)))
            updates += self._outgoing()
        for node in self.nodes.values():
            node.apply_changes()

    def _outgoing(self) -> list[tuple[str, str, RoutingUpdate]]:
        return [
            (name, peer, update)
            for name, node in self.nodes.items()
            for peer, update in node.advertiser.drain_outgoing()
        ]

    def _tell(self, sender: str, receiver: str, update: RoutingUpdate) -> None:
        assert not isinstance(update, AdvertisementAck)
        ack = self.nodes[receiver].learner.receive(update, sender, NOW)
        if ack is not None:
            self.nodes[sender].advertiser.receive(ack, receiver, NOW)

    def send(self, sender: str, path: str, *, origin: MessageOrigin = LOCAL_ORIGIN) -> Journey:
        """Send a message from `cell@domain`, and follow it and all errors to the end."""
        envelope = make_envelope(path, sender)
        return self.follow(CellAddress.parse(sender).domain, envelope, origin)

    def follow(
        self, domain: str, envelope: Envelope, origin: MessageOrigin = LOCAL_ORIGIN
    ) -> Journey:
        journey = Journey()
        bags = deque([_Bag(self.nodes[domain], envelope, origin)])
        for _ in range(10_000):
            if not bags:
                return journey
            bags += self._step(bags.popleft(), journey)
        raise AssertionError("the message never comes to rest")

    def _step(self, bag: _Bag, journey: Journey) -> list[_Bag]:
        decision = bag.node.route(bag.envelope, bag.origin)
        further: list[_Bag] = []
        for delivery in decision.deliveries:
            further += self._arrive(bag.node, delivery, journey)
        further += [self._cross(bag.node, forward, journey) for forward in decision.forwards]
        if decision.failure is not None:
            journey.failures.append(decision.failure)
        if decision.failure is not None and decision.should_reply:
            answer = make_error_reply(bag.envelope, decision.failure, id=make_id())
            further.append(_Bag(bag.node, answer, LOCAL_ORIGIN))
        return further

    def _arrive(self, node: Node, delivery: LocalDelivery, journey: Journey) -> list[_Bag]:
        """Cells that are not the end of the path send the message on, as cells do."""
        here = node.address(delivery.cell)
        if delivery.envelope.kind is MessageKind.ERROR:
            journey.told.append(str(here))
            return []
        journey.hits.append(Hit(node.domain.name, delivery))
        if delivery.envelope.destination.is_complete:
            return []
        return [_Bag(node, delivery.envelope.with_source_hop(here), LOCAL_ORIGIN)]

    def _cross(self, node: Node, forward: Forward, journey: Journey) -> _Bag:
        far = self.nodes[forward.gateway.removeprefix("to-")]
        if forward.envelope.kind is not MessageKind.ERROR:
            journey.crossings.append((node.domain.name, far.domain.name))
        envelope = decode_envelope(encode_envelope(forward.envelope))
        return _Bag(far, envelope, MessageOrigin.from_peer(node.domain.name, node.domain.role))


def make_network(cores: Sequence[str], satellites: Sequence[str]) -> Network:
    """A full mesh of cores, and satellites at all of them."""
    network = Network()
    for name in cores:
        network.add(name, Role.CORE)
    for name in satellites:
        network.add(name, Role.SATELLITE)
    network.link_all()
    return network
