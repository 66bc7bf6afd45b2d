"""What every discovery promises.

A discovery says where nodes may be found, never who is alive: that is for the membership to find
out. So an outage of its source removes nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from postroad.core import Address

from .reports import BackgroundDiscoveryStatistics

SeedsCallback: TypeAlias = Callable[[frozenset[Address]], None]
"""Told all addresses known now, the own one never among them."""


class DiscoveryStatistics(BackgroundDiscoveryStatistics):
    """What is known of contacts now, and totals since the start."""

    contacts: int = 0
    """Addresses known now."""


@runtime_checkable
class Discovery(Protocol):
    """Tells where nodes of the cluster may be found; never who is alive."""

    async def start(self, name: str, address: Address, on_contacts: SeedsCallback) -> None:
        """Begin to look; `on_contacts` is called on the loop now and at every change.

        A source that is away delays this by a few seconds at most and is asked again in the
        background: the first call then has nobody in it.

        Raises:
            ConfigError: a setting is wrong.
            UsageError: it was started before; make a new one.
        """

    async def stop(self) -> None:
        """Withdraw what was registered, within bounded time. Nothing is called from then on."""

    def statistics(self) -> DiscoveryStatistics:
        """A copy of the numbers as they are now."""
