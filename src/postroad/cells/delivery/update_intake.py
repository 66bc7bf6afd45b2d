"""Snapshots of peers that wait for their turn: none of them takes more than its share of the time.

A snapshot costs what it names and what it changes. A peer whose snapshots have cost much waits
accordingly before the next one is looked at; of those that come meanwhile only the latest counts,
which has all that the others had. What peers have cost is remembered beyond their tunnels.
"""

from __future__ import annotations

from postroad.cells.routing.advertisements import AdvertisementUpdate, RoutingUpdate
from postroad.core.timing import NEVER

# Peers remembered that owe no time any more, before they are looked for and forgotten.
_IDLE_MAX = 1_000


class Intake:
    """What peers sent and nobody has looked at.

    Args:
        names_per_s: how much of a peer is looked at; what is changed counts as well.
    """

    def __init__(self, names_per_s: float) -> None:
        self._names_per_s = names_per_s
        self._latest: dict[str, RoutingUpdate | bytes] = {}
        # When the next snapshot of a peer may be looked at.
        self._ready_at: dict[str, float] = {}

    def put(self, name: str, news: RoutingUpdate | bytes) -> None:
        """A peer sent something, read or not; what is older is of no interest any more."""
        before = self._latest.get(name)
        if not (
            isinstance(before, AdvertisementUpdate)
            and isinstance(news, AdvertisementUpdate)
            and (before.incarnation, before.number) > (news.incarnation, news.number)
        ):
            self._latest[name] = news

    def drop(self, name: str) -> None:
        """Forget what a peer sent: its tunnel is gone."""
        self._latest.pop(name, None)

    def take(self, now: float) -> list[tuple[str, RoutingUpdate | bytes]]:
        """What is to be looked at now, and from which peers."""
        ready = [name for name in self._latest if self._ready_at.get(name, 0.0) <= now]
        return [(name, self._latest.pop(name)) for name in ready]

    def charge(self, name: str, names: int, now: float) -> None:
        """So many names of a peer were looked at, or changed."""
        if len(self._ready_at) > _IDLE_MAX:
            self._ready_at = {peer: at for peer, at in self._ready_at.items() if at > now}
        self._ready_at[name] = max(self._ready_at.get(name, now), now) + names / self._names_per_s

    def deadline(self) -> float:
        """When there is something to be taken."""
        return min((self._ready_at.get(name, 0.0) for name in self._latest), default=NEVER)
