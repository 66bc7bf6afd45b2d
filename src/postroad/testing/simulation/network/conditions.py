"""How the ways between hosts are: delays, losses, partitions."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from postroad.core.errors import ConfigError

# Within one host nothing is lost and everything is quick.
_LOCAL_DELAY_S = (0.000_005, 0.000_05)
# What reordering adds to the delay of a datagram, in longest delays.
_LATE_FACTOR = 10.0


class LinkConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to data between two hosts. The default is a good local network."""

    delay_s: tuple[float, float] = (0.000_1, 0.001)
    """Least and most time from one host to the other."""
    loss: float = 0.0
    """Chance of a datagram to be lost."""
    duplicate: float = 0.0
    """Chance of a datagram to arrive twice."""
    reorder: float = 0.0
    """Chance of a datagram to be overtaken by later ones."""

    def __post_init__(self) -> None:
        least, most = self.delay_s
        if not 0 <= least <= most:
            raise ConfigError(f"delay_s={self.delay_s} must be two times, the shorter one first")
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be a chance from 0 to 1")


DEFAULT_CONDITIONS = LinkConditions()


class LinkTable:
    """The way from each host to each other, by the names of both."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.default = DEFAULT_CONDITIONS
        self._by_pair: dict[tuple[str, str], LinkConditions] = {}
        self._blocked: set[tuple[str, str]] = set()

    def set(self, conditions: LinkConditions, between: tuple[str, str] | None) -> None:
        """Change all ways, or those between two hosts in both directions."""
        if between is None:
            self.default = conditions
            self._by_pair.clear()
        else:
            first, second = between
            self._by_pair[first, second] = self._by_pair[second, first] = conditions

    def get(self, source: str, target: str) -> LinkConditions:
        """How it is now."""
        return self._by_pair.get((source, target), self.default) if self._by_pair else self.default

    def delay(self, source: str, target: str) -> float:
        """How long the next thing takes; decided by chance."""
        least, most = _LOCAL_DELAY_S if source == target else self.get(source, target).delay_s
        return least + (most - least) * self._rng.random()

    def reorder_delay(self, source: str, target: str) -> float:
        """How much longer a datagram takes that others overtake."""
        return self.get(source, target).delay_s[1] * _LATE_FACTOR * self._rng.random()

    def is_reachable(self, source: str, target: str) -> bool:
        """Whether anything gets from the source to the target."""
        return (source, target) not in self._blocked

    def block(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Let nothing through from any source to any target; a host always reaches itself."""
        self._blocked |= {(a, b) for a in sources for b in targets if a != b}

    def unblock(self, between: tuple[Iterable[str], Iterable[str]] | None) -> None:
        """Let everything through again, or what goes between the groups."""
        if between is None:
            self._blocked.clear()
        else:
            firsts, seconds = (set(group) for group in between)
            self._blocked -= {(a, b) for a in firsts for b in seconds}
            self._blocked -= {(b, a) for a in firsts for b in seconds}
