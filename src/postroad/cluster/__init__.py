"""Cluster membership, discovery, and messages by member name."""

from postroad.cluster.agent import ClusterAgent, ClusterStatistics
from postroad.cluster.discovery import (
    Discovery,
    DiscoveryStatistics,
    DnsDiscovery,
    StaticDiscovery,
    ZooKeeperDiscovery,
)
from postroad.cluster.events import MembershipEventStream
from postroad.cluster.membership import (
    Member,
    MembershipConfig,
    MembershipEvent,
    MembershipEventType,
    MemberState,
)
from postroad.cluster.messaging import ClusterMessaging, ClusterMessagingStatistics
from postroad.cluster.topics import ClusterTopics

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
