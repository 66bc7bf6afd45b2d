"""State shared by all connections of a service: configuration, log, counters with a snapshot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from postroad.core import Address, Limits, ThrottledLogger, tracing
from postroad.wire import UnfinishedFrames, WireConfig

if TYPE_CHECKING:
    from postroad.net.connections.client import ClientConnection
    from postroad.net.connections.server import ServerConnection
    from postroad.net.connections.tunnel import Tunnel, TunnelAcceptor


class NetworkCounters(msgspec.Struct):
    """Totals since the service was created."""

    requests_sent: int = 0
    messages_sent: int = 0
    """One-way messages."""
    replies_received: int = 0
    requests_received: int = 0
    replies_sent: int = 0
    local_requests: int = 0
    """Requests and one-way messages of this node to itself, which use no socket."""
    tunnel_messages_sent: int = 0
    tunnel_messages_received: int = 0

    requests_timed_out: int = 0
    requests_cancelled: int = 0
    requests_expired: int = 0
    """Received requests whose timeout passed before their handler could start."""
    replies_late: int = 0
    """Replies received after their request had timed out or was cancelled."""
    frames_ignored: int = 0
    handlers_failed: int = 0
    handlers_timed_out: int = 0
    no_handler: int = 0

    connections_opened: int = 0
    connections_failed: int = 0
    connections_accepted: int = 0
    connections_rejected: int = 0
    """Connections above the limit, closed as soon as they were accepted."""
    connections_lost: int = 0
    """Open connections that ended without this node closing them."""
    versions_declined: int = 0
    """Connections to this node whose peer speaks only older protocol versions than this node."""
    tls_failures: int = 0
    """Connections to this node whose TLS handshake failed."""
    protocol_errors: int = 0
    """Connections closed because the peer violated the protocol or sent no heartbeats."""

    bytes_sent: int = 0
    bytes_received: int = 0


class MessagingStatistics(NetworkCounters):
    """A snapshot of the counters, and gauges of open connections, requests and handlers."""

    client_connections: int = 0
    server_connections: int = 0
    tunnels: int = 0
    """Tunnels among the dialed and accepted connections."""
    requests_pending: int = 0
    handlers_running: int = 0
    unfinished_bytes: int = 0
    """Bytes received of frames that are still incomplete."""
    subscriptions: int = 0
    protocol_errors_by_kind: dict[str, int] = {}
    round_trips_s: dict[str, float] = {}
    """Last round trip of a heartbeat in seconds, by address of the peer (version 3)."""


def collect_statistics(
    context: ConnectionContext,
    *,
    client_connections: Sequence[ClientConnection],
    client_tunnels: Sequence[Tunnel],
    server_connections: Sequence[ServerConnection],
    server_tunnels: Sequence[Tunnel],
    local_handlers: int,
    subscriptions: int,
) -> MessagingStatistics:
    """Return a snapshot: the counters, which closed connections have added to, and open ones."""
    clients = [client for client in client_connections if client.transport is not None]
    dialed_tunnels = [tunnel for tunnel in client_tunnels if tunnel.transport is not None]
    servers = server_connections
    tunnels = (*dialed_tunnels, *server_tunnels)
    connections = (*clients, *servers, *tunnels)
    totals = msgspec.structs.asdict(context.counters)
    totals["requests_sent"] += sum(client.requests_sent for client in clients)
    totals["requests_received"] += sum(server.requests_received for server in servers)
    totals["replies_sent"] += sum(server.replies_sent for server in servers)
    totals["tunnel_messages_sent"] += sum(tunnel.messages_sent for tunnel in tunnels)
    totals["tunnel_messages_received"] += sum(tunnel.messages_received for tunnel in tunnels)
    totals["bytes_sent"] += sum(connection.bytes_sent for connection in connections)
    totals["bytes_received"] += sum(connection.bytes_received for connection in connections)
    round_trips = {str(client.address): client.wire.round_trip_s for client in clients}
    return MessagingStatistics(
        **totals,
        client_connections=len(clients) + len(dialed_tunnels),
        server_connections=len(servers) + len(server_tunnels),
        tunnels=len(tunnels),
        requests_pending=sum(len(client.pending) for client in clients),
        handlers_running=sum(len(server.running) for server in servers) + local_handlers,
        unfinished_bytes=context.unfinished.used_bytes,
        subscriptions=subscriptions,
        protocol_errors_by_kind=dict(context.protocol_errors_by_kind),
        round_trips_s={peer: time_s for peer, time_s in round_trips.items() if time_s is not None},
    )


logger = logging.getLogger("postroad.net")

# Warnings with the same key are logged once in so many seconds.
_WARN_INTERVAL_S = 5.0


class ConnectionContext:
    """Configuration, counters and callbacks that all connections of a service share."""

    def __init__(self, config: WireConfig, next_id: Callable[[], int]) -> None:
        self.config = config
        self.limits: Limits = config.limits
        self.next_id = next_id
        self.counters = NetworkCounters()
        self.unfinished = UnfinishedFrames(self.limits.unfinished_bytes_max)
        # Set when the service stops; connections established after that are not served.
        self.is_stopped = False
        self.protocol_errors_by_kind: dict[str, int] = {}
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        # Called with address and incarnation of a peer that connected with this node's name.
        self.on_duplicate_name: Callable[[Address, int], None] | None = None
        # Returns the handlers of tunnels that peers open; None rejects them.
        self.accept_tunnel: TunnelAcceptor | None = None

    def wire_config(self) -> WireConfig:
        """Return the configuration of a new connection; it accepts traces if they are recorded."""
        if tracing.tracer is None:
            return self.config
        hello = msgspec.structs.replace(self.config.hello, accepts_traces=True)
        return msgspec.structs.replace(self.config, hello=hello)

    def replace_hello(self, **changes: object) -> None:
        """Change fields of the hello that new connections send."""
        hello = msgspec.structs.replace(self.config.hello, **changes)
        self.config = msgspec.structs.replace(self.config, hello=hello)

    def warn(self, key: str, text: str, *args: object) -> None:
        """Log a warning, at most once per interval for its key."""
        self._log.log(key, asyncio.get_running_loop().time(), text, *args)
