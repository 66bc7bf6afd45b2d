"""Core discovery from member properties of the cluster.

A domain has the name and the address of its member. A suspected member is still a core; it is
removed when it has left or is declared dead.
"""

from __future__ import annotations

from postroad.cells.addresses import Role
from postroad.cells.core_discovery.core_discovery import BackgroundCoreDiscovery, CoreLocation
from postroad.cluster import ClusterAgent, Member
from postroad.core.errors import ConfigError, NameConflictError, SlowConsumerError, UsageError

ROLE = "cells.role"
"""Member property with the role of a core; satellites have none."""
ZONE = "cells.zone"

_NO_CORE = Role.SATELLITE.value


class MembershipCoreDiscovery(BackgroundCoreDiscovery):
    """Core discovery from the members of the cluster, without a server.

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
