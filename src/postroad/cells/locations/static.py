"""Cores that are written down once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from postroad.cluster.discovery import validate_list
from postroad.core import Address, to_address
from postroad.core.errors import ConfigError

from .locations import CoreLocation
from .search import BackgroundCoreDiscovery


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
