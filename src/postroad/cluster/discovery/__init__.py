"""Discovery of seeds: fixed addresses, DNS or ZooKeeper.

Also the parts that other discoveries share: background task, reporter, ZooKeeper registry.
"""

from postroad.cluster.discovery.background import (
    BackgroundDiscovery,
    BackgroundDiscoveryStatistics,
    Discovery,
    DiscoveryReporter,
    DiscoveryStatistics,
    SeedsCallback,
    StaticDiscovery,
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
