"""What a service has done so far. Links add to the counters; `statistics()` copies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from postroad.net.connections.client import ClientConnection
    from postroad.net.connections.server import ServerConnection
    from postroad.net.connections.tunnel import Tunnel
    from postroad.net.context import ConnectionContext


class NetworkCounters(msgspec.Struct):
    """Totals since the service was created."""

    requests_sent: int = 0
    messages_sent: int = 0
    """One-way messages."""
    replies_received: int = 0
    requests_received: int = 0
    replies_sent: int = 0
    local_requests: int = 0
    """Requests and messages to the own address, which never touch a socket."""
    tunnel_messages_sent: int = 0
    tunnel_messages_received: int = 0

    requests_timed_out: int = 0
    requests_cancelled: int = 0
    requests_expired: int = 0
    """Received ones whose caller had given up before their handler could begin."""
    replies_late: int = 0
    """Replies that came after their request had timed out or was cancelled."""
    frames_ignored: int = 0
    handlers_failed: int = 0
    handlers_timed_out: int = 0
    no_handler: int = 0

    connections_opened: int = 0
    connections_failed: int = 0
    connections_accepted: int = 0
    connections_rejected: int = 0
    """Accepted ones above the limit, closed at once."""
    connections_lost: int = 0
    """Open ones that ended without this side wanting it."""
    tls_failures: int = 0
    """Connections to this node on which TLS could not be agreed."""
    protocol_errors: int = 0
    """Connections closed because the peer broke the protocol or fell silent."""

    bytes_sent: int = 0
    bytes_received: int = 0


class MessagingStatistics(NetworkCounters):
    """A snapshot of the counters, and what is open now."""

    dialed: int = 0
    accepted: int = 0
    tunnels: int = 0
    """Those of the dialed and accepted connections that are tunnels."""
    requests_pending: int = 0
    handlers_running: int = 0
    unfinished_bytes: int = 0
    """Memory of frames that are not whole yet."""
    subscriptions: int = 0
    protocol_errors_by_kind: dict[str, int] = {}
    round_trips_s: dict[str, float] = {}
    """Last time of a heartbeat to a peer and back, by its address (version 3)."""


def collect_statistics(
    context: ConnectionContext,
    *,
    dialed: Sequence[ClientConnection],
    accepted: Sequence[ServerConnection],
    dialed_tunnels: Sequence[Tunnel],
    accepted_tunnels: Sequence[Tunnel],
    local_handlers: int,
    subscriptions: int,
) -> MessagingStatistics:
    """A snapshot: what ended links have added to the counters, and what open ones have so far."""
    tunnels = (*dialed_tunnels, *accepted_tunnels)
    links = (*dialed, *accepted, *tunnels)
    totals = msgspec.structs.asdict(context.counters)
    totals["requests_sent"] += sum(link.requests_sent for link in dialed)
    totals["requests_received"] += sum(link.requests_received for link in accepted)
    totals["replies_sent"] += sum(link.replies_sent for link in accepted)
    totals["tunnel_messages_sent"] += sum(tunnel.messages_sent for tunnel in tunnels)
    totals["tunnel_messages_received"] += sum(tunnel.messages_received for tunnel in tunnels)
    totals["bytes_sent"] += sum(link.bytes_sent for link in links)
    totals["bytes_received"] += sum(link.bytes_received for link in links)
    trips = {str(link.address): link.wire.round_trip_s for link in dialed}
    return MessagingStatistics(
        **totals,
        dialed=len(dialed) + len(dialed_tunnels),
        accepted=len(accepted) + len(accepted_tunnels),
        tunnels=len(tunnels),
        requests_pending=sum(len(link.pending) for link in dialed),
        handlers_running=sum(len(link.running) for link in accepted) + local_handlers,
        unfinished_bytes=context.unfinished.used_bytes,
        subscriptions=subscriptions,
        protocol_errors_by_kind=dict(context.protocol_errors_by_kind),
        round_trips_s={peer: trip for peer, trip in trips.items() if trip is not None},
    )
