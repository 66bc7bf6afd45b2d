"""Services: a Moleculer node in Python, which runs services and calls those of all nodes.

    class Greeter(Service):
        name = "greeter"

        @action
        async def hello(self, ctx: Context, name: str) -> str:
            return f"Hello {name}!"

    broker = Broker("node-1", transporter="nats://127.0.0.1:4222")
    broker.add(Greeter())
    async with broker:
        print(await broker.call("greeter.hello", {"name": "Ann"}))

What is not here is in the modules, and may change.
"""

from .asyncapi import asyncapi_document
from .breakers import BreakerConfig
from .broker import Broker
from .bulkheads import BulkheadConfig
from .caching import Cache, CacheStore, MemoryStore, RedisStore
from .calling import CallOptions
from .config import BrokerConfig
from .context import Context
from .errors import (
    BrokerDisconnectedError,
    BrokerOptionsError,
    EventNotHandledError,
    GracefulStopTimeoutError,
    InvalidPacketDataError,
    MaxCallLevelError,
    MoleculerClientError,
    MoleculerError,
    MoleculerRetryableError,
    MoleculerServerError,
    ProtocolVersionMismatchError,
    QueueIsFullError,
    RemoteError,
    RequestRejectedError,
    RequestSkippedError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    ServiceNotFoundError,
    ServiceSchemaError,
    UnsendablePacket,
    ValidationError,
)
from .incoming_stream import IncomingStream
from .middleware import Handler, Middleware
from .nodes import NodeRecord
from .pings import PingResult
from .policies import RetryPolicy
from .registry import Registry
from .schema import ActionInfo, EventInfo, NodeInfo, ServiceInfo, Visibility
from .service import CacheOptions, Service, action, event
from .stream_sources import Objects
from .transporters import MemoryHub, MemoryTransporter, Transporter, make_transporter

__all__ = [
    "ActionInfo",
    "BreakerConfig",
    "Broker",
    "BrokerConfig",
    "BrokerDisconnectedError",
    "BrokerOptionsError",
    "BulkheadConfig",
    "Cache",
    "CacheOptions",
    "CacheStore",
    "CallOptions",
    "Context",
    "EventInfo",
    "EventNotHandledError",
    "GracefulStopTimeoutError",
    "Handler",
    "IncomingStream",
    "InvalidPacketDataError",
    "MaxCallLevelError",
    "MemoryHub",
    "MemoryStore",
    "MemoryTransporter",
    "Middleware",
    "MoleculerClientError",
    "MoleculerError",
    "MoleculerRetryableError",
    "MoleculerServerError",
    "NodeInfo",
    "NodeRecord",
    "Objects",
    "PingResult",
    "ProtocolVersionMismatchError",
    "QueueIsFullError",
    "RedisStore",
    "Registry",
    "RemoteError",
    "RequestRejectedError",
    "RequestSkippedError",
    "RequestTimeoutError",
    "RetryPolicy",
    "Service",
    "ServiceInfo",
    "ServiceNotAvailableError",
    "ServiceNotFoundError",
    "ServiceSchemaError",
    "Transporter",
    "UnsendablePacket",
    "ValidationError",
    "Visibility",
    "action",
    "asyncapi_document",
    "event",
    "make_transporter",
]
