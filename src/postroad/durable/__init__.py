"""Durable messages: every message arrives, once, whatever dies on the way."""

from postroad.core import RetryPolicy
from postroad.durable.admin import DurableQueuesAdmin
from postroad.durable.bridges.bridge_manager import BridgeManager
from postroad.durable.bridges.control import BridgeManagerStatus, BridgeStatus
from postroad.durable.bridges.peers import ClusterPeerDirectory, PeerDirectory, StaticPeerDirectory
from postroad.durable.bridges.protocol import DeadLetterReason
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.consumers.consumer import Consumer, DurableHandler
from postroad.durable.consumers.message import Message
from postroad.durable.consumers.pull import PulledMessage
from postroad.durable.durable_queues import DurableQueues
from postroad.durable.producer import OutgoingMessage, SendOptions
from postroad.durable.store import (
    DeadLetter,
    DeadLetterGroup,
    MemoryDisk,
    MemoryStore,
    PostgresStore,
    SqliteStore,
    Store,
    store_from_url,
)
from postroad.durable.stored_messages import StoredMessage
from postroad.durable.telemetry import DurableQueuesStatistics, PeerStatistics, QueueStatistics
from postroad.durable.topic_messaging import (
    HandlerRegistration,
    TopicHandler,
    TopicMessage,
    TopicMessaging,
)
from postroad.durable.transaction import SyncTransaction, Transaction

__all__ = [
    "BridgeManager",
    "BridgeManagerStatus",
    "BridgeStatus",
    "ClusterPeerDirectory",
    "Consumer",
    "DeadLetter",
    "DeadLetterGroup",
    "DeadLetterReason",
    "DurableHandler",
    "DurableQueues",
    "DurableQueuesAdmin",
    "DurableQueuesConfig",
    "DurableQueuesStatistics",
    "HandlerRegistration",
    "MemoryDisk",
    "MemoryStore",
    "Message",
    "OutgoingMessage",
    "PeerDirectory",
    "PeerStatistics",
    "PostgresStore",
    "PulledMessage",
    "QueueStatistics",
    "RetryPolicy",
    "SendOptions",
    "SqliteStore",
    "StaticPeerDirectory",
    "Store",
    "StoredMessage",
    "SyncTransaction",
    "TopicHandler",
    "TopicMessage",
    "TopicMessaging",
    "Transaction",
    "store_from_url",
]
