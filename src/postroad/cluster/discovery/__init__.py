"""Finding the other nodes of a cluster: fixed addresses, DNS or ZooKeeper.

What is shared with other searches in the background is here too: their life, what they report, and
entries in ZooKeeper.
"""

from .background import BackgroundSearch
from .checks import check_list, check_port
from .contacts import Discovery, DiscoveryStatistics, OnContacts
from .dns import DnsDiscovery
from .entries import OwnEntry, ZooKeeperEntries
from .paths import entries_path, name_of
from .registry import ZooKeeperDiscovery
from .reports import SearchReport, SearchStatistics
from .static import StaticDiscovery

__all__ = [
    "BackgroundSearch",
    "Discovery",
    "DiscoveryStatistics",
    "DnsDiscovery",
    "OnContacts",
    "OwnEntry",
    "SearchReport",
    "SearchStatistics",
    "StaticDiscovery",
    "ZooKeeperDiscovery",
    "ZooKeeperEntries",
    "check_list",
    "check_port",
    "entries_path",
    "name_of",
]
