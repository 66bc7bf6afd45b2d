"""Where the cores are: written down, told by the members of the cluster, or kept in ZooKeeper."""

from postroad.cells.core_discovery.core_discovery import (
    CoreDiscovery,
    CoreDiscoveryStatistics,
    CoreLocation,
    CoresCallback,
    StaticCoreDiscovery,
)
from postroad.cells.core_discovery.membership import MembershipCoreDiscovery
from postroad.cells.core_discovery.zookeeper import ZooKeeperCoreDiscovery

__all__ = [
    "CoreDiscovery",
    "CoreDiscoveryStatistics",
    "CoreLocation",
    "CoresCallback",
    "MembershipCoreDiscovery",
    "StaticCoreDiscovery",
    "ZooKeeperCoreDiscovery",
]
