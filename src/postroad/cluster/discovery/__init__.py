"""Finding the other nodes of a cluster: fixed addresses, DNS or ZooKeeper.

What is shared with other searches in the background is here too: their life, what they report, and
entries in ZooKeeper.
"""

from .background import BackgroundDiscovery
from .checks import validate_list, validate_port
from .contacts import Discovery, DiscoveryStatistics, SeedsCallback
from .dns import DnsDiscovery
from .entries import LocalRegistration, ZooKeeperRegistry
from .paths import decode_znode_name, registry_path
from .registry import ZooKeeperDiscovery
from .reports import BackgroundDiscoveryStatistics, DiscoveryReporter
from .static import StaticDiscovery

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
