"""The contract of core discovery, its base class, and discovery from a fixed list.

A location says where a core can be dialed, not that the core is alive. An unavailable source
removes no core. A removed core may be back soon, so the dialer keeps it for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from postroad.cells.addresses import DomainInfo, Role, validate_domain_name, validate_zone
from postroad.cluster.discovery import (
    BackgroundDiscovery,
    BackgroundDiscoveryStatistics,
    DiscoveryReporter,
    validate_list,
    validate_port,
)
from postroad.core import Address, to_address
from postroad.core.errors import ConfigError

ENDPOINTS_MAX = 16


class CoreLocation(msgspec.Struct, frozen=True):
    """Endpoints of a core domain."""

    name: str
    """Name of the core domain."""
    endpoints: tuple[Address, ...]
    """Addresses of the same domain, best first."""
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
"""Called with all cores by their names, the local domain excluded."""


class CoreDiscoveryStatistics(BackgroundDiscoveryStatistics):
    """Counters of a core discovery."""

    cores: int = 0
    """Cores found now, the local domain excluded."""


@runtime_checkable
class CoreDiscovery(Protocol):
    """Finds the core domains, and registers this domain if it is a core."""

    async def start(
        self, local: DomainInfo, endpoints: tuple[Address, ...], on_cores: CoresCallback
    ) -> None:
        """Register this domain if it is a core, and start to discover the others.

        `on_cores` is called on the loop before this returns, and at every change. An unavailable
        source delays that by a few seconds at most and is retried in the background: the first
        call then has no cores.

        Args:
            endpoints: addresses of this domain; ignored if it is a satellite.

        Raises:
            ConfigError: a setting is invalid.
            UsageError: it was started before; create a new one.
        """

    async def stop(self) -> None:
        """Deregister, within bounded time. `on_cores` is not called any more."""

    def statistics(self) -> CoreDiscoveryStatistics:
        """Return a copy of the counters."""


logger = logging.getLogger("postroad.cells.locations")


class BackgroundCoreDiscovery(BackgroundDiscovery[Mapping[str, CoreLocation]]):
    """Base class of core discoveries; see `CoreDiscovery` for the contract."""

    def __init__(self, source: str, *, first_result_s: float) -> None:
        self._counts = CoreDiscoveryStatistics()
        report = DiscoveryReporter(logger, source, self._counts)
        super().__init__(report, "cores", {}, first_result_s=first_result_s)
        # Set by start.
        self._local: DomainInfo
        # The location to register; None for a satellite.
        self._location: CoreLocation | None

    async def start(
        self, local: DomainInfo, endpoints: tuple[Address, ...], on_cores: CoresCallback
    ) -> None:
        """Register and start to discover; see `CoreDiscovery.start`."""
        self._require_new()
        is_core = local.role is Role.CORE
        self._local = local
        self._location = CoreLocation(local.name, tuple(endpoints), local.zone) if is_core else None
        self._on_start()
        await self._start(on_cores)

    def _on_start(self) -> None:
        """Validate settings, or register, before the discovery starts."""

    def _publish_cores(self, cores: Iterable[CoreLocation]) -> None:
        """Publish the cores, if they differ from those published last."""
        others = {core.name: core for core in cores if core.name != self._local.name}
        self._publish(MappingProxyType(others))

    def statistics(self) -> CoreDiscoveryStatistics:
        return msgspec.structs.replace(self._counts, cores=len(self._published or ()))


class StaticCoreDiscovery(BackgroundCoreDiscovery):
    """Core discovery from a fixed list.

        StaticCoreDiscovery({"C1": ["10.0.0.1:26502"], "C2": ["10.0.0.2:26502"]})

    Args:
        cores: endpoints of each core by its name; may contain the local domain, so that all nodes
            can share one list.
        zones: zones of cores by their names.
    """

    def __init__(
        self,
        cores: Mapping[str, Iterable[Address | str]],
        zones: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(cores, Mapping):
            raise ConfigError(f"cores must be a mapping of names to endpoints, not {cores!r}")
        zones = zones or {}
        if unknown := zones.keys() - cores.keys():
            raise ConfigError(
                f"zones has names that are not in cores: {', '.join(sorted(unknown))}"
            )
        self._cores = {
            name: CoreLocation(name, _parse(name, endpoints), zones.get(name))
            for name, endpoints in cores.items()
        }
        super().__init__(", ".join(self._cores) or "no cores", first_result_s=1.0)

    async def _discover(self) -> None:
        self._report.set_connected(True)
        self._counts.is_registered = self._location is not None and self._local.name in self._cores
        if self._location is not None and self._cores and not self._counts.is_registered:
            self._report.warn(
                "unlisted",
                "core %r is not in its own list of cores: other domains may not dial it",
                self._local.name,
            )
        self._publish_cores(self._cores.values())

    async def _deregister(self) -> None:
        """Do nothing: a fixed list has no registrations."""


def _parse(name: str, endpoints: Iterable[Address | str]) -> tuple[Address, ...]:
    return tuple(map(to_address, validate_list(f"endpoints of {name!r}", endpoints)))
