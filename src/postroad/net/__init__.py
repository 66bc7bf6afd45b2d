"""Messages between nodes over TCP and UDP: asyncio around the pure machines of `wire`."""

from .counters import Statistics
from .identity import Protocol
from .loop import run
from .message import Handler, Message
from .service import MessagingService
from .tls import TlsConfig
from .tunnel import Accept, Tunnel
from .tunnel_user import TunnelUser
from .unicast import Unicast, UnicastStatistics

__all__ = [
    "Accept",
    "Handler",
    "Message",
    "MessagingService",
    "Protocol",
    "Statistics",
    "TlsConfig",
    "Tunnel",
    "TunnelUser",
    "Unicast",
    "UnicastStatistics",
    "run",
]
