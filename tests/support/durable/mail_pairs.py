"""Nodes with mail over real sockets, in this process, and handlers that keep what they get."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from postroad.durable import (
    DurableQueues,
    DurableQueuesConfig,
    Message,
    RetryPolicy,
    SqliteStore,
    StaticPeerDirectory,
    Store,
    Transaction,
)
from postroad.net import Address, Limits, MessagingService, TlsConfig
from tests.support.deadlines import DEADLINE_S, eventually

CLUSTER = "mail-tests"

QUICK = DurableQueuesConfig(
    bridge_initial_delay_s=0.02, bridge_max_delay_s=0.1, open_timeout_s=1.0, window_timeout_s=2.0
)
AT_ONCE = RetryPolicy(max_attempts=3, initial_delay_s=0.001, max_delay_s=0.005)
LIMITS = Limits(connect_timeout_s=1.0, handshake_timeout_s=1.0, stop_grace_s=1.0)


class Station(NamedTuple):
    """A node with mail, and the list of peers that it goes by."""

    service: MessagingService
    mail: DurableQueues
    directory: StaticPeerDirectory

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def address(self) -> Address:
        return self.service.address

    def meet(self, *peers: Station) -> None:
        """Learn where peers are."""
        for peer in peers:
            self.directory.set(peer.name, peer.address)


@asynccontextmanager
async def running_station(
    name: str,
    store: Store | Path,
    *peers: Station,
    bind: Address | str = "127.0.0.1:0",
    tls: TlsConfig | None = None,
    limits: Limits = LIMITS,
    config: DurableQueuesConfig = QUICK,
    **options: Any,
) -> AsyncIterator[Station]:
    """A node that runs; `options` are those of Mail. A path is a directory for its store."""
    if isinstance(store, Path):
        store = SqliteStore(store / f"{name}.db")
    directory = StaticPeerDirectory({peer.name: peer.address for peer in peers})
    async with MessagingService(CLUSTER, name, bind, tls=tls, limits=limits) as service:
        mail = DurableQueues(service, store, directory=directory, config=config, **options)
        async with mail:
            yield Station(service, mail, directory)


class Pair(NamedTuple):
    """Two nodes that know each other."""

    alpha: Station
    beta: Station


@asynccontextmanager
async def running_pair(directory: Path, **options: Any) -> AsyncIterator[Pair]:
    """Nodes alpha and beta; `options` are those of `running_station`, for both."""
    async with (
        running_station("alpha", directory, **options) as alpha,
        running_station("beta", directory, alpha, **options) as beta,
    ):
        alpha.meet(beta)
        yield Pair(alpha, beta)


class Recorder:
    """A handler that keeps what it gets, and fails as often as it is told to."""

    def __init__(self, *, failures: int = 0, error: type[Exception] = ValueError) -> None:
        self.messages: list[Message] = []
        self.attempts: list[bytes] = []
        self._failures = failures
        self._error = error
        self._stirred = asyncio.Event()

    @classmethod
    async def at(
        cls,
        consumer: DurableQueues | Station,
        queue: str = "orders",
        *,
        failures: int = 0,
        error: type[Exception] = ValueError,
        **options: Any,
    ) -> Recorder:
        """One that consumes a queue; `options` are those of `consume`."""
        recorder = cls(failures=failures, error=error)
        mail = consumer if isinstance(consumer, DurableQueues) else consumer.mail
        await mail.consume(queue, recorder, **options)
        return recorder

    async def __call__(self, message: Message, tx: Transaction) -> None:
        self.attempts.append(message.body)
        if self._failures:
            self._failures -= 1
            raise self._error("as told")
        self.messages.append(message)
        self._stirred.set()

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def until(self, count: int) -> list[bytes]:
        """The bodies, when there are so many."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.messages) < count:
                self._stirred.clear()
                await self._stirred.wait()
        return self.bodies


async def until_empty(mail: DurableQueues, *peers: str) -> None:
    """Nothing waits for the peers any more."""

    async def is_empty() -> bool:
        statistics = await mail.statistics()
        return not any(statistics.peers[peer].depth for peer in peers)

    await eventually(is_empty, f"nothing waits for {', '.join(peers)}")


async def until_waiting(mail: DurableQueues, queue: str, count: int) -> None:
    """So many messages are in a queue."""

    async def are_there() -> bool:
        return len(await mail.admin.peek(queue, limit=count + 1)) == count

    await eventually(are_there, f"{count} messages wait in {queue}")


async def until_dead(mail: DurableQueues, count: int) -> None:
    """So many dead letters are there."""

    async def are_dead() -> bool:
        return len(await mail.dead_letters.list(limit=count + 1)) == count

    await eventually(are_dead, f"{count} dead letters")


async def post_numbers(station: Station, peer: str, numbers: Iterable[int], **fields: Any) -> None:
    """Post messages one after the other, with their numbers as bodies."""
    waiting: deque[asyncio.Task[int]] = deque()
    for number in numbers:
        posting = station.mail.send("orders", b"%d" % number, to=peer, **fields)
        waiting.append(asyncio.ensure_future(posting))
    await asyncio.gather(*waiting)


def numbers_of(bodies: Iterable[bytes]) -> list[int]:
    return [int(body) for body in bodies]
