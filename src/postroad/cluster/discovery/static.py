"""Contacts that are written down once."""

from __future__ import annotations

from collections.abc import Iterable

from postroad.core import Address, to_address

from .background import SeedDiscovery
from .checks import validate_list, validate_port


class StaticDiscovery(SeedDiscovery):
    """Knows the addresses it is given, and no others.

    Args:
        addresses: where nodes may be found, `host:port`; the own one may be among them in the
            same spelling, so that all nodes can share one list. May be empty, for the first node.
    """

    def __init__(self, addresses: Iterable[Address | str] = ()) -> None:
        listed = validate_list("addresses", addresses)
        self._addresses = frozenset(validate_port(to_address(address)) for address in listed)
        super().__init__(_describe(self._addresses), first_answer_s=1.0)

    async def _discover(self) -> None:
        self._set_connected(True)
        self._publish_addresses(self._addresses)

    async def _deregister(self) -> None:
        """Nothing is registered anywhere."""


def _describe(addresses: Iterable[Address]) -> str:
    return ",".join(sorted(map(str, addresses))) or "nobody"
