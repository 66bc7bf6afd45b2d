"""Pings for those who choose the node that answers soonest.

Nodes on one host are taken to be equally far away, so one of each host is pinged. Nobody is while
nothing is chosen that way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from postroad.core.errors import MessagingError

from .balancing import Latencies, Latency
from .endpoints import EndpointList
from .errors import RequestTimeoutError
from .pings import PingResult
from .schema import INTERNAL_PREFIX

TIMEOUT_S = 2.0
_AT_ONCE = 32
_MILLISECONDS = 1000

Lists = Callable[[], Iterable[EndpointList[Any]]]
Ping = Callable[[str, float], Awaitable[PingResult]]


class LatencyPings:
    """Finds out how far away the hosts are that there is a choice between.

    Args:
        lists: all endpoints that are chosen from.
        latencies: gets what is found out.
        ping: pings a node, for so long.
        interval_s: time from one round of pings to the next.
        chance: chooses the node of a host.
    """

    def __init__(
        self,
        lists: Lists,
        latencies: Latencies,
        ping: Ping,
        *,
        interval_s: float,
        chance: random.Random,
    ) -> None:
        self._lists = lists
        self._latencies = latencies
        self._ping = ping
        self._interval_s = interval_s
        self._chance = chance
        self._known: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether somebody is pinged now and then."""
        return self._task is not None

    def look(self) -> None:
        """Services have changed: begin if there is a reason to."""
        if self._task is None and any(True for _ in self._used()):
            self._task = asyncio.get_running_loop().create_task(self._go_on())

    async def stop(self) -> None:
        """Ping nobody any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _go_on(self) -> None:
        while hosts := self._hosts():
            await self._round(hosts)
            await asyncio.sleep(self._interval_s)
        self._task = None

    async def _round(self, hosts: dict[str, list[str]]) -> None:
        for gone in self._known - hosts.keys():
            self._latencies.forget(gone)
        self._known = {*hosts}
        names = [*hosts]
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            await asyncio.gather(*(self._measure(it, hosts[it]) for it in some))

    async def _measure(self, host: str, nodes: list[str]) -> None:
        if not nodes:
            # This very host: nothing is nearer.
            self._latencies.record(host, 0.0)
            return
        try:
            result = await self._ping(self._chance.choice(nodes), TIMEOUT_S)
        except RequestTimeoutError:
            self._latencies.record(host, TIMEOUT_S * _MILLISECONDS)
        except MessagingError:
            # Nobody can be reached now, which tells nothing of this host.
            return
        else:
            self._latencies.record(host, result.elapsed_s * _MILLISECONDS)

    def _hosts(self) -> dict[str, list[str]]:
        """The hosts there is a choice between, and the nodes of each; none for this node's own."""
        hosts: dict[str, dict[str, None]] = {}
        own: set[str] = set()
        for found in self._used():
            for endpoint in found:
                node = endpoint.node
                hosts.setdefault(node.hostname, {})[node.id] = None
                if node.is_local:
                    own.add(node.hostname)
        return {host: [] if host in own else [*nodes] for host, nodes in hosts.items()}

    def _used(self) -> Iterator[EndpointList[Any]]:
        for found in self._lists():
            is_choice = len(found) > 1 and not found.name.startswith(INTERNAL_PREFIX)
            if is_choice and isinstance(found.strategy, Latency):
                yield found
