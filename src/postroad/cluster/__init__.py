"""Who is alive, and messages by member name."""

from .agent import Agent, AgentStatistics
from .communication import Communication, CommunicationStatistics
from .discovery import (
    Discovery,
    DiscoveryStatistics,
    DnsDiscovery,
    StaticDiscovery,
    ZooKeeperDiscovery,
)
from .events import ChangeStream
from .membership import ChangeKind, Member, MemberChange, MembershipConfig, State
from .topics import Topics

__all__ = [
    "Agent",
    "AgentStatistics",
    "ChangeKind",
    "ChangeStream",
    "Communication",
    "CommunicationStatistics",
    "Discovery",
    "DiscoveryStatistics",
    "DnsDiscovery",
    "Member",
    "MemberChange",
    "MembershipConfig",
    "State",
    "StaticDiscovery",
    "Topics",
    "ZooKeeperDiscovery",
]
