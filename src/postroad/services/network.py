"""The parts of a broker that talk to other nodes."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from postroad.core.errors import PostroadError
from postroad.core.timing import backoff

from .config import BrokerConfig
from .eventing import Eventing
from .gossip_presence import GossipPresence
from .kinds import Kind
from .nodes import Change
from .packets import Event, EventAck, Packet, Ping, Pong, Request, Response, StreamProgress
from .pings import Pings
from .presence import AnnouncedPresence, Presence, cpu_percent
from .registry import Registry
from .remote_calls import RemoteCalls
from .serving import Serving
from .streaming import Streaming
from .transit import Done, Receiver, Transit, logger
from .transporters.tcp import TcpTransporter
from .verifying import Verifying
from .ways import Way

if TYPE_CHECKING:
    from .broker import Broker

_CONNECT_FIRST_S = 0.2
_CONNECT_MAX_S = 5.0

_ABOUT_NODES = (
    Kind.DISCOVER,
    Kind.INFO,
    Kind.HEARTBEAT,
    Kind.DISCONNECT,
    Kind.GOSSIP_HELLO,
    Kind.GOSSIP_REQUEST,
    Kind.GOSSIP_RESPONSE,
)


class Network:
    """Everything that goes to and comes from other nodes.

    Args:
        broker: whose network it is.
        transit: the way there.
        registry: the nodes.
        eventing: gets the events.
        served: the service and the way of each action that others may call.
        apply: gets the changes of the registry.
        reports: whether a node tells what it read of a stream.
        config: settings.
        chance: all chance.
    """

    def __init__(
        self,
        broker: Broker,
        transit: Transit,
        registry: Registry,
        eventing: Eventing,
        served: Callable[[str], tuple[str, Way] | None],
        apply: Callable[[list[Change]], None],
        reports: Callable[[str], bool],
        config: BrokerConfig,
        chance: random.Random,
    ) -> None:
        self.transit = transit
        self._eventing = eventing
        self._chance = chance
        self.streaming = Streaming(broker.node_id, transit, reports, config)
        self.remote = RemoteCalls(
            broker.node_id, transit, self.streaming, pending_max=config.pending_max
        )
        self._registry = registry
        self._apply = apply
        self._loop = asyncio.get_running_loop()
        self.pings = Pings(broker.node_id, transit.send, self._answered)
        self.verifying = self._make_verifying(broker, config)
        self.presence = self._make_presence(registry, apply, config)
        self.serving = Serving(
            broker,
            transit,
            served,
            self.streaming,
            serving_max=config.serving_max,
            tells_stacks=config.tells_stacks,
        )

    def _make_presence(
        self, registry: Registry, apply: Callable[[list[Change]], None], config: BrokerConfig
    ) -> Presence:
        send, transporter = self.transit.send, self.transit.transporter
        if not isinstance(transporter, TcpTransporter):
            return AnnouncedPresence(registry, send, apply, config, self._chance)
        return GossipPresence(
            registry,
            send,
            apply,
            transporter=transporter,
            node_id=registry.local.id,
            period_s=transporter.gossip_period_s,
            cpu=cpu_percent,
            chance=self._chance,
        )

    def _make_verifying(self, broker: Broker, config: BrokerConfig) -> Verifying:
        transporter = self.transit.transporter
        is_linked = (
            transporter.is_linked if isinstance(transporter, TcpTransporter) else lambda _: False
        )
        return Verifying(
            self.pings,
            broker.new_id,
            is_linked,
            self._answered,
            self._expired,
            config.verify_timeout_s,
        )

    def receivers(self) -> dict[Kind, Receiver]:
        """Who gets which packets."""
        return {
            **dict.fromkeys(_ABOUT_NODES, self._receive_about_nodes),
            Kind.PING: self._receive_ping,
            Kind.PONG: self._receive_pong,
            Kind.REQUEST: self._receive_request,
            Kind.RESPONSE: self._receive_response,
            Kind.EVENT: self._receive_event,
            Kind.EVENT_ACK: self._receive_event_ack,
            Kind.STREAM_PROGRESS: self._receive_stream_progress,
        }

    async def start(self) -> None:
        """Connect, however long it takes, and find the other nodes."""
        transporter, attempt = self.transit.transporter, 0
        while True:
            try:
                await transporter.connect()
                break
            except OSError as error:
                attempt += 1
                logger.warning("%s: %s; trying again", transporter.name, error)
            await asyncio.sleep(self._pause_s(attempt))
        await self.presence.start()

    async def stop(self, *, says_goodbye: bool) -> None:
        """Leave the cluster; without a goodbye, because another node has the same name."""
        await self.verifying.close()
        self.pings.leave()
        await self.presence.leave(says_goodbye=says_goodbye)
        await self.transit.transporter.disconnect()
        self.remote.close()
        self.streaming.close()

    def lose_node(self, node_id: str, *, before: float = math.inf) -> None:
        """A node is gone, or began a new life at that time: it will not answer what came before."""
        self.remote.lose_node(node_id, before=before)
        self.streaming.lose_node(node_id)

    def verify(self, node_id: str) -> None:
        """Something was said in the name of a node: ask it."""
        self.presence.ask(node_id)
        self.verifying.verify(node_id)

    def challenge(self, node_id: str) -> None:
        """Find out whether a node that is not known is there."""
        try:
            self.pings.challenge(node_id)
        except PostroadError as error:
            logger.debug("%s was not asked whether it is there: %s", node_id, error)

    def _answered(self, node_id: str, is_same_life: bool = False) -> None:
        now = self._loop.time()
        self._apply(self._registry.prove_node(node_id, now, is_same_life=is_same_life))

    def _expired(self) -> None:
        self._apply(self._registry.tick(self._loop.time()))

    def _pause_s(self, attempt: int) -> float:
        chance = self._chance.random()
        return backoff(
            attempt, initial_delay_s=_CONNECT_FIRST_S, max_delay_s=_CONNECT_MAX_S, jitter=chance
        )

    def _receive_about_nodes(self, packet: Packet, done: Done | None) -> None:
        self.presence.received(packet)
        _call(done)

    def _receive_ping(self, packet: Packet, done: Done | None) -> None:
        assert isinstance(packet, Ping)
        self.pings.receive_ping(packet)
        _call(done)

    def _receive_pong(self, packet: Packet, done: Done | None) -> None:
        assert isinstance(packet, Pong)
        self.pings.receive_pong(packet)
        _call(done)

    def _receive_request(self, packet: Packet, done: Done | None) -> None:
        assert isinstance(packet, Request)
        self.serving.receive(packet, done)

    def _receive_response(self, packet: Packet, done: Done | None) -> None:
        assert isinstance(packet, Response)
        self.remote.receive(packet)
        _call(done)

    def _receive_event(self, packet: Packet, done: Done | None) -> None:
        assert isinstance(packet, Event)
        self._eventing.receive(packet, done)

    def _receive_event_ack(self, packet: Packet, done: Done | None) -> None:
        assert isinstance(packet, EventAck)
        self._eventing.acks.receive(packet)
        _call(done)

    def _receive_stream_progress(self, packet: Packet, done: Done | None) -> None:
        assert isinstance(packet, StreamProgress)
        self.streaming.receive(packet)
        _call(done)


def _call(done: Done | None) -> None:
    if done is not None:
        done()
