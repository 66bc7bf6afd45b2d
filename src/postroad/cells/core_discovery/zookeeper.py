"""Core discovery from ephemeral nodes in ZooKeeper.

The path is `<root>/<cluster>/cores/<name>`; the data is JSON: `endpoints`, a list of `host:port`,
and `zone` if there is one. Satellites only watch.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from postroad.cells.core_discovery.core_discovery import BackgroundCoreDiscovery, CoreLocation
from postroad.cluster.discovery import (
    LocalRegistration,
    ZooKeeperRegistry,
    decode_znode_name,
    registry_path,
)
from postroad.core import Address
from postroad.core.errors import ConfigError


class _CoreRegistration(msgspec.Struct, omit_defaults=True):
    """Data of the node of a core. Unknown fields are ignored."""

    endpoints: list[str]
    zone: str | None = None


class ZooKeeperCoreDiscovery(BackgroundCoreDiscovery):
    """Core discovery from registrations in ZooKeeper.

    While ZooKeeper is unavailable, and for four session timeouts after, no core is removed. A
    living core whose session expired is removed only by domains that stayed connected, and is back
    within one session timeout, the longest time in which a client notices the expiry.

    Needs the extra `zookeeper`.

    Args:
        hosts: servers of one ensemble, `host:port,host:port`, optionally with an existing path
            as root of all nodes: `host:port,host:port/path`.
        cluster: name of the cluster; cores of other clusters are not found.
        root: parent path of all clusters; created by the first core if it does not exist.
        session_timeout_s: how long ZooKeeper keeps the node of a crashed core.
        connect_timeout_s: how long `start` waits for a server before it continues without.
        request_timeout_s: timeout of one request, and of closing the session.
        auth: pairs of scheme and credential, such as `("digest", "user:password")`.

    Raises:
        ConfigError: a setting is invalid.
        MissingExtraError: the extra is not installed.
    """

    def __init__(
        self,
        hosts: str,
        cluster: str,
        root: str = "/postroad",
        session_timeout_s: float = 10.0,
        *,
        connect_timeout_s: float = 3.0,
        request_timeout_s: float = 3.0,
        auth: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._entries = ZooKeeperRegistry(
            hosts,
            registry_path(root, cluster, "cores"),
            _read_location,
            purpose="core discovery with ZooKeeper",
            session_timeout_s=session_timeout_s,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            auth=auth,
        )
        super().__init__(self._entries.source, first_result_s=self._entries.first_result_s)

    async def _discover(self) -> None:
        local, location = None, self._location
        if location is not None:
            # A node of this name and these endpoints is from an earlier start of this domain.
            endpoints = set(location.endpoints)
            local = LocalRegistration[CoreLocation](
                location.name, _encode(location), lambda other: set(other.endpoints) == endpoints
            )
        async for cores in self._entries.watch(local, self._report):
            self._has_result.set()
            if cores is not None:
                self._publish_cores(cores.values())

    async def _deregister(self) -> None:
        await self._entries.close()


def _encode(location: CoreLocation) -> bytes:
    return msgspec.json.encode(_CoreRegistration([*map(str, location.endpoints)], location.zone))


def _read_location(node: str, data: bytes) -> CoreLocation | None:
    name = decode_znode_name(node)
    if name is None:
        return None
    try:
        registration = msgspec.json.decode(data, type=_CoreRegistration)
        endpoints = tuple(map(Address.parse, registration.endpoints))
        return CoreLocation(name, endpoints, registration.zone)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError):
        return None
