"""Messages between nodes over TCP and UDP: asyncio around the pure machines of `wire`."""

from .counters import Statistics
from .identity import Protocol
from .loop import run
from .message import Handler, Message
from .service import MessagingService
from .tls import TlsConfig
from .unicast import Unicast, UnicastStatistics

__all__ = [
    "Handler",
    "Message",
    "MessagingService",
    "Protocol",
    "Statistics",
    "TlsConfig",
    "Unicast",
    "UnicastStatistics",
    "run",
]
