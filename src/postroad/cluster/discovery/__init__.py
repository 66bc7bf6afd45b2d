"""Finding the other nodes of a cluster: fixed addresses, DNS or ZooKeeper.

What is shared with other searches in the background is here too: their life, what they report, and
entries in ZooKeeper.
"""

from postroad.cluster.discovery.background import BackgroundDiscovery, StaticDiscovery
from postroad.cluster.discovery.discovery import (
    BackgroundDiscoveryStatistics,
    Discovery,
    DiscoveryReporter,
    DiscoveryStatistics,
    SeedsCallback,
    validate_list,
    validate_port,
)
from postroad.cluster.discovery.dns import DnsDiscovery
from postroad.cluster.discovery.zookeeper import ZooKeeperDiscovery
from postroad.cluster.discovery.zookeeper_registry import (
    LocalRegistration,
    ZooKeeperRegistry,
    decode_znode_name,
    registry_path,
)

__all__ = [
    "BackgroundDiscovery",
    "BackgroundDiscoveryStatistics",
    "Discovery",
    "DiscoveryReporter",
    "DiscoveryStatistics",
    "DnsDiscovery",
    "LocalRegistration",
    "SeedsCallback",
    "StaticDiscovery",
    "ZooKeeperDiscovery",
    "ZooKeeperRegistry",
    "decode_znode_name",
    "registry_path",
    "validate_list",
    "validate_port",
]
