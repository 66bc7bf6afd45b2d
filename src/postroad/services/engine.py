"""The parts of a broker, put together for the time that it runs."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.core import ThrottledLogger
from postroad.core.errors import ConfigError, UsageError

from .balancing import Latencies, StrategyMaker
from .breakers import Breaker, BreakerState
from .breaking import Breakers
from .calling import Calling
from .config import BrokerConfig
from .context import Context
from .endpoints import Endpoint
from .eventing import Eventing
from .events import EventEndpoint
from .identity import CLIENT_TYPE
from .latency_pings import LatencyPings
from .listening import Listening
from .local_services import LocalEvent, LocalService
from .middleware import Middleware, wrapped
from .network import Network
from .nodes import (
    Change,
    DoubtOver,
    EntriesRefused,
    NodeConflict,
    NodeConnected,
    NodeDisconnected,
    NodeForgotten,
    NodeRefused,
    NodeUpdated,
    ProveNode,
    SendDiscover,
    ServicesChanged,
    VerifyNode,
)
from .registry import Registry
from .registry_config import RegistryConfig
from .schema import ActionInfo, NodeInfo, ServiceInfo
from .serializers import make_serializer
from .topics import Topics
from .transit import Transit, logger
from .transporters import Transporter
from .ways import Handler, Way, usual_way, way_of

if TYPE_CHECKING:
    from .broker import Broker

_LOG_INTERVAL_S = 10.0

LocalNews = Callable[[str, dict[str, object]], None]
"""Tells the handlers of this node what happens to it: the name of the event, and its data."""


class Engine:
    """A running broker without its services: the registry, and everything that moves packets.

    Args:
        broker: whose parts these are.
        info: what the node says of itself.
        transporter: the way to other nodes; None if there are none.
        config: settings.
        middlewares: around everything.
        tell: hears what happens to this node.
    """

    def __init__(
        self,
        broker: Broker,
        info: NodeInfo,
        transporter: Transporter | None,
        config: BrokerConfig,
        middlewares: Sequence[Middleware],
        tell: LocalNews,
    ) -> None:
        self._broker = broker
        self._node_id = broker.node_id
        self._config = config
        self._middlewares = middlewares
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._chance = random.Random()
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        self._locals: dict[str, LocalService] = {}
        self._served: dict[str, tuple[str, Way]] = {}
        self._waiters: set[asyncio.Event] = set()
        self._has_left = False
        self.conflict: NodeConflict | None = None
        """Another node with the same name that was there when this one started."""
        self.is_settled = False
        """Whether it has started, and others know this node by its name."""
        self._is_held = False
        self._is_withdrawn = False
        self._latencies = Latencies()
        self.registry = self._make_registry(info, transporter)
        self.breakers = Breakers(self.registry.actions.get, self._tell_breaker)
        transit = None if transporter is None else self._make_transit(transporter)
        is_balanced = transporter is not None and _is_balanced(transporter, config)
        self.eventing = Eventing(
            broker,
            transit,
            self.registry.events,
            self._handler_of,
            can_ack=self._can_ack,
            is_balanced=is_balanced,
            events_max=config.events_max,
            pending_max=config.pending_max,
        )
        self.network = None if transit is None else self._make_network(broker, transit)
        self._latency_pings = self._make_latency_pings(broker)
        self._listening = (
            Listening(transit, self._listened, self._announce)
            if transit is not None and is_balanced
            else None
        )
        balanced = self.network.remote.call_balanced if self.network and is_balanced else None
        self.calling = Calling(
            broker, self.registry.actions, self._way_to, balanced, self.breakers, config
        )

    # The making.

    def _make_registry(self, info: NodeInfo, transporter: Transporter | None) -> Registry:
        config = self._config
        beats = transporter is None or transporter.beats
        return Registry(
            self._node_id,
            info,
            strategies=StrategyMaker(self._chance, self._latencies, default=config.strategy),
            config=RegistryConfig(
                heartbeat_timeout_s=config.heartbeat_timeout_s if beats else 0.0,
                prefers_local=config.prefers_local,
                verify_timeout_s=config.verify_timeout_s,
            ),
            now=self._loop.time(),
        )

    def _make_transit(self, transporter: Transporter) -> Transit:
        config = self._config
        serializer = make_serializer(config.serializer, checks_version=config.checks_version)
        topics = Topics(self._node_id, config.namespace, separator=transporter.separator)
        return Transit(transporter, serializer, topics, self._middlewares, clock=self._loop.time)

    def _make_network(self, broker: Broker, transit: Transit) -> Network:
        network = Network(
            broker,
            transit,
            self.registry,
            self.eventing,
            self._served.get,
            self._apply,
            self._can_ack,
            self._config,
            self._chance,
        )
        transit.attach(
            network.receivers(),
            on_up=self._connected,
            on_down=self._disconnected,
            on_lost=self._lost,
        )
        return network

    def _make_latency_pings(self, broker: Broker) -> LatencyPings | None:
        if self.network is None:
            return None
        registry, pings = self.registry, self.network.pings
        return LatencyPings(
            lambda: chain(registry.actions, registry.events),
            self._latencies,
            lambda node_id, timeout_s: pings.ping(node_id, broker.new_id(), timeout_s),
            interval_s=self._config.latency_interval_s,
            chance=self._chance,
        )

    # The life of a node.

    async def start(self) -> None:
        """Connect, however long it takes, and find the other nodes."""
        if self.network is not None:
            await self.network.start()

    def hold(self) -> None:
        """Offer nothing to others until `open`."""
        self._is_held = self.registry.is_held = True
        self._close_door(is_closed=True)

    async def open(self) -> None:
        """Offer to others what this node has, and what it will have; twice does no harm."""
        if not self._is_held or self._is_withdrawn:
            return
        self._is_held = False
        self.registry.release()
        self._close_door(is_closed=False)
        self._tell_offers()
        if self._listening is not None:
            await self._listening.settled()
        if self.is_settled:
            self.settle()

    def _close_door(self, *, is_closed: bool) -> None:
        self.eventing.is_closed = is_closed
        if self.network is not None:
            self.network.serving.is_closed = is_closed

    def settle(self) -> None:
        """All services have started: others hear of them now."""
        self.is_settled = True
        if self.network is not None:
            self.network.presence.settle()

    async def withdraw(self) -> None:
        """Offer nothing any more, and refuse what comes nevertheless after a while."""
        if self._is_withdrawn:
            return
        self._is_withdrawn = True
        if self.network is not None:
            if self._listening is not None:
                await self._listening.close()
            if self.conflict is None:
                await self.network.presence.withdraw()
        self._close_door(is_closed=True)

    async def finish(self, timeout_s: float) -> int:
        """Wait for what runs for others; says how much had to be ended."""
        ended = await self.eventing.finish(timeout_s)
        if self.network is not None:
            ended += await self.network.serving.finish(timeout_s)
            ended += await self.network.streaming.finish(timeout_s)
        return ended

    async def stop(self) -> None:
        """Say goodbye and disconnect."""
        self._has_left = True
        self.breakers.forget()
        self._wake_waiters()
        self.eventing.acks.close()
        if self._latency_pings is not None:
            await self._latency_pings.stop()
        if self.network is not None:
            await self.network.stop(says_goodbye=self.conflict is None)

    # What this node offers.

    async def offer(self, local: LocalService) -> None:
        """A service of this node is ready; when this returns, it can be called."""
        name = local.info.full_name
        self._locals[name] = local
        for action in local.info.actions:
            if action.is_remote:
                self._served[action.name] = name, local.actions[action.name]
        self._apply(self.registry.add_service(local.info))
        if self._listening is not None:
            await self._listening.settled()

    def withhold(self, full_name: str) -> None:
        """A service of this node is offered no more."""
        local = self._locals.pop(full_name, None)
        if local is not None:
            for action in local.info.actions:
                self._served.pop(action.name, None)
            self._apply(self.registry.remove_service(full_name))

    def _way_to(self, endpoint: Endpoint[ActionInfo]) -> Way:
        info = endpoint.info
        if endpoint.is_local:
            way = self._locals[endpoint.service].actions[info.name]
        else:
            assert self.network is not None
            run = wrapped(self._middlewares, "remote_action", self.network.remote.call, info)
            way = self._remote_way(info, run)
        endpoint.way = way
        return way

    def _remote_way(self, info: ActionInfo, run: Handler) -> Way:
        try:
            return way_of(info, run, self._config)
        except ConfigError as error:
            self._warn(info.name, "action %s: %s", info.name, error)
            return usual_way(info, run, self._config)

    def _handler_of(self, endpoint: EventEndpoint) -> LocalEvent | None:
        local = self._locals.get(endpoint.service)
        if local is None:
            return None
        info = endpoint.info
        return local.events.get((local.info.group_of(info), info.name))

    # What happens.

    def _connected(self, is_again: bool) -> None:
        if is_again and self.network is not None:
            self.network.presence.reconnected()
            if self._listening is not None:
                self._listening.changed()
        self._tell("$transporter.connected", {"wasReconnect": is_again})

    def _disconnected(self, reason: str) -> None:
        self._tell("$transporter.disconnected", {"graceFul": self._has_left, "reason": reason})

    def _lost(self, node_id: str, is_unexpected: bool) -> None:
        now = self._loop.time()
        self._apply(self.registry.lose_node(node_id, now, is_unexpected=is_unexpected))

    def _apply(self, changes: list[Change]) -> None:
        for change in changes:
            self._apply_one(change)

    def _apply_one(self, change: Change) -> None:
        match change:
            case SendDiscover() | VerifyNode() | ProveNode() | DoubtOver():
                self._verify(change)
            case NodeConnected(node_id, is_reconnected):
                data = {"node": node_id, "reconnected": is_reconnected}
                self._tell("$node.connected", data)
            case NodeUpdated(node_id, is_restarted, alive_since):
                if is_restarted:
                    self._forget_calls(node_id, before=alive_since)
                self._tell("$node.updated", {"node": node_id})
            case NodeDisconnected(node_id, is_unexpected):
                self._forget_calls(node_id)
                data = {"node": node_id, "unexpected": is_unexpected}
                self._tell("$node.disconnected", data)
            case NodeForgotten(node_id):
                self._warn(f"node {node_id}", "%s: NodeForgotten", node_id)
            case NodeRefused(node_id):
                # Whoever makes up many names must not fill the log with them.
                self._warn("refused", "%s is not taken in: too many nodes are known", node_id)
            case EntriesRefused(node_id, problems):
                self._warn(node_id, "left out of what %s offers: %s", node_id, "; ".join(problems))
            case ServicesChanged(is_local):
                self._services_changed(is_local)
            case NodeConflict():
                if not self.is_settled:
                    self.conflict = change
                self._warn("conflict", "%s", change)

    def _can_ack(self, node_id: str) -> bool:
        """Whether a node tells what it did, which is not in the protocol of the original."""
        node = self.registry.node(node_id)
        return node is not None and node.info.client.type == CLIENT_TYPE

    def _forget_calls(self, node_id: str, *, before: float = math.inf) -> None:
        self.breakers.forget_node(node_id)
        self.eventing.acks.lose_node(node_id)
        if self.network is not None:
            self.network.lose_node(node_id, before=before)

    def _services_changed(self, is_local: bool) -> None:
        if is_local and not self._is_held:
            self._tell_offers()
        self._wake_waiters()
        if self._latency_pings is not None and not self._has_left:
            self._latency_pings.look()
        self._tell("$services.changed", {"localService": is_local})

    def _tell_offers(self) -> None:
        """Have others know what this node offers now."""
        if self._listening is not None:
            self._listening.changed()
        else:
            self._announce()

    def _announce(self) -> None:
        if self.network is not None:
            self.network.presence.services_changed()

    def _listened(self) -> Iterator[ServiceInfo]:
        """The services with what the transporter may give to this node."""
        for local in () if self._is_held else self._locals.values():
            if not local.info.is_internal:
                remote = tuple(it for it in local.info.actions if it.is_remote)
                yield msgspec.structs.replace(local.info, actions=remote)

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    def _verify(self, change: SendDiscover | VerifyNode | ProveNode | DoubtOver) -> None:
        """Have nodes speak for themselves."""
        network, node_id = self.network, change.node_id
        assert network is not None
        match change:
            case SendDiscover():
                network.presence.ask(node_id)
            case VerifyNode():
                network.verify(node_id)
            case ProveNode():
                network.challenge(node_id)
            case DoubtOver():
                network.transit.statistics.refuted += 1
                text = "%s is there as before; what was said in its name was not so, or was late"
                self._warn(f"doubt {node_id}", text, node_id)

    def _tell_breaker(self, state: str, node_id: str, action: str, breaker: Breaker) -> None:
        """Nodes of the original tell everybody, so that one place can watch all of them."""
        data: dict[str, Any] = {"nodeID": node_id, "action": action}
        if breaker.state is BreakerState.OPEN:
            counted = {"failures": breaker.failures, "count": breaker.requests}
            data |= {**counted, "rate": breaker.rate}
        self.eventing.announce(
            Context(self._broker, params=data, event=f"$circuit-breaker.{state}")
        )

    def _warn(self, key: str, text: str, *args: object) -> None:
        self._log.log(key, self._loop.time(), text, *args)

    async def changed(self, is_wanted: Callable[[], bool]) -> None:
        """Wait until services have changed so that something holds."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            while not is_wanted():
                if self._has_left:
                    raise UsageError("the broker was stopped")
                waiter.clear()
                await waiter.wait()
        finally:
            self._waiters.discard(waiter)


def _is_balanced(transporter: Transporter, config: BrokerConfig) -> bool:
    """Whether the transporter chooses who gets calls and events."""
    if config.uses_balancer or transporter.balances:
        return not config.uses_balancer
    logger.warning("%s does not balance by itself; brokers do", transporter.name)
    return False
