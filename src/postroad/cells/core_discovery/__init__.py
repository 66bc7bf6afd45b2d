"""Core discovery: from a fixed list, from cluster members, or from ZooKeeper."""

from postroad.cells.core_discovery.core_discovery import (
    CoreDiscovery,
    CoreLocation,
    MembershipCoreDiscovery,
    StaticCoreDiscovery,
)
from postroad.cells.core_discovery.zookeeper import ZooKeeperCoreDiscovery

__all__ = [
    "CoreDiscovery",
    "CoreLocation",
    "MembershipCoreDiscovery",
    "StaticCoreDiscovery",
    "ZooKeeperCoreDiscovery",
]
