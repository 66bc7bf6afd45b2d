"""Which frame may arrive when. Everything that is not in the table closes the connection.

Versions 1 and 2 only have requests and replies; real nodes of the source system send some in the
wrong direction, so those are ignored and counted. Version 3 is strict. On a tunnel both sides may
send requests, and neither answers.
"""

from __future__ import annotations

import enum

from .frames import Cancel, Frame, Goodbye, Hello, Ping, Pong, Proof, Reply, Request, Role


class Phase(enum.Enum):
    """Where a connection stands in its life."""

    GREETING = "greeting"
    """Preamble and version are being exchanged."""
    INTRODUCING = "introducing"
    """Version 3: the peer's hello is awaited."""
    PROVING = "proving"
    """Version 3: the peer has yet to prove that it knows the secret of the cluster."""
    KNOCKING = "knocking"
    """The client of a tunnel awaits a sign that the server takes it."""
    OPEN = "open"
    DRAINING = "draining"
    """One side has said goodbye; what is in flight may finish."""
    CLOSED = "closed"


class Verdict(enum.Enum):
    """What becomes of a frame."""

    ACCEPT = "accept"
    IGNORE = "ignore"
    REFUSE = "refuse"


_TO_SERVER = frozenset({Request, Cancel, Ping, Pong, Goodbye})
_TO_CLIENT = frozenset({Reply, Ping, Pong, Goodbye})

# Version 3: (receiver, phase) -> frames it accepts.
STRICT: dict[tuple[Role, Phase], frozenset[type]] = {
    (Role.SERVER, Phase.INTRODUCING): frozenset({Hello}),
    (Role.CLIENT, Phase.INTRODUCING): frozenset({Hello, Goodbye}),
    (Role.SERVER, Phase.PROVING): frozenset({Proof}),
    (Role.CLIENT, Phase.PROVING): frozenset({Proof, Goodbye}),
    (Role.SERVER, Phase.OPEN): _TO_SERVER,
    (Role.CLIENT, Phase.OPEN): _TO_CLIENT,
    (Role.SERVER, Phase.DRAINING): _TO_SERVER,
    (Role.CLIENT, Phase.DRAINING): _TO_CLIENT,
}

# Tunnels: phase -> frames either side accepts, once both have said hello.
_ON_TUNNEL = frozenset({Request, Ping, Pong, Goodbye})
TUNNEL: dict[Phase, frozenset[type]] = {
    Phase.KNOCKING: frozenset({Request, Ping, Goodbye}),
    Phase.OPEN: _ON_TUNNEL,
    Phase.DRAINING: _ON_TUNNEL,
}

# Versions 1 and 2: receiver -> frames it accepts once the handshake is done.
LENIENT: dict[Role, frozenset[type]] = {
    Role.SERVER: frozenset({Request}),
    Role.CLIENT: frozenset({Reply}),
}


def judge(
    version: int, receiver: Role, phase: Phase, frame: type[Frame], is_tunnel: bool = False
) -> Verdict:
    """What the receiver does with such a frame now."""
    if version < 3:
        return Verdict.ACCEPT if frame in LENIENT[receiver] else Verdict.IGNORE
    accepted = TUNNEL.get(phase) if is_tunnel else STRICT.get((receiver, phase))
    is_legal = accepted is not None and frame in accepted
    return Verdict.ACCEPT if is_legal else Verdict.REFUSE
