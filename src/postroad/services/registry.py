"""Which nodes there are, what they offer, and which of them are alive.

INFO, HEARTBEAT and DISCONNECT come in, changes come out, some of which are things to do. What one
node offers is taken anew when its seq grows, when it was offline, or when it is in a new life.

Packets may be lost, doubled or late. Heartbeats that tell seq and instance show it when something
is out of date; heartbeats of the original system tell neither, so such nodes are asked for their
INFO now and then, and after every restart: a late INFO of a former life looks like one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from postroad.core.errors import ConfigError

from .balancing import StrategyMaker
from .describing import published
from .doubts import Doubt, Verdict, is_other
from .info_form import PROBLEMS_MAX, ReadInfo
from .nodes import (
    NEVER,
    Change,
    DoubtOver,
    EntriesRefused,
    NodeConflict,
    NodeConnected,
    NodeDisconnected,
    NodeForgotten,
    NodeRecord,
    NodeRefused,
    NodeUpdated,
    ProveNode,
    SendDiscover,
    ServicesChanged,
    VerifyNode,
)
from .offers import Offers
from .registry_config import RegistryConfig
from .schema import NodeInfo, ServiceInfo


class Registry:
    """The cluster as this node sees it.

    Args:
        node_id: of this node.
        info: what this node says of itself; its services are added later.
        strategies: makes the strategy of each action and event.
        config: times and limits.
        now: the present time, in seconds of any monotonic clock.
    """

    def __init__(
        self,
        node_id: str,
        info: NodeInfo,
        *,
        strategies: StrategyMaker,
        config: RegistryConfig | None = None,
        now: float,
    ) -> None:
        self.config = config or RegistryConfig()
        self.local = NodeRecord(node_id, info, now, is_local=True)
        self._offers = Offers(strategies, prefers_local=self.config.prefers_local)
        self.actions = self._offers.actions
        self.events = self._offers.events
        self._nodes: dict[str, NodeRecord] = {node_id: self.local}
        # Unknown nodes that have answered, until they say what they offer; the oldest first.
        self._proven: dict[str, None] = {}
        # Known nodes that never answered, the oldest first.
        self._unproven: dict[str, None] = {}
        # Whole descriptions of this node's services, and whether others know them all.
        self._local_services: dict[str, ServiceInfo] = {}
        self._is_news = False
        self._is_stopping = False
        self.is_held = False
        """Whether others are not told yet what this node offers."""

    # What is known.

    def nodes(self, *, only_available: bool = False) -> list[NodeRecord]:
        """All nodes, this one first."""
        return [it for it in self._nodes.values() if it.is_available or not only_available]

    def node(self, node_id: str) -> NodeRecord | None:
        """One node."""
        return self._nodes.get(node_id)

    def services(self) -> Iterator[tuple[NodeRecord, ServiceInfo]]:
        """Every service of every node that is available; those here with their private actions."""
        yield from ((self.local, service) for service in self._local_services.values())
        for node in self._nodes.values():
            if node.is_available and not node.is_local:
                yield from ((node, service) for service in node.info.services)

    def has_service(self, full_name: str, node_id: str | None = None) -> bool:
        """Whether a service is available, anywhere or at one node."""
        return any(
            service.full_name == full_name and node_id in (None, node.id)
            for node, service in self.services()
        )

    def deadline(self) -> float:
        """When `tick` must be called; infinity while nothing can become due."""
        return min((self._due(node) for node in self._nodes.values()), default=math.inf)

    # This node.

    def add_service(self, service: ServiceInfo) -> list[Change]:
        """A service of this node is ready."""
        if service.full_name in self._local_services:
            raise ConfigError(f"this node has a service {service.full_name!r} already")
        self._local_services[service.full_name] = service
        return self._local_changed(self._offers.replace(self.local, (), (service,)))

    def remove_service(self, full_name: str) -> list[Change]:
        """A service of this node is gone."""
        service = self._local_services.pop(full_name, None)
        if service is None:
            return []
        return self._local_changed(self._offers.replace(self.local, (service,), ()))

    def local_info(self, *, is_stopping: bool = False) -> NodeInfo:
        """What to tell others; its seq has grown if something changed since the last time.

        A node that stops says first that it offers nothing, and never anything else after that.
        """
        self._is_stopping = self._is_stopping or is_stopping
        if self._is_stopping or self.is_held:
            shown: tuple[ServiceInfo, ...] = ()
            self._is_news = bool(self.local.info.services)
        else:
            shown = tuple(map(published, self._local_services.values()))
        if self._is_news:
            self._say(services=shown, seq=self.local.seq + 1)
        self._is_news = False
        return self.local.info

    def release(self) -> None:
        """Others may be told from now on what this node offers."""
        self._is_news = self._is_news or bool(self._local_services)
        self.is_held = False

    def set_port(self, port: int, host: str = "") -> None:
        """The port this node listens on is known; `host` if it does so at one address alone."""
        only = {"hostname": host, "ip_list": (host,)} if host else {}
        self._say(port=port, seq=self.local.seq + 1, **only)

    def outrun(self, seq: int) -> None:
        """Others believe that this node went offline with that seq: be newer."""
        if seq >= self.local.seq:
            self._say(seq=seq + 1)

    def set_cpu(self, cpu: float) -> None:
        """How busy this node is, in per cent; the number of the measurement grows if it differs."""
        if cpu != self.local.cpu:
            self.local.cpu, self.local.cpu_seq = cpu, self.local.cpu_seq + 1

    def _say(self, **changes: object) -> None:
        self.local.info = msgspec.structs.replace(self.local.info, **changes)
        self.local.seq = self.local.info.seq

    def _local_changed(self, problems: list[str]) -> list[Change]:
        self._is_news = True
        return [*self._refusals(self.local, problems), ServicesChanged(is_local=True)]

    # What is heard of others.

    def receive_info(self, sender: str, read: ReadInfo, now: float) -> list[Change]:
        """A node told what it offers."""
        info = read.info
        if sender == self.local.id:
            return self._hear_own_name(info.instance_id, info)
        node = self._nodes.get(sender)
        if node is None:
            return self._meet(sender, read, now)
        if not node.is_available:
            return self._reconnect(node, read, now)
        if node.doubt is not None:
            return self._weigh(node, node.doubt, read, now)
        return self._update(node, read, now)

    def receive_heartbeat(
        self,
        sender: str,
        now: float,
        *,
        cpu: float | None = None,
        seq: int | None = None,
        instance_id: str | None = None,
    ) -> list[Change]:
        """A node is alive; seq and instance are None from those that do not tell them."""
        if sender == self.local.id:
            return self._hear_own_name(instance_id) if instance_id else []
        node = self._nodes.get(sender)
        if node is None:
            return [SendDiscover(sender)] if self._has_room() else []
        if not node.is_available or not _is_current(node, seq, instance_id):
            return [SendDiscover(sender)]
        node.last_seen = now
        if cpu is not None:
            node.cpu, node.cpu_seq = cpu, node.cpu_seq + 1
        if seq is not None and instance_id:
            node.verified_at = now
        is_doubtful = now - node.verified_at >= self.config.verify_interval_s
        return [SendDiscover(sender)] if is_doubtful else []

    def receive_discover(self, sender: str, now: float) -> None:
        """A node asks who is there: it begins a life, or was cut off for a while."""
        node = self._nodes.get(sender)
        if node is not None:
            node.asked_at = now

    def receive_disconnect(
        self, sender: str, now: float, *, instance_id: str | None = None
    ) -> list[Change]:
        """A node leaves; a goodbye that is known to be of a former life is ignored."""
        node = self._nodes.get(sender)
        if node is not None and instance_id:
            claim = None if node.doubt is None else node.doubt.claim
            lives = [node.instance_id, *(() if claim is None else (claim.info.instance_id,))]
            if not any(life.startswith(instance_id) for life in lives):
                return []
        return self.doubt_node(sender, now, is_goodbye=True)

    def lose_node(self, node_id: str, now: float, *, is_unexpected: bool = True) -> list[Change]:
        """A node is gone: it said so, or its connection ended."""
        node = self._nodes.get(node_id)
        if node is None or node.is_local or not node.is_available:
            return []
        node.doubt = None
        self._offers.replace(node, node.info.services, ())
        node.is_available = False
        node.offline_since = now
        node.seq += 1
        return [NodeDisconnected(node_id, is_unexpected), ServicesChanged(is_local=False)]

    def receive_offline(self, node_id: str, seq: int, now: float) -> list[Change]:
        """Somebody says that a node went offline with that seq; what is newer here counts more."""
        node = self._nodes.get(node_id)
        if node is None or node.is_local or seq < node.seq:
            return []
        if not node.is_available:
            node.seq = seq
            return []
        return self.doubt_node(node_id, now, is_goodbye=True, offline_seq=seq)

    # What somebody said in the name of a node.

    def doubt_node(
        self, node_id: str, now: float, *, is_goodbye: bool = False, offline_seq: int = 0
    ) -> list[Change]:
        """Somebody says that a node is gone, or in a life that does not know what it said before.

        It is asked, unless nobody is; and lost if it does not answer, or is in another life.
        """
        node = self._nodes.get(node_id)
        if node is None or node.is_local or not node.is_available:
            return []
        changes = self._begin_doubt(node, now)
        assert node.doubt is not None
        if node.doubt.is_alive:
            # Its answer was from before.
            node.doubt.is_alive, node.doubt.deadline = False, now + self.config.verify_timeout_s
            changes = [VerifyNode(node.id)]
        node.doubt.is_goodbye = node.doubt.is_goodbye or is_goodbye
        node.doubt.is_other_life = node.doubt.is_other_life or not is_goodbye
        node.doubt.offline_seq = max(node.doubt.offline_seq, offline_seq)
        return changes or self._decide(node, now)

    def prove_node(self, node_id: str, now: float, *, is_same_life: bool = False) -> list[Change]:
        """A node answered what only it was asked."""
        node = self._nodes.get(node_id)
        if node is None:
            while len(self._proven) >= self.config.unproven_max:
                del self._proven[next(iter(self._proven))]
            self._proven[node_id] = None
            return [SendDiscover(node_id)]
        node.is_proven, node.last_seen = True, max(node.last_seen, now)
        self._unproven.pop(node_id, None)
        if node.doubt is None:
            return []
        node.doubt.is_alive, node.doubt.is_same_life = True, is_same_life
        return self._decide(node, now)

    def _begin_doubt(self, node: NodeRecord, now: float) -> list[Change]:
        timeout_s = self.config.verify_timeout_s
        if node.doubt is not None:
            return []
        node.doubt = Doubt(since=now, deadline=now + timeout_s)
        if not timeout_s:
            return []
        self._offers.doubt(node)
        return [VerifyNode(node.id)]

    def _weigh(self, node: NodeRecord, doubt: Doubt, read: ReadInfo, now: float) -> list[Change]:
        """An INFO came while a node is asked."""
        if doubt.is_refuted_by(read.info, node.info, node.seq):
            return [*self._end_doubt(node), *self._update(node, read, now)]
        if doubt.claim is None and not is_other(node.info, read.info, node.seq):
            return self._believe(node, read, now)
        if doubt.hear(read, node.info, node.seq):
            return [SendDiscover(node.id), *self._decide(node, now)]
        return self._decide(node, now)

    def _decide(self, node: NodeRecord, now: float) -> list[Change]:
        doubt = node.doubt
        assert doubt is not None
        match doubt.verdict(node.info, now):
            case None:
                return []
            case Verdict.KEPT:
                if not doubt.is_other_life:
                    return self._end_doubt(node)
                # It is the same life, and says less than is known of it: that is not from it.
                node.seq = 0
                return [*self._end_doubt(node), SendDiscover(node.id)]
            case Verdict.LOST:
                offline_seq = max(node.seq, doubt.offline_seq)
                changes = self.lose_node(node.id, now, is_unexpected=not doubt.is_goodbye)
                node.seq = offline_seq if doubt.offline_seq else node.seq
                return changes
        node.doubt = None
        self._offers.doubt(node)
        assert doubt.claim is not None
        return self._believe(node, doubt.claim, now, doubt.since)

    def _end_doubt(self, node: NodeRecord) -> list[Change]:
        # What is known is in doubt as long as nobody has confirmed it.
        node.doubt, node.verified_at = None, NEVER
        self._offers.doubt(node)
        return [DoubtOver(node.id)]

    def receive_cpu(self, node_id: str, cpu: float, cpu_seq: int) -> None:
        """Somebody says how busy a node is; the measurement with the larger number counts."""
        node = self._nodes.get(node_id)
        if node is not None and not node.is_local and node.is_available and cpu_seq > node.cpu_seq:
            node.cpu, node.cpu_seq = cpu, cpu_seq

    def forget_node(self, node_id: str) -> list[Change]:
        """A node that is offline will not come back, as far as can be told."""
        node = self._nodes.get(node_id)
        if node is None or node.is_local or node.is_available:
            return []
        del self._nodes[node_id]
        self._unproven.pop(node_id, None)
        return [NodeForgotten(node_id)]

    def tick(self, now: float) -> list[Change]:
        """Lose the nodes that are silent, and forget those that are offline for long."""
        changes: list[Change] = []
        for node in [it for it in self._nodes.values() if self._due(it) <= now]:
            if node.doubt is not None:
                changes += self._decide(node, now)
            elif node.is_available:
                changes += self.lose_node(node.id, now)
            else:
                changes += self.forget_node(node.id)
        return changes

    # How it is done.

    def _has_room(self) -> bool:
        """Whether one more node can be known, be it in place of another."""
        return len(self._nodes) < self.config.nodes_max or self.config.verify_timeout_s > 0

    def _meet(self, node_id: str, read: ReadInfo, now: float) -> list[Change]:
        """A node that was not known told what it offers."""
        config, is_proven = self.config, node_id in self._proven
        is_crowded = config.verify_timeout_s and len(self._unproven) >= config.unproven_max
        if is_crowded and not is_proven:
            return [ProveNode(node_id, read.info)]
        changes = self._make_room(now) if is_proven else []
        if len(self._nodes) >= config.nodes_max:
            return [NodeRefused(node_id)]
        node = self._nodes[node_id] = NodeRecord(node_id, read.info, now)
        if is_proven:
            node.is_proven = True
            del self._proven[node_id]
        else:
            self._unproven[node_id] = None
        changes += self._take(node, read, before=(), told=NodeConnected(node_id, False))
        return changes

    def _make_room(self, now: float) -> list[Change]:
        """For a node that has answered: forget one that is offline, or that never did."""
        if len(self._nodes) < self.config.nodes_max:
            return []
        offline = (it.id for it in self._nodes.values() if not it.is_available)
        node_id = next(offline, None) or next(iter(self._unproven), None)
        if node_id is None:
            return []
        return [*self.lose_node(node_id, now), *self.forget_node(node_id)]

    def _due(self, node: NodeRecord) -> float:
        config = self.config
        if node.doubt is not None:
            return node.doubt.due(node.info)
        limit = config.heartbeat_timeout_s if node.is_available else config.clean_offline_s
        is_never = node.is_local or not limit or not config.heartbeat_timeout_s
        return math.inf if is_never else node.last_seen + limit

    def _hear_own_name(self, instance_id: str, info: NodeInfo | None = None) -> list[Change]:
        if self.local.instance_id.startswith(instance_id) and instance_id:
            return []
        hostname, ip_list = (info.hostname, info.ip_list) if info else ("", ())
        return [NodeConflict(self.local.id, instance_id, hostname, ip_list)]

    def _reconnect(self, node: NodeRecord, read: ReadInfo, now: float) -> list[Change]:
        node.is_available = True
        node.offline_since = None
        node.last_seen, node.verified_at = now, NEVER
        return self._take(node, read, before=(), told=NodeConnected(node.id, True))

    def _update(self, node: NodeRecord, read: ReadInfo, now: float) -> list[Change]:
        if not self.config.verify_timeout_s:
            is_late = read.info.instance_id == node.instance_id and read.info.seq < node.seq
            return [] if is_late else self._believe(node, read, now)
        if not is_other(node.info, read.info, node.seq):
            return self._believe(node, read, now)
        changes = self._begin_doubt(node, now)
        assert node.doubt is not None
        node.doubt.claim = read
        return changes

    def _believe(
        self, node: NodeRecord, read: ReadInfo, now: float, since: float = math.inf
    ) -> list[Change]:
        info = read.info
        is_restarted = info.instance_id != node.instance_id
        node.last_seen = now
        node.verified_at = NEVER if is_restarted else now
        alive_since = min(since, self._alive_since(node, now)) if is_restarted else math.inf
        told = NodeUpdated(node.id, is_restarted, alive_since)
        if is_restarted or info.seq != node.seq:
            return self._take(node, read, before=node.info.services, told=told)
        node.info = msgspec.structs.replace(info, services=node.info.services)
        return [told]

    def _alive_since(self, node: NodeRecord, now: float) -> float:
        """When a node that was restarted began to listen; infinity if that is not known."""
        asked_at = node.asked_at
        if now - asked_at > self.config.heartbeat_timeout_s:
            return math.inf
        node.asked_at = NEVER
        return asked_at

    def _take(
        self, node: NodeRecord, read: ReadInfo, *, before: tuple[ServiceInfo, ...], told: Change
    ) -> list[Change]:
        if read.info.instance_id != node.instance_id:
            # A new life counts its measurements anew.
            node.cpu, node.cpu_seq = None, 0
        node.info, node.seq = read.info, read.info.seq
        problems = [*read.problems, *self._offers.replace(node, before, read.info.services)]
        return [*self._refusals(node, problems), told, ServicesChanged(is_local=False)]

    def _refusals(self, node: NodeRecord, problems: list[str]) -> list[Change]:
        return [EntriesRefused(node.id, tuple(problems[:PROBLEMS_MAX]))] if problems else []

    def __repr__(self) -> str:
        online = len(self.nodes(only_available=True))
        return f"<Registry of {self.local.id}: {online} of {len(self._nodes)} nodes online>"


def _is_current(node: NodeRecord, seq: int | None, instance_id: str | None) -> bool:
    """Whether a heartbeat fits what is known; it may tell the first part of the instance only."""
    return seq in (None, node.seq) and node.instance_id.startswith(instance_id or "")
