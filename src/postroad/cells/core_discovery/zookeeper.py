"""Cores in ZooKeeper: each enters itself below a common path, and everybody watches.

The path is `<root>/<cluster>/cores/<name>`; the entry is ephemeral, its data is JSON: `endpoints`,
a list of `host:port`, and `zone` if there is one. Satellites never write.
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
    """What a core says of itself. Fields that are not known here are ignored."""

    endpoints: list[str]
    zone: str | None = None


class ZooKeeperCoreDiscovery(BackgroundCoreDiscovery):
    """Enters this domain in ZooKeeper if it is a core, and finds the cores there.

    While ZooKeeper is away, and for four session time-outs after, nobody is told to be gone. A core
    whose session was ended although it lives is told to be gone only by those who were connected
    all the while, and is back within one session time-out: that is how long it may take a client to
    notice.

    Needs the extra `zookeeper`.

    Args:
        hosts: servers of one ensemble, `host:port,host:port`, and a path that exists there if
            everything is to be kept below it: `host:port,host:port/path`.
        cluster: cores of other clusters are not found.
        root: the path under which all clusters are kept; made by the first core if it does not
            exist.
        session_timeout_s: how long ZooKeeper keeps the entry of a core that is gone.
        connect_timeout_s: how long `start` waits for a server before it goes on without.
        request_timeout_s: how long one answer, or the end of the session, is waited for.
        auth: pairs of scheme and credential, such as `("digest", "user:password")`.

    Raises:
        ConfigError: a setting is wrong.
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
            purpose="finding cores by ZooKeeper",
            session_timeout_s=session_timeout_s,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            auth=auth,
        )
        super().__init__(self._entries.source, first_answer_s=self._entries.first_answer_s)

    async def _discover(self) -> None:
        async for cores in self._entries.watch(self._local_registration(), self._report):
            self._answered.set()
            if cores is not None:
                self._publish_cores(cores.values())

    def _local_registration(self) -> LocalRegistration[CoreLocation] | None:
        if self._location is None:
            return None
        return LocalRegistration(self._local.name, _encode(self._location), self._is_local)

    def _is_local(self, location: CoreLocation) -> bool:
        """Whether an entry of this name is of this domain, before it was started again."""
        local_location = self._location
        return local_location is not None and set(location.endpoints) == set(
            local_location.endpoints
        )

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
