"""What every discovery promises.

A discovery says where nodes may be found, never who is alive: that is for the membership to find
out. So an outage of its source removes nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from postroad.core import Address

OnContacts: TypeAlias = Callable[[frozenset[Address]], None]
"""Told all addresses known now, the own one never among them."""


class DiscoveryStatistics(msgspec.Struct):
    """What is known now, and totals since the start."""

    is_connected: bool = False
    """The source answered when it was last asked."""
    contacts: int = 0
    """Addresses known now."""
    changes: int = 0
    """Times the addresses were told."""
    failures: int = 0
    """Times the source did not answer or refused."""
    registrations: int = 0
    """Times this node was entered in the source; more than one after a lost session."""
    conflicts: int = 0
    """Times another node held this node's name in the source."""
    skipped: int = 0
    """Entries of others that hold no address."""
    last_error: str = ""
    """What went wrong last, also when it is over by now."""


@runtime_checkable
class Discovery(Protocol):
    """Tells where nodes of the cluster may be found; never who is alive."""

    async def start(self, name: str, address: Address, on_contacts: OnContacts) -> None:
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
