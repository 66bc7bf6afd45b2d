"""What everybody promises who tells where the cores are.

A location says where a core can be dialed, never that it lives. A source that is away removes
nobody; a core that is told to be gone may be back in a moment, so whoever dials waits a while
before it hangs up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from postroad.cells.address import validate_domain_name, validate_zone
from postroad.cells.domain import DomainInfo
from postroad.cluster.discovery import BackgroundDiscoveryStatistics, validate_port
from postroad.core import Address
from postroad.core.errors import ConfigError

ENDPOINTS_MAX = 16


class CoreLocation(msgspec.Struct, frozen=True):
    """Where the tunnels of a core can be dialed."""

    name: str
    """The core's domain."""
    endpoints: tuple[Address, ...]
    """Ways to the same domain, the best first."""
    zone: str | None = None

    def __post_init__(self) -> None:
        validate_domain_name(self.name)
        if not 0 < len(self.endpoints) <= ENDPOINTS_MAX:
            raise ConfigError(
                f"core {self.name!r} has {len(self.endpoints)} endpoints; "
                f"it must have 1 to {ENDPOINTS_MAX}"
            )
        for endpoint in self.endpoints:
            validate_port(endpoint)
        if self.zone is not None:
            validate_zone(self.zone)

    def __str__(self) -> str:
        return ", ".join(map(str, self.endpoints))


CoresCallback: TypeAlias = Callable[[Mapping[str, CoreLocation]], None]
"""Told all cores known now by their names, the own domain never among them."""


class CoreDiscoveryStatistics(BackgroundDiscoveryStatistics):
    """What is known of cores now, and totals since the start."""

    cores: int = 0
    """Cores known now, the own domain not counted."""


@runtime_checkable
class CoreDiscovery(Protocol):
    """Tells every domain where the cores are, and the others where this one is, if it is one."""

    async def start(
        self, own: DomainInfo, endpoints: tuple[Address, ...], on_cores: CoresCallback
    ) -> None:
        """Register if this domain is a core, and begin to look for the others.

        `on_cores` is called on the loop before this returns, and at every change. A source that is
        away delays that by a few seconds at most and is asked again in the background: the first
        call then has nobody in it.

        Args:
            own: this domain.
            endpoints: where it can be dialed; of no interest if it is a satellite.
            on_cores: told all other cores.

        Raises:
            ConfigError: a setting is wrong.
            UsageError: it was started before; make a new one.
        """

    async def stop(self) -> None:
        """Withdraw what was registered, within bounded time. Nothing is called from then on."""

    def statistics(self) -> CoreDiscoveryStatistics:
        """A copy of the numbers as they are now."""
