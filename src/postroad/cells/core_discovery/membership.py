"""Cores among the members of the cluster: each says so in its properties.

A domain is a member, so its name is the member's and it is dialed at the member's address. A
member that is suspected is still one; it is told to be gone when it has left, or is declared dead.
"""

from __future__ import annotations

from collections.abc import Iterator

from postroad.cells.addresses import Role
from postroad.cells.core_discovery.core_discovery import BackgroundCoreDiscovery, CoreLocation
from postroad.cluster import ClusterAgent, Member, MembershipEvent
from postroad.core.errors import ConfigError, NameConflictError, SlowConsumerError, UsageError

ROLE = "cells.role"
"""The property that says that a member is a core; satellites have none."""
ZONE = "cells.zone"

_NO_CORE = Role.SATELLITE.value


class MembershipCoreDiscovery(BackgroundCoreDiscovery):
    """Finds the cores among the members, without any server.

    Args:
        agent: makes this node a member; started before this, and stopped after it.
    """

    def __init__(self, agent: ClusterAgent) -> None:
        self._agent = agent
        # What each core was when its properties could be read.
        self._cores: dict[str, CoreLocation] = {}
        super().__init__(f"members as {agent.service.name} sees them", first_answer_s=1.0)

    def _on_start(self) -> None:
        local = self._agent.local_member
        if self._local.name != local.name:
            raise ConfigError(f"the domain {self._local.name!r} must be called {local.name!r}")
        if self._location is None:
            return
        if self._location.endpoints != (local.address,):
            raise ConfigError(
                f"endpoints {self._location} cannot be told: members are dialed at their "
                f"address, {local.address}"
            )
        self._agent.set_properties({ROLE: Role.CORE.value, ZONE: self._local.zone})
        self._counts.registrations += 1
        self._counts.is_registered = True

    async def _discover(self) -> None:
        """Follow the changes for as long as the agent lives; what was told stays told then."""
        while True:
            try:
                await self._follow()
            except SlowConsumerError as error:
                self._warn("lost", "%s", error)
                continue
            except NameConflictError as error:
                self._warn("name", "%s", error)
            self._counts.is_connected = self._counts.is_registered = False
            return

    async def _follow(self) -> None:
        # Opened before the members are read, so that no change is missed between the two.
        changes = self._agent.events()
        self._set_connected(True)
        self._scan_members()
        async for change in changes:
            if self._concerns_cores(change):
                self._scan_members()

    def _concerns_cores(self, change: MembershipEvent) -> bool:
        return ROLE in change.member.properties or change.member.name in self._cores

    def _scan_members(self) -> None:
        """Tell of all who are cores now, however many changes that took."""
        self._cores = {core.name: core for core in self._find_cores()}
        self._publish_cores(self._cores.values())

    def _find_cores(self) -> Iterator[CoreLocation]:
        for member in self._agent.members:
            if member.properties.get(ROLE, _NO_CORE) != _NO_CORE:
                # What cannot be read changes nothing about one that was known before.
                location = self._locate(member) or self._cores.get(member.name)
                if location is not None:
                    yield location

    def _locate(self, member: Member) -> CoreLocation | None:
        try:
            return _read_location(member)
        except ConfigError as error:
            self._counts.skipped += 1
            self._report.warn("skipped", "member %r cannot be read: %s", member.name, error)
            return None

    async def _deregister(self) -> None:
        if self._location is None:
            return
        try:
            self._agent.set_properties({ROLE: None, ZONE: None})
        except UsageError:
            # It was stopped already, and who is no member has no properties.
            return


def _read_location(member: Member) -> CoreLocation:
    role = member.properties[ROLE]
    if role != Role.CORE.value:
        raise ConfigError(f"{role!r} is no role")
    return CoreLocation(member.name, (member.address,), member.properties.get(ZONE))
