"""Finding the other nodes of a cluster: fixed addresses, DNS or ZooKeeper."""

from .contacts import Discovery, DiscoveryStatistics, OnContacts
from .dns import DnsDiscovery
from .registry import ZooKeeperDiscovery
from .static import StaticDiscovery

__all__ = [
    "Discovery",
    "DiscoveryStatistics",
    "DnsDiscovery",
    "OnContacts",
    "StaticDiscovery",
    "ZooKeeperDiscovery",
]
