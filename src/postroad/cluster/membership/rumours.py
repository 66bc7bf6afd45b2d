"""News on their way: each is passed on a number of times, the least told first."""

from __future__ import annotations

import math

from .packets import fit_records
from .records import MemberRecord


def retransmit_limit(size: int, factor: int) -> int:
    """How often a node passes on a piece of news in a cluster of that size."""
    return factor * max(1, math.ceil(math.log10(size + 1)))


class GossipQueue:
    """At most one piece of news for each member, the newest."""

    def __init__(self) -> None:
        # News by the number of times they were told, then by member.
        self._by_transmits: list[dict[str, MemberRecord]] = [{}]
        # Member -> how often its news were told.
        self._times: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._times)

    def add(self, record: MemberRecord) -> None:
        """Have the news passed on; they replace older ones of the same member."""
        self.drop(record.name)
        self._times[record.name] = 0
        self._by_transmits[0][record.name] = record

    def drop(self, name: str) -> None:
        """Forget the news of a member."""
        times = self._times.pop(name, None)
        if times is not None:
            del self._by_transmits[times][name]

    def pop_batch(self, room: int, *, times_max: int, full_bytes_max: int) -> list[MemberRecord]:
        """News that fit the room; those told so often are dropped."""
        waiting = (record for level in self._by_transmits for record in level.values())
        taken = fit_records(waiting, room, full_bytes_max=full_bytes_max)
        for record in taken:
            self._count(record.name, times_max)
        return taken

    def _count(self, name: str, times_max: int) -> None:
        times = self._times[name] + 1
        record = self._by_transmits[times - 1].pop(name)
        if times >= times_max:
            del self._times[name]
            return
        if times == len(self._by_transmits):
            self._by_transmits.append({})
        self._times[name] = times
        self._by_transmits[times][name] = record
