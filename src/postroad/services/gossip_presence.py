"""How nodes that speak TCP to each other know each other: by gossip.

Every node asks another now and then what there is to know. Nodes of the original system leave it
at that; this one also tells what it offers to whom it connects, and to all as soon as that
changes, and asks at once whoever seems to know more. All of that the others understand.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from postroad.core import Address, ThrottledLogger
from postroad.core.errors import PostroadError

from .gossip import GossipHello, GossipRequest, GossipResponse
from .gossiping import Gossiping, Heard
from .kinds import VERSION
from .nodes import Change, NodeConnected, NodeForgotten, NodeRecord, NodeUpdated, ProveNode
from .pacing import Allowance, Pacing
from .packets import Packet
from .registry import Registry
from .transit import logger
from .transporters.tcp import TcpTransporter

ASK_PAUSE_S = 0.5
"""A node is not asked more often than this."""
ANNOUNCE_DELAY_S = 0.05
"""Changes of services within so much time are told together."""
START_WAIT_S = 0.5
"""The longest that `start` waits for the nodes whose addresses are known."""
STOP_DELAY_S = 0.1
"""After it said that it offers nothing, a node still serves what is on its way."""
TOLD_MAX = 32
"""Nodes that are told of a change at once; others hear of it by gossip."""
LOST_LATELY_S = 30.0
"""A node that was lost so lately is asked in every round."""
ANSWERS_MAX = 8
"""Requests of one node that are answered at once; all that is known of all nodes may be much."""
ANSWERS_PER_S = 4.0
"""How many more are answered each second; nodes ask twice a second at most."""
FAILURES_MAX = 10
"""A node that was never online is given up after so many attempts to reach it."""

_LOG_INTERVAL_S = 10.0

Send = Callable[[Packet, str | None], None]
Apply = Callable[[list[Change]], None]


class GossipPresence:
    """The presence of a node among others that it can only speak to one by one.

    Args:
        registry: what this node knows.
        send: sends a packet to a node.
        apply: is given what changed.
        transporter: knows where nodes are, and whether there is a connection.
        node_id: of this node.
        period_s: how often to ask.
        cpu: how busy this node is, in per cent; None if that is not known.
        chance: chooses whom to ask.
        clock: the time of day, in seconds. The numbers of a life begin with it, so that they are
            larger than those of the life before.
    """

    def __init__(
        self,
        registry: Registry,
        send: Send,
        apply: Apply,
        *,
        transporter: TcpTransporter,
        node_id: str,
        period_s: float = 2.0,
        cpu: Callable[[], float | None],
        chance: random.Random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._send = send
        self._apply = apply
        self._transporter = transporter
        self._node_id = node_id
        self._period_s = period_s
        self._cpu = cpu
        self._chance = chance
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._gossiping = Gossiping(registry, transporter.is_linked)
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        # From the start to the goodbye.
        self._is_active = False
        self._round: asyncio.TimerHandle | None = None
        self._announcement: asyncio.TimerHandle | None = None
        # When each node was asked last, and those that will be when it is time.
        self._asked: dict[str, float] = {}
        self._to_ask: dict[str, asyncio.TimerHandle] = {}
        # The seq of this node that each node was told.
        self._told: dict[str, int] = {}
        self._is_heard = asyncio.Event()
        self._answers = Allowance(ANSWERS_MAX, ANSWERS_PER_S)
        self._denials = Allowance(ANSWERS_MAX, ANSWERS_PER_S)
        self._asking = Pacing(self._request)

    async def start(self) -> None:
        self._is_active = True
        # In milliseconds: a life may be short, and its end and others' doubts count too.
        self._registry.outrun(int(self._clock() * 1_000))
        self._registry.set_port(self._transporter.port, self._transporter.only_host)
        self._transporter.introduce = self._introduce
        self._transporter.discovered = self._discover
        self._measure()
        self._round = self._loop.call_later(self._period_s, self._run_round)
        first = [*self._transporter.book][: self._transporter.connections_max]
        for node_id in first:
            self._ask(node_id)
        if first or self._transporter.has_discovery:
            await self._wait_for(first)

    def reconnected(self) -> None:
        self._gossip()

    def services_changed(self) -> None:
        if self._announcement is None and self._is_active:
            self._announcement = self._loop.call_later(ANNOUNCE_DELAY_S, self._announce)

    def settle(self) -> None:
        if self._announcement is not None:
            self._announce()

    def received(self, packet: Packet) -> None:
        if not self._is_active or packet.sender == self._node_id:
            return
        if isinstance(packet, GossipHello):
            self._receive_hello(packet)
        elif isinstance(packet, GossipRequest):
            heard = self._gossiping.receive_request(packet, self._loop.time())
            self._follow(packet.sender, heard)
        elif isinstance(packet, GossipResponse):
            heard = self._gossiping.receive_response(packet, self._loop.time())
            self._follow(packet.sender, heard)

    def ask(self, node_id: str) -> None:
        if self._is_active:
            self._asking.want(node_id)

    async def withdraw(self) -> None:
        """Say that this node offers nothing any more."""
        self._cancel_announcement()
        self._tell_all(self._gossiping.make_introduction(is_stopping=True))
        await asyncio.sleep(STOP_DELAY_S)

    async def leave(self, *, says_goodbye: bool = True) -> None:
        self._is_active = False
        self._asking.close()
        self._cancel_announcement()
        for timer in (self._round, *self._to_ask.values()):
            if timer is not None:
                timer.cancel()
        self._to_ask.clear()
        self._transporter.introduce = self._transporter.discovered = None
        if not says_goodbye:
            return
        goodbye = self._gossiping.make_goodbye()
        for node in self._others(is_online=True):
            if self._transporter.is_linked(node.id):
                self._tell(goodbye, node.id)

    # What is heard.

    def _receive_hello(self, packet: GossipHello) -> None:
        host = self._transporter.speaker or packet.host
        if host:
            self._see(packet.sender, Address(host, packet.port))

    def _discover(self, node_id: str, address: Address) -> None:
        if node_id != self._node_id:
            self._see(node_id, address)

    def _see(self, node_id: str, address: Address) -> None:
        is_online = self._is_online(node_id)
        self._transporter.see(node_id, address, is_online=is_online)
        if not is_online:
            self._ask(node_id)

    def _follow(self, sender: str, heard: Heard) -> None:
        """Do what follows from a packet."""
        self._is_heard.set()
        self._take(heard.changes)
        if self._transporter.can_reach(sender):
            if heard.responses and self._answers.take(sender, self._loop.time()):
                for response in heard.responses:
                    self._tell(response, sender)
            if heard.is_behind:
                self._ask(sender)
        for node_id in heard.denied:
            if self._denials.take(node_id, self._loop.time()):
                self._tell(self._gossiping.make_request(heard.denied), node_id)
        if heard.is_outrun:
            self.services_changed()

    def _take(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, NodeConnected | NodeUpdated):
                node = self._registry.node(change.node_id)
                if node is not None:
                    info = node.info
                    self._transporter.book.describe(node.id, info.hostname, info.ip_list, info.port)
            elif isinstance(change, NodeForgotten):
                self._transporter.forget(change.node_id)
            elif isinstance(change, ProveNode) and change.node_id not in self._transporter.book:
                host = change.info.hostname or next(iter(change.info.ip_list), "")
                if host and change.info.port:
                    address = Address(host, change.info.port)
                    self._transporter.book.see(change.node_id, address, may_move=False)
        if changes:
            self._apply(changes)

    # What is told.

    def _introduce(self, node_id: str) -> None:
        """A connection is being made: say who this is, and what it offers unless that is known."""
        local = self._registry.local
        hello = GossipHello(
            host=local.info.hostname or next(iter(local.info.ip_list), ""),
            port=self._transporter.port,
            ver=VERSION,
            sender=self._node_id,
        )
        self._tell(hello, node_id)
        introduction = self._gossiping.make_introduction()
        if not self._is_online(node_id) or self._told.get(node_id) != local.seq:
            self._told[node_id] = local.seq
            self._tell(introduction, node_id)

    def _announce(self) -> None:
        self._cancel_announcement()
        self._tell_all(self._gossiping.make_introduction())

    def _tell_all(self, introduction: GossipResponse) -> None:
        nodes = self._others(is_online=True)
        for node in self._chance.sample(nodes, min(len(nodes), TOLD_MAX)):
            self._tell(introduction, node.id)
            self._told[node.id] = self._registry.local.seq

    def _ask(self, node_id: str) -> None:
        """Ask a node what there is to know, soon if it was asked just now."""
        now = self._loop.time()
        due = self._asked.get(node_id, -ASK_PAUSE_S) + ASK_PAUSE_S
        if now >= due:
            self._asked[node_id] = now
            self._request(node_id)
        elif node_id not in self._to_ask:
            self._to_ask[node_id] = self._loop.call_at(due, self._ask_now, node_id)

    def _request(self, node_id: str) -> None:
        self._tell(self._gossiping.make_request(), node_id)

    def _ask_now(self, node_id: str) -> None:
        self._to_ask.pop(node_id, None)
        self._asked.pop(node_id, None)
        self._ask(node_id)

    def _tell(self, packet: Packet, node_id: str) -> None:
        """Send what the node will hear of sooner or later anyway, if it cannot be sent now."""
        if not self._transporter.can_reach(node_id):
            return
        try:
            self._send(packet, node_id)
        except PostroadError as error:
            self._log.log(
                packet.KIND,
                self._loop.time(),
                "%s was not sent to %s: %s",
                packet.KIND,
                node_id,
                error,
            )

    def _cancel_announcement(self) -> None:
        if self._announcement is not None:
            self._announcement.cancel()
            self._announcement = None

    # What is done now and then.

    def _run_round(self) -> None:
        if not self._transporter.is_connected:
            return
        self._round = self._loop.call_later(self._period_s, self._run_round)
        try:
            self._measure()
            self._forget()
            self._gossip()
        except Exception:
            # The next round may do better.
            logger.exception("a round of gossip failed")

    def _measure(self) -> None:
        cpu = self._cpu()
        if cpu is not None:
            self._registry.set_cpu(min(100, max(0, round(cpu))))

    def _gossip(self) -> None:
        """Ask a node that is online, and with some probability one that is not."""
        online = [node.id for node in self._others(is_online=True)]
        offline, lately = self._absent()
        ratio = len(offline) / (len(online) + 1)
        chosen = [self._chance.choice(online)] if online else []
        if offline and self._chance.random() < ratio:
            chosen.append(self._chance.choice(offline))
        if lately:
            chosen.append(self._chance.choice(lately))
        for node_id in dict.fromkeys(chosen):
            self._ask(node_id)

    def _absent(self) -> tuple[list[str], list[str]]:
        """Nodes that are not online and can be tried; and those of them that were so lately."""
        since = self._loop.time() - LOST_LATELY_S
        gone = [it for it in self._others(is_online=False) if self._transporter.can_reach(it.id)]
        lately = [it.id for it in gone if (it.offline_since or since) > since]
        never = [
            node_id
            for node_id in self._transporter.book
            if self._registry.node(node_id) is None and self._transporter.can_reach(node_id)
        ]
        return [*(it.id for it in gone), *never], lately

    def _forget(self) -> None:
        """Let go of nodes that are offline for long, and of those that never were there."""
        now = self._loop.time()
        self._asked = {it: at for it, at in self._asked.items() if now - at < ASK_PAUSE_S}
        limit = self._registry.config.clean_offline_s
        for node in self._others(is_online=False):
            self._told.pop(node.id, None)
            if limit and now - (node.offline_since or now) > limit:
                self._take(self._registry.forget_node(node.id))
        for node_id in [*self._transporter.book]:
            is_unknown = self._registry.node(node_id) is None
            if is_unknown and self._transporter.failures(node_id) >= FAILURES_MAX:
                self._told.pop(node_id, None)
                self._transporter.forget(node_id)

    # How it is done.

    async def _wait_for(self, node_ids: list[str]) -> None:
        """Wait until these nodes are online, but not for long."""
        try:
            async with asyncio.timeout(START_WAIT_S):
                while not node_ids or not all(map(self._is_online, node_ids)):
                    self._is_heard.clear()
                    await self._is_heard.wait()
        except TimeoutError:
            logger.debug("not all nodes were found at once")

    def _is_online(self, node_id: str) -> bool:
        node = self._registry.node(node_id)
        return node is not None and node.is_available

    def _others(self, *, is_online: bool) -> list[NodeRecord]:
        nodes = self._registry.nodes()
        return [it for it in nodes if not it.is_local and it.is_available == is_online]
