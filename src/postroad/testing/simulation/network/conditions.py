"""Conditions of the links between hosts: delays, losses, partitions."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from postroad.core.errors import ConfigError

# Within one host nothing is lost and delays are short.
_LOCAL_DELAY_S = (0.000_005, 0.000_05)
# The delay that reordering adds to a datagram, in maximum delays.
_LATE_FACTOR = 10.0


class LinkConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Delay, loss, duplication and reordering of a link; by default a good local network."""

    delay_s: tuple[float, float] = (0.000_1, 0.001)
    """Minimum and maximum delay."""
    loss: float = 0.0
    """Probability that a datagram is lost."""
    duplicate: float = 0.0
    """Probability that a datagram arrives twice."""
    reorder: float = 0.0
    """Probability that later datagrams overtake a datagram."""

    def __post_init__(self) -> None:
        least, most = self.delay_s
        if not 0 <= least <= most:
            raise ConfigError(f"delay_s={self.delay_s} must be two times, the shorter one first")
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be a probability from 0 to 1")


DEFAULT_CONDITIONS = LinkConditions()


class LinkTable:
    """Conditions of the link from each host to each other, by their names."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.default = DEFAULT_CONDITIONS
        self._by_pair: dict[tuple[str, str], LinkConditions] = {}
        self._blocked: set[tuple[str, str]] = set()

    def set(self, conditions: LinkConditions, between: tuple[str, str] | None) -> None:
        """Set the conditions of all links, or of both directions between two hosts."""
        if between is None:
            self.default = conditions
            self._by_pair.clear()
        else:
            first, second = between
            self._by_pair[first, second] = self._by_pair[second, first] = conditions

    def get(self, source: str, target: str) -> LinkConditions:
        return self._by_pair.get((source, target), self.default) if self._by_pair else self.default

    def delay(self, source: str, target: str) -> float:
        """Return a random delay for the next packet."""
        least, most = _LOCAL_DELAY_S if source == target else self.get(source, target).delay_s
        return least + (most - least) * self._rng.random()

    def reorder_delay(self, source: str, target: str) -> float:
        """Return the additional delay of a reordered datagram."""
        return self.get(source, target).delay_s[1] * _LATE_FACTOR * self._rng.random()

    def is_reachable(self, source: str, target: str) -> bool:
        return (source, target) not in self._blocked

    def block(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Block the links from all sources to all targets; a host always reaches itself."""
        self._blocked |= {(a, b) for a in sources for b in targets if a != b}

    def unblock(self, between: tuple[Iterable[str], Iterable[str]] | None) -> None:
        """Unblock all links, or those between two groups."""
        if between is None:
            self._blocked.clear()
        else:
            firsts, seconds = (set(group) for group in between)
            self._blocked -= {(a, b) for a in firsts for b in seconds}
            self._blocked -= {(b, a) for a in firsts for b in seconds}
