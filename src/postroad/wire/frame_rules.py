"""Which frame may arrive when. Everything that is not in the table closes the connection.

Versions 1 and 2 only have requests and replies; real nodes of the source system send some in the
wrong direction, so those are ignored and counted. Version 3 is strict. On a tunnel both sides may
send requests, and neither answers.
"""

from __future__ import annotations

import enum

from postroad.wire.frames import (
    CancelFrame,
    ConnectionRole,
    Frame,
    GoodbyeFrame,
    HelloFrame,
    PingFrame,
    PongFrame,
    Proof,
    ReplyFrame,
    RequestFrame,
)


class ConnectionState(enum.Enum):
    """Where a connection stands in its life."""

    HANDSHAKE = "greeting"
    """Preamble and version are being exchanged."""
    AWAITING_HELLO = "introducing"
    """Version 3: the peer's hello is awaited."""
    PROVING = "proving"
    """Version 3: the peer has yet to prove that it knows the secret of the cluster."""
    AWAITING_TUNNEL = "knocking"
    """The client of a tunnel awaits a sign that the server takes it."""
    OPEN = "open"
    DRAINING = "draining"
    """One side has said goodbye; what is in flight may finish."""
    CLOSED = "closed"


class FrameAction(enum.Enum):
    """What becomes of a frame."""

    ACCEPT = "accept"
    IGNORE = "ignore"
    REJECT = "refuse"


_TO_SERVER = frozenset({RequestFrame, CancelFrame, PingFrame, PongFrame, GoodbyeFrame})
_TO_CLIENT = frozenset({ReplyFrame, PingFrame, PongFrame, GoodbyeFrame})

# Version 3: (receiver, phase) -> frames it accepts.
STRICT: dict[tuple[ConnectionRole, ConnectionState], frozenset[type]] = {
    (ConnectionRole.SERVER, ConnectionState.AWAITING_HELLO): frozenset({HelloFrame}),
    (ConnectionRole.CLIENT, ConnectionState.AWAITING_HELLO): frozenset({HelloFrame, GoodbyeFrame}),
    (ConnectionRole.SERVER, ConnectionState.PROVING): frozenset({Proof}),
    (ConnectionRole.CLIENT, ConnectionState.PROVING): frozenset({Proof, GoodbyeFrame}),
    (ConnectionRole.SERVER, ConnectionState.OPEN): _TO_SERVER,
    (ConnectionRole.CLIENT, ConnectionState.OPEN): _TO_CLIENT,
    (ConnectionRole.SERVER, ConnectionState.DRAINING): _TO_SERVER,
    (ConnectionRole.CLIENT, ConnectionState.DRAINING): _TO_CLIENT,
}

# Tunnels: phase -> frames either side accepts, once both have said hello.
_ON_TUNNEL = frozenset({RequestFrame, PingFrame, PongFrame, GoodbyeFrame})
TUNNEL: dict[ConnectionState, frozenset[type]] = {
    ConnectionState.AWAITING_TUNNEL: frozenset({RequestFrame, PingFrame, GoodbyeFrame}),
    ConnectionState.OPEN: _ON_TUNNEL,
    ConnectionState.DRAINING: _ON_TUNNEL,
}

# Versions 1 and 2: receiver -> frames it accepts once the handshake is done.
LENIENT: dict[ConnectionRole, frozenset[type]] = {
    ConnectionRole.SERVER: frozenset({RequestFrame}),
    ConnectionRole.CLIENT: frozenset({ReplyFrame}),
}


def frame_action(
    version: int,
    receiver: ConnectionRole,
    phase: ConnectionState,
    frame: type[Frame],
    is_tunnel: bool = False,
) -> FrameAction:
    """What the receiver does with such a frame now."""
    if version < 3:
        return FrameAction.ACCEPT if frame in LENIENT[receiver] else FrameAction.IGNORE
    accepted = TUNNEL.get(phase) if is_tunnel else STRICT.get((receiver, phase))
    is_legal = accepted is not None and frame in accepted
    return FrameAction.ACCEPT if is_legal else FrameAction.REJECT
