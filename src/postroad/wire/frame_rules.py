"""Which frame may arrive in which state, and which state may follow which.

A frame that is not in the tables closes the connection (docs/wire-protocol.md, 3.5 and 3.6).
Versions 1 and 2 have requests and replies only; nodes of the source system send some of them in the
wrong direction, so such frames are ignored and counted. Version 3 is strict. A connection becomes a
tunnel after hello and proof, so the tables of tunnels have neither.
"""

from __future__ import annotations

import enum

from postroad.core.errors import LocalProtocolError
from postroad.wire.frames import (
    CancelFrame,
    ConnectionRole,
    Frame,
    GoodbyeFrame,
    HelloFrame,
    PingFrame,
    PongFrame,
    ProofFrame,
    ReplyFrame,
    RequestFrame,
)


class ConnectionState(enum.Enum):
    """State of a connection; it changes as `TRANSITIONS` allows."""

    HANDSHAKE = "handshake"
    """Preamble and version are being exchanged (1)."""
    AWAITING_HELLO = "awaiting hello"
    """Version 3: the hello of the peer has not arrived (3.2)."""
    AWAITING_PROOF = "awaiting proof"
    """Version 3: the peer has not proven that it has the cluster secret (3.7)."""
    AWAITING_TUNNEL = "awaiting tunnel"
    """The client of a tunnel waits until the server accepts the tunnel (3.6)."""
    OPEN = "open"
    DRAINING = "draining"
    """One side has sent a goodbye; requests in flight may finish (3.3)."""
    CLOSED = "closed"


# State -> states that may follow. DRAINING follows a goodbye, sent or received; the tables below
# tell who may receive one when. Every state may be closed, a closed one again.
TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    state: frozenset((*following, ConnectionState.CLOSED))
    for state, following in {
        ConnectionState.HANDSHAKE: (ConnectionState.AWAITING_HELLO, ConnectionState.OPEN),
        ConnectionState.AWAITING_HELLO: (
            *(ConnectionState.AWAITING_PROOF, ConnectionState.AWAITING_TUNNEL),
            *(ConnectionState.OPEN, ConnectionState.DRAINING),
        ),
        ConnectionState.AWAITING_PROOF: (
            *(ConnectionState.AWAITING_TUNNEL, ConnectionState.OPEN, ConnectionState.DRAINING),
        ),
        ConnectionState.AWAITING_TUNNEL: (ConnectionState.OPEN, ConnectionState.DRAINING),
        ConnectionState.OPEN: (ConnectionState.DRAINING,),
        ConnectionState.DRAINING: (ConnectionState.DRAINING,),
        ConnectionState.CLOSED: (),
    }.items()
}

# States in which the bytes after a hello or a proof can be decoded.
AFTER_HELLO = frozenset(
    {ConnectionState.AWAITING_PROOF, ConnectionState.AWAITING_TUNNEL, ConnectionState.OPEN}
)
# States before the connection is open, which it must be within the handshake timeout.
CONNECTING = AFTER_HELLO - {ConnectionState.OPEN} | {
    ConnectionState.HANDSHAKE,
    ConnectionState.AWAITING_HELLO,
}


class FrameAction(enum.Enum):
    """How a connection treats a received frame."""

    ACCEPT = "accept"
    IGNORE = "ignore"
    REJECT = "reject"


_TO_SERVER = frozenset({RequestFrame, CancelFrame, PingFrame, PongFrame, GoodbyeFrame})
_TO_CLIENT = frozenset({ReplyFrame, PingFrame, PongFrame, GoodbyeFrame})

# Version 3: (receiver, state) -> accepted frames (3.5).
STRICT: dict[tuple[ConnectionRole, ConnectionState], frozenset[type]] = {
    (ConnectionRole.SERVER, ConnectionState.AWAITING_HELLO): frozenset({HelloFrame}),
    (ConnectionRole.CLIENT, ConnectionState.AWAITING_HELLO): frozenset({HelloFrame, GoodbyeFrame}),
    (ConnectionRole.SERVER, ConnectionState.AWAITING_PROOF): frozenset({ProofFrame}),
    (ConnectionRole.CLIENT, ConnectionState.AWAITING_PROOF): frozenset({ProofFrame, GoodbyeFrame}),
    (ConnectionRole.SERVER, ConnectionState.OPEN): _TO_SERVER,
    (ConnectionRole.CLIENT, ConnectionState.OPEN): _TO_CLIENT,
    (ConnectionRole.SERVER, ConnectionState.DRAINING): _TO_SERVER,
    (ConnectionRole.CLIENT, ConnectionState.DRAINING): _TO_CLIENT,
}

# Tunnels: state -> frames that either side accepts after both hellos (3.6).
_ON_TUNNEL = frozenset({RequestFrame, PingFrame, PongFrame, GoodbyeFrame})
TUNNEL: dict[ConnectionState, frozenset[type]] = {
    ConnectionState.AWAITING_TUNNEL: frozenset({RequestFrame, PingFrame, GoodbyeFrame}),
    ConnectionState.OPEN: _ON_TUNNEL,
    ConnectionState.DRAINING: _ON_TUNNEL,
}

# Versions 1 and 2: receiver -> accepted frames after the handshake (2.2).
LENIENT: dict[ConnectionRole, frozenset[type]] = {
    ConnectionRole.SERVER: frozenset({RequestFrame}),
    ConnectionRole.CLIENT: frozenset({ReplyFrame}),
}


def transition(state: ConnectionState, next_state: ConnectionState) -> ConnectionState:
    """Return the next state; raise LocalProtocolError unless it may follow."""
    if next_state not in TRANSITIONS[state]:
        raise LocalProtocolError(
            f"a connection in state {state.name.lower()} cannot enter {next_state.name.lower()}"
        )
    return next_state


def frame_action(
    version: int,
    receiver: ConnectionRole,
    state: ConnectionState,
    frame: type[Frame],
    is_tunnel: bool = False,
) -> FrameAction:
    """Return how the receiver treats a frame of this type in this state."""
    if version < 3:
        return FrameAction.ACCEPT if frame in LENIENT[receiver] else FrameAction.IGNORE
    accepted = TUNNEL.get(state) if is_tunnel else STRICT.get((receiver, state))
    is_allowed = accepted is not None and frame in accepted
    return FrameAction.ACCEPT if is_allowed else FrameAction.REJECT
