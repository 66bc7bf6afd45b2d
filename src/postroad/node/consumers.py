"""Who consumes a queue: as this domain's routes tell, else as the cores do.

A core knows of every domain it has a tunnel to, a satellite only of itself and the cores. What the
cores told is remembered for a moment. It may be wrong by then, as routes may be: whoever gets a
message that it does not consume sends it on.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from postroad.cells import LOCAL, Cell, CellDomain, CellMessage, Role, command
from postroad.cells.addresses import validate_domain_name
from postroad.cells.routing.rendezvous import rendezvous_rank, rendezvous_rank_by
from postroad.core import fault_points as faults
from postroad.core import tracing
from postroad.core.errors import ConfigError, MalformedPayloadError, MessagingError
from postroad.core.timing import backoff

from .config import GuaranteedConfig
from .content import CELL

logger = logging.getLogger("postroad.node")

ASKED = faults.declare_fault_point("node.guaranteed.asked")

Consumers: TypeAlias = Mapping[str, str | None]
"""Domains with cells that consume a queue, and the zone of each."""

_NOBODY: Consumers = {}


def known_consumers(domain: CellDomain, queue: str) -> Consumers:
    """The domains that the routes of a domain tell of, itself among them."""
    return {
        domain.name if route.target.domain == LOCAL else route.target.domain: route.zone
        for route in domain.table.queues(queue)
    }


def own_consumers(domain: CellDomain, queue: str) -> list[str]:
    """The cells of a domain itself that consume a queue."""
    return [
        route.target.cell
        for route in domain.table.queues(queue)
        if route.target.domain in (domain.name, LOCAL) and not route.target.is_domain
    ]


class Guarantees(Cell):
    """Tells which domains consume a queue, and which queues are guaranteed here."""

    is_system = True

    def __init__(self, queues: Callable[[], Iterable[str]]) -> None:
        super().__init__(CELL)
        self._queues = queues

    def handle(self, message: CellMessage) -> Any:
        """Answer the name of a queue with the domains that consume it, as far as known here."""
        queue = message.body
        if not isinstance(queue, str):
            raise MalformedPayloadError(f"the name of a queue is a text, not {queue!r}")
        ASKED.hit(queue=queue)
        return known_consumers(self.domain, queue)

    @command("ls", is_read=True)
    def list_queues(self) -> str:
        """List the queues that are guaranteed here, and who is known to consume them."""
        return "\n".join(map(self._describe, sorted(self._queues()))) or "none"

    def _describe(self, queue: str) -> str:
        return f"{queue}: {', '.join(sorted(known_consumers(self.domain, queue))) or 'nobody'}"


class Directions:
    """Finds and chooses domains that consume queues."""

    def __init__(self, domain: CellDomain, config: GuaranteedConfig) -> None:
        self._domain = domain
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.close = domain.on_routes_changed(self._changed.set)
        """Hear of routes no more."""
        # By queue, what the cores told, and until when it is taken to be so.
        self._told: dict[str, tuple[float, Consumers]] = {}

    def known(self, queue: str) -> Consumers:
        """Who consumes a queue, as far as that is known without asking."""
        consumers = known_consumers(self._domain, queue)
        if consumers:
            return consumers
        until, told = self._told.get(queue, (0.0, _NOBODY))
        return told if self._loop.time() < until else _NOBODY

    async def wait(self, queue: str, timeout_s: float) -> Consumers:
        """Wait until somebody consumes a queue; gives nobody if that takes too long."""
        deadline = self._loop.time() + timeout_s
        for attempt in itertools.count(1):
            if consumers := self.known(queue) or await self._ask(queue):
                return consumers
            # Cores tell only who asks them; routes that change here are heard of at once.
            until = min(self._loop.time() + self.pause_s(attempt), deadline)
            while (left_s := until - self._loop.time()) > 0:
                if consumers := self.known(queue):
                    return consumers
                await self.routes_changed(left_s)
            if self._loop.time() >= deadline:
                break
        return _NOBODY

    async def routes_changed(self, timeout_s: float) -> None:
        """Wait until routes of this domain change, or for a while."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def pause_s(self, attempt: int) -> float:
        """How long to wait before looking again."""
        first_s, max_s = self._config.look_first_s, self._config.look_max_s
        return backoff(attempt, initial_delay_s=first_s, max_delay_s=max_s, jitter=random.random())

    def choose(self, consumers: Consumers, key: bytes) -> str:
        """The domain that gets a message, always the same for the same key."""
        zone = self._domain.identity.zone
        return rendezvous_rank_by(
            key,
            consumers,
            name=str,
            is_preferred=lambda it: zone is not None and consumers[it] == zone,
        )[0]

    # Asking.

    async def _ask(self, queue: str) -> Consumers:
        """What all cores know; this domain itself knows better whether it consumes the queue."""
        links = self._domain.links.by_domain.values()
        cores = [link.domain.name for link in links if link.domain.role is Role.CORE]
        consumers: dict[str, str | None] = {}
        for answer in await asyncio.gather(*(self._ask_core(core, queue) for core in cores)):
            consumers.update(answer)
        consumers.pop(self._domain.name, None)
        self._told[queue] = (self._loop.time() + self._config.remember_s, consumers)
        return consumers

    async def _ask_core(self, core: str, queue: str) -> Consumers:
        timeout_s = self._config.ask_timeout_s
        try:
            cell = f"{CELL}@{core}"
            with tracing.scope(None):
                answer = await self._domain.call(cell, queue, timeout=timeout_s, wait=False)
            return read_consumers(answer)
        except (MessagingError, MalformedPayloadError) as error:
            logger.debug("core %s does not tell who consumes %r: %s", core, queue, error)
            return _NOBODY


def read_consumers(answer: object) -> Consumers:
    """What a core told; raises MalformedPayloadError if that makes no sense."""
    try:
        consumers = msgspec.convert(answer, dict[str, str | None])
        for name in consumers:
            validate_domain_name(name)
    except (msgspec.ValidationError, ConfigError) as error:
        raise MalformedPayloadError(f"these are no consumers: {error}") from None
    return consumers


def rank_cells(cells: Iterable[str], key: bytes) -> list[str]:
    """The cells of this domain, the one that a message is for first."""
    return rendezvous_rank(key, cells)
