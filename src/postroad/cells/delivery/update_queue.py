"""Pending routing updates of peers, rate limited, so that no peer can occupy the event loop.

An update costs the names that it contains and the routes that it changes. A peer waits in
proportion to that cost before its next update is applied. Of the updates that arrive meanwhile only
the latest is kept, because each contains the full advertisement. The cost of a peer outlives its
tunnel.
"""

from __future__ import annotations

from postroad.cells.routing.advertisements import AdvertisementUpdate, RoutingUpdate
from postroad.core.timing import NEVER

# Entries before those of peers that need not wait any more are purged.
_IDLE_MAX = 1_000


class RoutingUpdateQueue:
    """Latest pending update of each peer, with a rate limit.

    Args:
        names_per_s: names and route changes that one peer may cause per second.
    """

    def __init__(self, names_per_s: float) -> None:
        self._names_per_s = names_per_s
        self._latest: dict[str, RoutingUpdate | bytes] = {}
        # When the next update of a peer may be applied.
        self._ready_at: dict[str, float] = {}

    def put(self, name: str, update: RoutingUpdate | bytes) -> None:
        """Store an update of a peer, decoded or not; it replaces an older one."""
        previous = self._latest.get(name)
        if not (
            isinstance(previous, AdvertisementUpdate)
            and isinstance(update, AdvertisementUpdate)
            and (previous.incarnation, previous.number) > (update.incarnation, update.number)
        ):
            self._latest[name] = update

    def discard(self, name: str) -> None:
        """Drop the pending update of a peer whose tunnel is lost."""
        self._latest.pop(name, None)

    def pop_ready(self, now: float) -> list[tuple[str, RoutingUpdate | bytes]]:
        """Remove and return the updates that may be applied now, with their peers."""
        ready = [name for name in self._latest if self._ready_at.get(name, 0.0) <= now]
        return [(name, self._latest.pop(name)) for name in ready]

    def charge(self, name: str, names: int, now: float) -> None:
        """Charge a peer for names that were processed or routes that were changed."""
        if len(self._ready_at) > _IDLE_MAX:
            self._ready_at = {peer: at for peer, at in self._ready_at.items() if at > now}
        self._ready_at[name] = max(self._ready_at.get(name, now), now) + names / self._names_per_s

    def deadline(self) -> float:
        """Return when the next update may be applied, or NEVER."""
        return min((self._ready_at.get(name, 0.0) for name in self._latest), default=NEVER)
