"""Who is alive, and messages by member name."""

from .agent import ClusterAgent, ClusterStatistics
from .communication import ClusterMessaging, ClusterMessagingStatistics
from .discovery import (
    Discovery,
    DiscoveryStatistics,
    DnsDiscovery,
    StaticDiscovery,
    ZooKeeperDiscovery,
)
from .events import MembershipEventStream
from .membership import Member, MembershipConfig, MembershipEvent, MembershipEventType, MemberState
from .topics import ClusterTopics

__all__ = [
    "ClusterAgent",
    "ClusterMessaging",
    "ClusterMessagingStatistics",
    "ClusterStatistics",
    "ClusterTopics",
    "Discovery",
    "DiscoveryStatistics",
    "DnsDiscovery",
    "Member",
    "MemberState",
    "MembershipConfig",
    "MembershipEvent",
    "MembershipEventStream",
    "MembershipEventType",
    "StaticDiscovery",
    "ZooKeeperDiscovery",
]
