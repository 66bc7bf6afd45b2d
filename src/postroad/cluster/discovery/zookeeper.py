"""Seeds from ZooKeeper: every node registers its address below a common path.

The path is `<root>/<cluster>/members/<name>`; the znode is ephemeral, its data is JSON. A znode
ends with the session of its owner; while ZooKeeper is unreachable, no seed is removed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from postroad.cluster.discovery.background import SeedDiscovery, validate_port
from postroad.cluster.discovery.zookeeper_registry import (
    LocalRegistration,
    ZooKeeperRegistry,
    registry_path,
)
from postroad.core import Address
from postroad.core.errors import ConfigError


class _NodeRegistration(msgspec.Struct):
    """Data of a node's znode. Unknown fields are ignored."""

    address: str


class ZooKeeperDiscovery(SeedDiscovery):
    """Registers this node in ZooKeeper and finds the others there. Needs the extra `zookeeper`.

    Args:
        hosts: servers of one ensemble, `host:port,host:port`, with an existing chroot path if
            everything shall be below it: `host:port,host:port/path`.
        cluster: name of the cluster; nodes of other clusters are not found.
        root: path of all clusters; created if it does not exist.
        session_timeout_s: how long ZooKeeper keeps the znode of a node that is gone.
        connect_timeout_s: how long `start` waits for a server before it continues without.
        request_timeout_s: timeout of a request, and of the end of the session.
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
            registry_path(root, cluster, "members"),
            _read_address,
            purpose="ZooKeeper discovery",
            session_timeout_s=session_timeout_s,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            auth=auth,
        )
        super().__init__(self._entries.source, first_result_s=self._entries.first_result_s)

    async def _discover(self) -> None:
        data = msgspec.json.encode(_NodeRegistration(str(self._address)))
        local = LocalRegistration[Address](
            self._name, data, lambda address: address == self._address
        )
        async for members in self._entries.watch(local, self._report):
            self._has_result.set()
            if members is not None:
                self._publish_addresses(members.values())

    async def _deregister(self) -> None:
        await self._entries.close()


def _read_address(_node: str, data: bytes) -> Address | None:
    try:
        registration = msgspec.json.decode(data, type=_NodeRegistration)
        return validate_port(Address.parse(registration.address))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError):
        return None
