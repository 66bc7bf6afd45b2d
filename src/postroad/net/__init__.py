"""Messages between nodes over TCP and UDP: asyncio around the state machines of `wire`."""

from postroad.core import Address, Limits, Outcome
from postroad.net.connections.tunnel import Tunnel, TunnelAcceptor, TunnelHandler
from postroad.net.context import MessagingStatistics
from postroad.net.datagrams import DatagramService, DatagramStatistics
from postroad.net.dispatch import MessageHandler, RawMessage
from postroad.net.event_loop import run
from postroad.net.identity import ProtocolConfig
from postroad.net.requests import PeerIfKnown
from postroad.net.service import MessagingService
from postroad.net.tls import TlsConfig

__all__ = [
    "Address",
    "DatagramService",
    "DatagramStatistics",
    "Limits",
    "MessageHandler",
    "MessagingService",
    "MessagingStatistics",
    "Outcome",
    "PeerIfKnown",
    "ProtocolConfig",
    "RawMessage",
    "TlsConfig",
    "Tunnel",
    "TunnelAcceptor",
    "TunnelHandler",
    "run",
]
