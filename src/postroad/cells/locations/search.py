"""A search for cores in the background, whatever its source."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from postroad.cells.domain import DomainInfo, Role
from postroad.cluster.discovery import BackgroundDiscovery, DiscoveryReporter
from postroad.core import Address

from .locations import CoreDiscoveryStatistics, CoreLocation, CoresCallback

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
        return msgspec.structs.replace(self._counts, cores=len(self._found or ()))
