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
from postroad.cluster import ClusterAgent, Member
from postroad.cluster.discovery import (
    BackgroundDiscovery,
    BackgroundDiscoveryStatistics,
    DiscoveryReporter,
    validate_list,
    validate_port,
)
from postroad.core import Address, to_address
from postroad.core.errors import ConfigError, NameConflictError, SlowConsumerError, UsageError

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
        self, cores: Mapping[str, Iterable[Address | str]], zones: Mapping[str, str] | None = None
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


ROLE = "cells.role"
"""Member property with the role of a core; satellites have none."""
ZONE = "cells.zone"

_NO_CORE = Role.SATELLITE.value


class MembershipCoreDiscovery(BackgroundCoreDiscovery):
    """Core discovery from the members of the cluster, without a server.

    A domain has the name and the address of its member. A suspected member is still a core; it is
    removed when it has left or is declared dead.

    Args:
        agent: the cluster agent of this node; started before this, and stopped after it.
    """

    def __init__(self, agent: ClusterAgent) -> None:
        self._agent = agent
        # Last valid location of each core.
        self._cores: dict[str, CoreLocation] = {}
        super().__init__(f"members as {agent.service.name} sees them", first_result_s=1.0)

    def _on_start(self) -> None:
        local = self._agent.local_member
        if self._local.name != local.name:
            raise ConfigError(
                f"domain {self._local.name!r} must have the name of its member, {local.name!r}"
            )
        if self._location is None:
            return
        if self._location.endpoints != (local.address,):
            raise ConfigError(
                f"cannot register endpoints {self._location}: a core is dialed at the address "
                f"of its member, {local.address}"
            )
        self._agent.set_properties({ROLE: Role.CORE.value, ZONE: self._local.zone})
        self._counts.registrations += 1
        self._counts.is_registered = True

    async def _discover(self) -> None:
        """Follow membership events until the agent stops; the published cores stay then."""
        while True:
            try:
                await self._follow()
            except SlowConsumerError as error:
                self._report.report_failure("lost", "%s", error)
                continue
            except NameConflictError as error:
                self._report.report_failure("name", "%s", error)
            self._counts.is_connected = self._counts.is_registered = False
            return

    async def _follow(self) -> None:
        # Subscribed before the members are scanned, so that no event is missed in between.
        changes = self._agent.events()
        self._report.set_connected(True)
        self._scan_members()
        async for change in changes:
            if ROLE in change.member.properties or change.member.name in self._cores:
                self._scan_members()

    def _scan_members(self) -> None:
        # Invalid properties do not change a core that was found before.
        locations = [
            self._locate(member) or self._cores.get(member.name)
            for member in self._agent.members
            if member.properties.get(ROLE, _NO_CORE) != _NO_CORE
        ]
        self._cores = {core.name: core for core in locations if core is not None}
        self._publish_cores(self._cores.values())

    def _locate(self, member: Member) -> CoreLocation | None:
        try:
            return _read_location(member)
        except ConfigError as error:
            self._counts.skipped += 1
            self._report.warn(
                "skipped", "member %r skipped: its properties are invalid: %s", member.name, error
            )
            return None

    async def _deregister(self) -> None:
        if self._location is None:
            return
        try:
            self._agent.set_properties({ROLE: None, ZONE: None})
        except UsageError:
            # The agent was stopped already, and with it the properties are gone.
            return


def _read_location(member: Member) -> CoreLocation:
    role = member.properties[ROLE]
    if role != Role.CORE.value:
        raise ConfigError(f"invalid role {role!r}")
    return CoreLocation(member.name, (member.address,), member.properties.get(ZONE))
