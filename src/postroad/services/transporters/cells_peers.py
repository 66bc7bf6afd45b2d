"""The other nodes: where they are, and whether they still are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from postroad.cells import CellAddress, NoRouteError, Role
from postroad.cells.addresses import DomainInfo
from postroad.core import PostroadError

from .cells_lanes import Lane, NodeLane
from .cells_names import CellNames

PEERS_MAX = 8_192
"""Nodes remembered; more, and those are forgotten that have nothing on its way to them."""
SILENCE_S = 1.0
"""A node that was asked something and is silent for so long is looked for, again and again."""
WATCH_S = 60.0
"""How long after it was asked. Whether it has answered only the broker knows."""
GONE_S = 3.0
"""A node is lost when nobody has known the way to it for so long. A core that was started again
knows nobody at first."""


class Peers:
    """All nodes that this one sends to or hears of.

    Where a node is, its letters tell: they are sent by a cell with its name. As long as it was
    not heard, letters to it go to the queue of that name, which takes them there as well.

    The domain of a letter is certain, the name of the cell is what that domain chose. So a node is
    believed to be in the domain that is called after it; in another one if there is no such domain,
    as far as is known, and if it was not in a third one, until it is gone from there.

    Args:
        names: of this namespace.
        domain: this domain.
        letter_bytes: how much of many packets goes together.
        ping: returns when a node answered, and raises NoRouteError if it is not there.
        on_lost: told of nodes that are gone.
        is_domain: whether a domain of that name is known.
    """

    def __init__(
        self,
        names: CellNames,
        domain: DomainInfo,
        *,
        letter_bytes: int,
        ping: Callable[[Lane], Coroutine[Any, Any, None]],
        on_lost: Callable[[NodeLane], None],
        is_domain: Callable[[str], bool],
    ) -> None:
        self._names = names
        self._domain = domain
        self._is_satellite = domain.role is Role.SATELLITE
        self._letter_bytes = letter_bytes
        self._ping = ping
        self._on_lost = on_lost
        self._is_domain = is_domain
        self._loop = asyncio.get_running_loop()
        self._by_id: dict[str, NodeLane] = {}
        self._by_address: dict[CellAddress, NodeLane] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._searches: dict[NodeLane, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[NodeLane]:
        return iter(self._by_id.values())

    def get(self, node_id: str) -> NodeLane:
        """What leads to a node; ConfigError if there can be none of that id."""
        return self._by_id.get(node_id) or self._meet(node_id)

    def hear(self, sender: CellAddress) -> str | None:
        """A letter came from a cell; gives the node that it is of, None if it can be of none."""
        lane = self._by_address.get(sender) or self._locate(sender)
        if lane is None:
            return None
        lane.heard += 1
        return lane.node_id

    # Who is where.

    def _meet(self, node_id: str) -> NodeLane:
        lane = NodeLane(node_id, self._names.node(node_id), self._letter_bytes)
        if len(self._by_id) >= PEERS_MAX:
            for other in [it for it in self if it.is_idle]:
                self.forget(other)
        self._by_id[node_id] = lane
        return lane

    def _locate(self, sender: CellAddress) -> NodeLane | None:
        node_id = self._names.node_of(sender.cell)
        if node_id is None:
            return None
        home = self._names.domain(node_id)
        if sender.domain != home and self._is_domain(home):
            return None
        lane = self.get(node_id)
        if lane.address is not None:
            if sender.domain not in (home, lane.address.domain):
                # It is looked for where it was, and forgotten if it is not there any more.
                lane.is_asked = True
                return None
            del self._by_address[lane.address]
        lane.move(sender)
        self._by_address[sender] = lane
        return lane

    def forget(self, lane: NodeLane) -> None:
        """Know nothing of a node any more."""
        self._by_id.pop(lane.node_id, None)
        if lane.address is not None:
            self._by_address.pop(lane.address, None)

    # Who is gone.

    def watch(self) -> None:
        """Look for nodes that are silent, from now on."""
        self._timer = self._loop.call_later(SILENCE_S, self._look)

    def _look(self) -> None:
        self.watch()
        now = self._loop.time()
        for lane in self:
            if lane.is_asked:
                lane.is_asked, lane.watched_until = False, now + WATCH_S
            is_silent = lane.heard == lane.heard_before
            lane.heard_before = lane.heard
            if is_silent and now < lane.watched_until and lane.address is not None:
                self._begin_search(lane)

    def _begin_search(self, lane: NodeLane) -> None:
        if lane not in self._searches:
            self._searches[lane] = self._loop.create_task(self._search(lane))

    async def _search(self, lane: NodeLane) -> None:
        try:
            await self._ping(lane)
            lane.heard += 1
            lane.missing_since = None
        except NoRouteError as error:
            self.miss(lane, error)
        except PostroadError:
            # Busy or slow is not gone; it is looked for again.
            lane.missing_since = None
        finally:
            del self._searches[lane]

    def miss(self, lane: Lane, error: NoRouteError) -> None:
        """Somebody knows no way to a node: it is lost if that is its own domain, or if it lasts."""
        if not isinstance(lane, NodeLane) or lane.address is None:
            return
        is_left = error.peer == lane.address.domain
        if not is_left and error.peer == self._domain.name and self._is_satellite:
            # It has lost its cores, which says nothing about others.
            return
        lane.is_asked = True
        now = self._loop.time()
        if lane.missing_since is None:
            lane.missing_since = now
        if is_left or now - lane.missing_since >= GONE_S:
            self.forget(lane)
            self._on_lost(lane)

    async def close(self) -> None:
        """Look for nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
        searches = list(self._searches.values())
        for search in searches:
            search.cancel()
        if searches:
            await asyncio.wait(searches)
