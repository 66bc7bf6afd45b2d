"""What everybody promises who tells where the cores are.

A location says where a core can be dialed, never that it lives. A source that is away removes
nobody; a core that is told to be gone may be back in a moment, so whoever dials waits a while
before it hangs up.
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


logger = logging.getLogger("postroad.cells.locations")


class BackgroundCoreDiscovery(BackgroundDiscovery[Mapping[str, CoreLocation]]):
    """Looks for cores; see `Locations` for what it promises."""

    def __init__(self, source: str, *, first_answer_s: float) -> None:
        self._counts = CoreDiscoveryStatistics()
        report = DiscoveryReporter(logger, source, self._counts)
        super().__init__(report, "cores", {}, first_answer_s=first_answer_s)
        # Set by start.
        self._own: DomainInfo
        # What is to be registered; None for a satellite.
        self._location: CoreLocation | None

    async def start(
        self, own: DomainInfo, endpoints: tuple[Address, ...], on_cores: CoresCallback
    ) -> None:
        """Register if this domain is a core, and begin to look; see `Locations.start`."""
        self._require_new()
        is_core = own.role is Role.CORE
        self._own = own
        self._location = CoreLocation(own.name, tuple(endpoints), own.zone) if is_core else None
        self._on_start()
        await self._start(on_cores)

    def _on_start(self) -> None:
        """Check or do what may be refused before the search begins."""

    def _publish_cores(self, found: Iterable[CoreLocation]) -> None:
        """Pass on the cores known now, if they differ from those told last."""
        others = {core.name: core for core in found if core.name != self._own.name}
        self._publish(MappingProxyType(others))

    def statistics(self) -> CoreDiscoveryStatistics:
        """A copy of the numbers as they are now."""
        return msgspec.structs.replace(self._counts, cores=len(self._published or ()))


class StaticCoreDiscovery(BackgroundCoreDiscovery):
    """Knows the cores it is given, and no others.

        StaticCoreDiscovery({"C1": ["10.0.0.1:26502"], "C2": ["10.0.0.2:26502"]})

    Args:
        cores: by its name, where each can be dialed; the own domain may be among them, so that all
            can share one list.
        zones: by its name, the zone of each core that has one.
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
            raise ConfigError(f"zones of {', '.join(sorted(unknown))}, which are no cores")
        self._cores = {
            name: CoreLocation(name, _parse(name, endpoints), zones.get(name))
            for name, endpoints in cores.items()
        }
        super().__init__(", ".join(self._cores) or "no cores", first_answer_s=1.0)

    async def _discover(self) -> None:
        self._set_connected(True)
        self._counts.is_registered = self._location is not None and self._own.name in self._cores
        if self._location is not None and self._cores and not self._counts.is_registered:
            self._report.warn(
                "unlisted", "the core %r is not in its own list; who dials it?", self._own.name
            )
        self._publish_cores(self._cores.values())

    async def _deregister(self) -> None:
        """Nothing is registered anywhere."""


def _parse(name: str, endpoints: Iterable[Address | str]) -> tuple[Address, ...]:
    return tuple(map(to_address, validate_list(f"endpoints of {name!r}", endpoints)))
