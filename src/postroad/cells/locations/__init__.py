"""Where the cores are: written down, told by the members of the cluster, or kept in ZooKeeper."""

from .locations import CoreDiscovery, CoreDiscoveryStatistics, CoreLocation, CoresCallback
from .membership import MembershipCoreDiscovery
from .static import StaticCoreDiscovery
from .zookeeper import ZooKeeperCoreDiscovery

__all__ = [
    "CoreDiscovery",
    "CoreDiscoveryStatistics",
    "CoreLocation",
    "CoresCallback",
    "MembershipCoreDiscovery",
    "StaticCoreDiscovery",
    "ZooKeeperCoreDiscovery",
]
