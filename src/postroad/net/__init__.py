"""Messages between nodes over TCP and UDP: asyncio around the pure machines of `wire`."""

from .counters import MessagingStatistics
from .identity import ProtocolConfig
from .loop import run
from .message import MessageHandler, RawMessage
from .service import MessagingService
from .tls import TlsConfig
from .tunnel import Tunnel, TunnelAcceptor
from .tunnel_user import TunnelHandler
from .unicast import DatagramService, DatagramStatistics

__all__ = [
    "DatagramService",
    "DatagramStatistics",
    "MessageHandler",
    "MessagingService",
    "MessagingStatistics",
    "ProtocolConfig",
    "RawMessage",
    "TlsConfig",
    "Tunnel",
    "TunnelAcceptor",
    "TunnelHandler",
    "run",
]
