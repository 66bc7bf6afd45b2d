"""Durable messages: every message arrives, once, whatever dies on the way."""

from .bridges import BridgeManager
from .config import MailConfig, Retry
from .consumer import Consumer, Handler
from .control import BridgeHealth, Health
from .directory import Directory, MemberDirectory, StaticDirectory
from .exchange import Reason
from .letters import Letter
from .mail import Mail
from .message import Message
from .messaging import HandlerRegistration, TopicHandler, TopicMessage, TopicMessaging
from .operations import StoreOperations
from .posting import Draft
from .pulling import Pulled
from .statistics import MailStatistics, PeerStatistics, QueueStatistics
from .store import (
    DeadGroup,
    DeadLetter,
    MemoryDisk,
    MemoryStore,
    PostgresStore,
    SqliteStore,
    Store,
    store_at,
)
from .transaction import Transaction

__all__ = [
    "BridgeHealth",
    "BridgeManager",
    "Consumer",
    "DeadGroup",
    "DeadLetter",
    "Directory",
    "Draft",
    "Handler",
    "HandlerRegistration",
    "Health",
    "Letter",
    "Mail",
    "MailConfig",
    "MailStatistics",
    "MemberDirectory",
    "MemoryDisk",
    "MemoryStore",
    "Message",
    "PeerStatistics",
    "PostgresStore",
    "Pulled",
    "QueueStatistics",
    "Reason",
    "Retry",
    "SqliteStore",
    "StaticDirectory",
    "Store",
    "StoreOperations",
    "TopicHandler",
    "TopicMessage",
    "TopicMessaging",
    "Transaction",
    "store_at",
]
