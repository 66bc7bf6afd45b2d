"""Postroad's own: nodes in domains of cells, with no server to install."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from postroad.cells import CellDomain
from postroad.core.errors import UsageError
from postroad.core.limits import KIB, MIB
from postroad.services.errors import BrokerDisconnectedError
from postroad.services.kinds import Kind
from postroad.services.topics import BalancedTopic

from .cells_domains import DomainOptions, choose_source
from .cells_names import CellNames
from .cells_session import CellsSession, CellsStatistics
from .transporter import Transporter

__all__ = ["CONNECT_TIMEOUT_S", "CellsStatistics", "CellsTransporter", "DomainOptions"]

CONNECT_TIMEOUT_S = 5.0

# What messages of cells hold besides packets, and the frames they are in by default.
_HEAD_BYTES = 8 * KIB
_FRAME_BYTES = 4 * MIB
_PACKET_BYTES_MAX = 3 * MIB


class CellsTransporter(Transporter):
    """Carries packets between domains of cells.

        CellsTransporter()                                    # nodes of this process
        CellsTransporter("cells://10.0.0.1:26502/C1,10.0.0.2:26502/C2")
        CellsTransporter(domain)                              # a CellDomain of one's own

    A URL lists the cores: where each is, and its name. All nodes can have the same one. A node
    whose domain has the name of a core is that core, and listens there; the others connect to all
    of them. The domain has the id of the node as its name, after its namespace if it has one,
    unless `options` say otherwise; a node whose id is that of a core is the core. Without
    cores, the nodes of a process share a domain, and there are no others.

    **Where packets go.** A node is a cell of its domain, which subscribes to one topic for what
    is sent to all. Packets to a node go to the address that its own packets came from, or, if
    there were none so far, to its name, wherever that is. A balanced topic is a queue. Its name
    is meant literally, so a handler with a pattern for a name hears nothing by it; and a node
    that listens to a topic gets all that is published to it in its own domain, as do those in
    cores before all others.

    **Order** is kept while packets take one way. It can be lost when a core comes or goes, between
    what is sent to a node and what is sent to all when there are several cores, and when the
    first packet of a node tells where it is.

    **What is lost.** Nothing is acknowledged. What is in the sockets of a domain or core that
    dies is lost, and so is what waits when the last core is. A node that was asked something in
    the last minute and is silent is looked for; when its domain says that it left, or cores for a
    while that they know no way to its domain, `node_lost` is told.

    **Overload.** Publishing never waits. Packets wait here, and at most 64 MiB of them: who has
    nothing waiting gets half of it, and nobody more than what is free. Then it raises
    QueueIsFullError. No more than 1 MiB is under way to a node until it has confirmed some of it,
    so the domains in between are not filled by one who sends to a slow one; `drain` waits for
    that, for the node that the last packet went to. If many send to a slow node at the same time,
    domains in between may refuse some of it, and what is sent to all is dropped for whomever a
    full tunnel leads to: both are counted by the domain that does so.

    Args:
        where: a running domain, or the URL; None for nodes of this process.
        connect_timeout_s: how long `connect` may take.
        options: how the domain is made, if there is a URL with cores.
    """

    name = "cells"
    balances = True
    keeps_order = False

    def __init__(
        self,
        where: CellDomain | str | None = None,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        options: DomainOptions | None = None,
    ) -> None:
        made = options or DomainOptions()
        self._source = choose_source(where, made)
        self._connect_timeout_s = connect_timeout_s
        self._packet_bytes_max = _packet_bytes_max(
            where.service.limits.frame_bytes_max
            if isinstance(where, CellDomain)
            else made.limits.frame_bytes_max
        )
        self._session: CellsSession | None = None
        self._leaving: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self._session is not None and self._session.is_up

    @property
    def packet_bytes_max(self) -> int:
        return self._packet_bytes_max

    def statistics(self) -> CellsStatistics:
        """What was lost or dropped since it connected."""
        if self._session is None:
            raise BrokerDisconnectedError
        return self._session.statistics()

    # Coming and going.

    async def connect(self) -> None:
        if self._session is not None:
            raise UsageError("it is connected already")
        try:
            name = CellNames(self.topics.prefix).domain(self.topics.node_id)
            domain = await self._source.open(name, self.topics.node_id)
            self._session = CellsSession(domain, self.topics, self.listener, self._packet_bytes_max)
            await self._session.enter(self._connect_timeout_s)
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._leave(), name="leaving the cells")
        # It ends even if whoever waits for it is cancelled.
        await asyncio.shield(self._leaving)

    async def _leave(self) -> None:
        try:
            if self._session is not None:
                await self._session.leave()
        finally:
            self._session = None
            try:
                await self._source.close()
            finally:
                self._leaving = None

    # Packets.

    def publish(self, kind: Kind, node_id: str | None, data: bytes) -> None:
        session = self._ready(data)
        if node_id is None:
            session.publish_to_all(kind, data)
        else:
            session.publish(kind, node_id, data)

    def publish_balanced(self, topic: str, kind: Kind, data: bytes) -> None:
        self._ready(data).publish_balanced(topic, kind, data)

    def _ready(self, data: bytes) -> CellsSession:
        session = self._session
        if session is None or not session.is_up:
            raise BrokerDisconnectedError
        if len(data) > self._packet_bytes_max:
            self._check_size(data)
        return session

    async def listen_balanced(self, topics: Iterable[BalancedTopic]) -> None:
        if self._session is None:
            raise BrokerDisconnectedError
        await self._session.listen_balanced(topics)

    async def drain(self) -> None:
        if self._session is not None:
            await self._session.drain()


def _packet_bytes_max(frame_bytes_max: int) -> int:
    """What fits into a message for sure: all of a large frame but for a part, half of others."""
    if frame_bytes_max >= _FRAME_BYTES:
        return _PACKET_BYTES_MAX
    return max(1, frame_bytes_max // 2 - _HEAD_BYTES)
