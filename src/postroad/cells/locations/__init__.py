"""Where the cores are: written down, told by the members of the cluster, or kept in ZooKeeper."""

from .locations import CoreLocation, Locations, LocationStatistics, OnCores
from .membership import MembershipLocations
from .static import StaticLocations
from .zookeeper import ZooKeeperLocations

__all__ = [
    "CoreLocation",
    "LocationStatistics",
    "Locations",
    "MembershipLocations",
    "OnCores",
    "StaticLocations",
    "ZooKeeperLocations",
]
