"""A node of services: a transporter, and somebody who talks through it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextvars import copy_context
from random import Random
from typing import NamedTuple, TypeVar

from postroad.cells import CellDomain
from postroad.core.limits import KIB
from postroad.services.errors import BrokerDisconnectedError, QueueIsFullError
from postroad.services.kinds import Kind
from postroad.services.topics import BalancedTopic, Topics
from postroad.services.transporters.cells import CellsTransporter
from postroad.testing import SimCluster, require
from tests.simulation.services.plan import ACTIONS


class Sent(NamedTuple):
    number: int
    kind: Kind
    sender: str
    """The id of the node that sends it."""
    to: str | None
    """The id of a node, or None for all."""
    action: str | None = None
    """Of a balanced topic."""

    @property
    def is_for_all(self) -> bool:
        return self.to is None and self.action is None

    def __str__(self) -> str:
        to = self.action or self.to or "all"
        return f"{self.kind} {self.number} of {self.sender!r} to {to!r}"


class Ledger:
    def __init__(self) -> None:
        self._sent: list[Sent] = []
        self.came: dict[int, list[str]] = defaultdict(list)
        """By the number of a packet, the ids of the nodes it came to."""
        self._stays: dict[int, list[object]] = defaultdict(list)
        # By the number of a packet, those that must have come before it.
        self._in_order: dict[int, tuple[int, ...]] = {}

    def write(self, kind: Kind, sender: str, to: str | None, action: str | None = None) -> Sent:
        sent = Sent(len(self._sent), kind, sender, to, action)
        self._sent.append(sent)
        return sent

    def expect_order(self, packets: list[Sent]) -> None:
        numbers = tuple(packet.number for packet in packets)
        for place, number in enumerate(numbers):
            self._in_order[number] = numbers[:place]

    def receive(self, node_id: str, stay: object, kind: Kind, data: bytes) -> None:
        """A packet came to a node, during this stay of it in a domain.

        What was sent to all may come once more to a node that moved: it is among all there, too.
        """
        sent = self._sent[number_in(data)]
        came = self.came[sent.number]
        require(kind is sent.kind, f"{sent} came to {node_id!r} as {kind}")
        require(data == write_packet(sent, len(data)), f"{sent} came to {node_id!r} garbled")
        is_first = stay not in self._stays[sent.number] if sent.is_for_all else not came
        require(is_first, f"{sent} came to {node_id!r}, and before that to {came}")
        require(sent.to in (None, node_id), f"{sent} came to {node_id!r}")
        missing = [key for key in self._in_order.get(sent.number, ()) if not self.came[key]]
        require(not missing, f"{sent} came to {node_id!r} before {missing}")
        self._stays[sent.number].append(stay)
        came.append(node_id)


def write_packet(sent: Sent, size: int = 0) -> bytes:
    return (b"%d " % sent.number).ljust(size, b".")


def number_in(data: bytes) -> int:
    return int(data.split(b" ", 1)[0])


T = TypeVar("T")

NAMESPACE = "sim"
_RETRY_S = 0.3
_INTERVAL_S = 0.2
_SIZES = (0, 0, 0, 200, 5_000)
_CHUNK_BYTES = 300 * KIB
_CHUNKS = 6

MayLose = Callable[["Station", str], bool]
"""Whether a node has a reason to think that another one is gone."""


class Station:
    """A node in one domain, until it leaves."""

    def __init__(
        self,
        sim: SimCluster,
        node_id: str,
        domain: CellDomain,
        ledger: Ledger,
        everybody: Iterable[str],
        may_lose: MayLose,
        rng: Random,
    ) -> None:
        self.node_id = node_id
        self._sim = sim
        self._ledger = ledger
        self._everybody = list(everybody)
        self._may_lose = may_lose
        self._rng = rng
        self._topics = Topics(node_id, NAMESPACE)
        self.transporter = CellsTransporter(domain, connect_timeout_s=3.0)
        self.transporter.bind(self._topics, self)
        self.actions: tuple[str, ...] = ()
        self.lost: list[str] = []
        self.is_up = False
        self.is_talkative = True
        self.is_over = False
        self._context = copy_context()
        self._was_up = False
        self._life: asyncio.Task[None] | None = None
        self._streams: dict[asyncio.Task[None], None] = {}

    def __str__(self) -> str:
        return f"node {self.node_id!r}"

    # Its life.

    def start(self, actions: tuple[str, ...]) -> None:
        self.actions = actions
        self._life = asyncio.get_running_loop().create_task(self._live())

    async def _live(self) -> None:
        while not self._was_up:
            try:
                await self.transporter.connect()
            except OSError:
                await asyncio.sleep(_RETRY_S)
        await self._listen()
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / _INTERVAL_S))
            if self.is_talkative:
                self._say_something()

    async def _listen(self) -> None:
        topics = [self._topic_of(action) for action in self.actions]
        await self.transporter.listen_balanced(topics)

    async def listen(self, actions: tuple[str, ...]) -> None:
        self.actions = actions
        if self._was_up and not self.is_over:
            await self._listen()

    async def leave(self) -> None:
        tasks = [*self._streams] if self._life is None else [self._life, *self._streams]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            require(_is_cancelled(result), f"{self} failed: {result!r}")
        await self.transporter.disconnect()
        self.is_up, self.is_over = False, True
        require(not self.transporter.is_connected, f"{self} left, and is connected")

    # What it is told.

    def received(
        self,
        kind: Kind,
        data: bytes,
        done: Callable[[], None] | None = None,
        sender: str | None = None,
    ) -> None:
        require(self._was_up and not self.is_over, f"{self} got a packet, and is not there")
        self._ledger.receive(self.node_id, self, kind, data)

    def connected(self, *, is_again: bool) -> None:
        require(not self.is_up and not self.is_over, f"{self} is connected twice")
        require(is_again == self._was_up, f"{self} is connected with is_again={is_again}")
        self.is_up = self._was_up = True

    def disconnected(self, reason: str) -> None:
        require(self.is_up and not self.is_over, f"{self} is disconnected twice: {reason}")
        self.is_up = False

    def node_lost(self, node_id: str, *, is_unexpected: bool) -> None:
        require(self._may_lose(self, node_id), f"{self} lost {node_id!r}, which is there")
        self._sim.log.add(self.node_id, "lost", node_id)
        self.lost.append(node_id)

    # What it says.

    def inside(self, act: Callable[[], T]) -> T:
        """Have something done by the process of the node, whoever asks for it."""
        return self._context.copy().run(act)

    def _say_something(self) -> None:
        rng = self._rng
        draw = rng.random()
        if draw < 0.65:
            kind = rng.choice((Kind.REQUEST, Kind.RESPONSE, Kind.EVENT))
            self.send(kind, rng.choice(self._everybody), rng.choice(_SIZES))
        elif draw < 0.8:
            self.send_balanced(rng.choice(ACTIONS))
        elif draw < 0.95:
            self.send(Kind.HEARTBEAT, None)
        else:
            to = rng.choice(self._everybody)
            task = asyncio.get_running_loop().create_task(self._stream(to))
            self._streams[task] = None
            task.add_done_callback(lambda done: self._streams.pop(done))

    def send(self, kind: Kind, to: str | None, size: int = 0) -> Sent:
        """Send a packet; it may be refused."""
        sent = self._ledger.write(kind, self.node_id, to)
        self._try(lambda: self.transporter.publish(kind, to, write_packet(sent, size)))
        return sent

    def send_balanced(self, action: str) -> Sent:
        sent = self._ledger.write(Kind.REQUEST, self.node_id, None, action)
        topic = self._topic_of(action).name
        data = write_packet(sent)
        self._try(lambda: self.transporter.publish_balanced(topic, Kind.REQUEST, data))
        return sent

    def _try(self, publish: Callable[[], None]) -> None:
        is_up = self.is_up
        try:
            publish()
            require(is_up, f"{self} can send, and is not connected")
        except BrokerDisconnectedError:
            require(not is_up, f"{self} cannot send, and is connected")
        except QueueIsFullError:
            return

    async def _stream(self, to: str) -> None:
        for _ in range(_CHUNKS):
            self.send(Kind.REQUEST, to, _CHUNK_BYTES)
            await self.transporter.drain()

    def _topic_of(self, action: str) -> BalancedTopic:
        return BalancedTopic(self._topics.for_request(action), Kind.REQUEST, action)

    # What is left.

    def leftovers(self) -> list[str]:
        """What should have come to its end when nobody has sent anything for a while."""
        leftovers = leftovers_of(self.transporter)
        if self._streams:
            leftovers.append(f"{len(self._streams)} streams that do not end")
        return leftovers


def leftovers_of(transporter: CellsTransporter) -> list[str]:
    session = transporter._session
    if session is None:
        return []
    outgoing = session._outgoing
    leftovers = [f"{outgoing._waiting} bytes that wait"] if outgoing._waiting else []
    if outgoing._retries or outgoing._questions:
        leftovers.append("questions that nobody answers")
    return leftovers + [f"a stream to {peer.path}" for peer in session._peers if peer.is_blocked]


def _is_cancelled(result: object) -> bool:
    return result is None or isinstance(result, asyncio.CancelledError)
