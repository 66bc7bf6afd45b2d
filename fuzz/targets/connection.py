"""Whole connection machines: each role, profile and version, from the first byte or once open."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from fuzz.samples import (
    CONTROLS,
    HEARTBEATS,
    LARGE,
    LIMITS,
    REPLIES,
    REQUESTS,
    encode_all,
    make_hello,
    make_machine,
    plain,
)
from fuzz.streams import PIECE_BYTES, check_frames, cut, everything_large
from fuzz.target import Target, require
from postroad.core.errors import PeerTimeoutError, RemoteProtocolError
from postroad.wire import (
    DOCUMENTED,
    NEVER,
    ZEEBE,
    ConnectionEvent,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    Frame,
    GoodbyeFrame,
    HelloFrame,
    ProtocolProfile,
    ReplyFrame,
    RequestFrame,
    WireConnection,
)
from postroad.wire.codecs import Version3Codec

_COMPRESSIONS = ("zlib",)
_TICKS = 3


class Ended(NamedTuple):
    """What became of an input, and of the machine that took it."""

    events: list[ConnectionEvent]
    failure: type[RemoteProtocolError] | None
    phase: ConnectionState
    version: int
    peer: HelloFrame | None


class Pair(NamedTuple):
    """The machine under test, and a sound one at the other end of its connection."""

    machine: WireConnection
    other: WireConnection


MakePair = Callable[[], Pair]


def make_fresh(profile: ProtocolProfile, role: ConnectionRole) -> Pair:
    """Two machines that have not exchanged a byte."""
    machine = make_machine(role, profile, _COMPRESSIONS)
    return Pair(machine, make_machine(role.opposite, profile, _COMPRESSIONS))


def make_open(profile: ProtocolProfile, role: ConnectionRole) -> Pair:
    """Two machines that have opened their connection."""
    pair = make_fresh(profile, role)
    while any(machine.outgoing for machine in pair):
        transfer(pair.machine, pair.other)
        transfer(pair.other, pair.machine)
    require(
        all(machine.state is ConnectionState.OPEN for machine in pair), f"no connection: {pair}"
    )
    return pair


def transfer(source: WireConnection, target: WireConnection) -> None:
    """Send what one side has queued to the other."""
    if data := b"".join(source.data_to_send(0.0)):
        target.receive_data(data, 0.0)


def check_connection(make_pair: MakePair, data: bytes) -> None:
    """Any bytes are events or a failure, however they arrive; the answers are always legal."""
    whole = converse(make_pair(), [data])
    for size in (1, PIECE_BYTES):
        with everything_large():
            pieces = converse(make_pair(), cut(data, size))
        require(pieces == whole, f"whole: {whole}, in pieces of {size}: {pieces}")


def converse(pair: Pair, pieces: Iterable[bytes]) -> Ended:
    """Feed the pieces, then let time pass."""
    machine = pair.machine
    was_open = machine.state is ConnectionState.OPEN
    out: list[bytes] = []
    events: list[ConnectionEvent] = []
    for piece in pieces:
        events += receive(machine, piece)
        out += machine.data_to_send(0.0)
    check_events(events, was_open=was_open)
    ended = Ended(events, failure_of(machine), machine.state, machine.version, machine.peer)
    out += let_time_pass(machine)
    check_answers(pair, out)
    return ended


def receive(machine: WireConnection, piece: bytes) -> list[ConnectionEvent]:
    """Do as a socket does that reads straight into the buffer of a large frame, if there is one."""
    events: list[ConnectionEvent] = []
    while (room := machine.receive_buffer()) is not None and piece:
        size = min(len(room), len(piece))
        room[:size] = piece[:size]
        events += machine.buffer_updated(size, 0.0)
        piece = piece[size:]
    return events + machine.receive_data(piece, 0.0) if piece else events


def failure_of(machine: WireConnection) -> type[RemoteProtocolError] | None:
    """The kind of failure, if any; it always ends the machine, and nothing else does."""
    is_closed = machine.state is ConnectionState.CLOSED
    require(is_closed == (machine.failure is not None), f"{machine}: {machine.failure!r}")
    return None if machine.failure is None else type(machine.failure)


def check_events(events: list[ConnectionEvent], *, was_open: bool) -> None:
    """A connection opens once, and nothing reaches the application before."""
    is_open = was_open
    for event in events:
        if isinstance(event, ConnectionOpened):
            require(not is_open, "the connection opened twice")
            is_open = True
        elif not isinstance(event, GoodbyeFrame):
            require(is_open, f"{type(event).__name__} before the connection was open")
    check_frames([event for event in events if isinstance(event, RequestFrame | ReplyFrame)])


def let_time_pass(machine: WireConnection) -> list[bytes]:
    """Tick whenever the machine asks for it; returns what it sent."""
    out: list[bytes] = []
    for _ in range(_TICKS):
        due = machine.deadline()
        if due == NEVER:
            break
        had_failed = machine.failure is not None
        machine.tick(due)
        out += machine.data_to_send(due)
        require(machine.deadline() > due, f"{machine} asks again for the time that has come")
        silent = machine.failure is None or isinstance(machine.failure, PeerTimeoutError)
        require(had_failed or silent, f"time made {machine.failure!r}")
    return out


def check_answers(pair: Pair, out: list[bytes]) -> None:
    """Whatever the machine was sent, what it sends itself is legal."""
    machine, other = pair
    if machine.version == 0:
        return
    if other.role is ConnectionRole.SERVER and other.state is ConnectionState.HANDSHAKE:
        # A server that agrees to the version which the input made this client believe.
        profile = other._config.profile.up_to(machine.version)
        other = make_machine(ConnectionRole.SERVER, profile, _COMPRESSIONS)
    other.receive_data(b"".join(out), 0.0)
    require(other.failure is None, f"the other side refused the answer: {other.failure!r}")


def record(
    profile: ProtocolProfile, role: ConnectionRole, frames: list[Frame], *, is_fresh: bool
) -> bytes:
    """What a sound peer sends to a machine of that role: its side of the handshake, and frames."""
    machine, other = make_fresh(profile, role) if is_fresh else make_open(profile, role)
    sent = b""
    while machine.outgoing or other.outgoing:
        transfer(machine, other)
        data = b"".join(other.data_to_send(0.0))
        machine.receive_data(data, 0.0)
        sent += data
    for frame in frames:
        other.send(frame)
    return sent + b"".join(other.data_to_send(0.0))


def _seeds(profile: ProtocolProfile, role: ConnectionRole, *, is_fresh: bool) -> list[bytes]:
    is_version_3 = profile.versions[-1] == 3
    frames = REPLIES if role is ConnectionRole.CLIENT else REQUESTS + HEARTBEATS
    frames = [*frames, LARGE[role], *CONTROLS] if is_version_3 else plain(frames)
    scripts: list[list[Frame]] = [[], frames, *([frame] for frame in frames)]
    seeds = [record(profile, role, script, is_fresh=is_fresh) for script in scripts]
    return seeds + _rude_seeds(profile, role) if is_version_3 and is_fresh else seeds


def _rude_seeds(profile: ProtocolProfile, role: ConnectionRole) -> list[bytes]:
    """Frames that are sound by themselves, but before the hello, or with a hello among them."""
    handshake = make_open(profile, role).other._setup.handshake
    greeting = handshake.initial_bytes() or handshake.response_bytes()
    frames = [*REPLIES[:1], *REQUESTS[:1], *CONTROLS, make_hello(role.opposite)]
    codec = Version3Codec(LIMITS.frame_bytes_max)
    return [greeting + encode_all(codec, [frame, frames[-1], frame]) for frame in frames]


def _target(profile: ProtocolProfile, role: ConnectionRole, *, is_fresh: bool) -> Target:
    start = "fresh" if is_fresh else str(profile.versions[-1])
    make_pair = make_fresh if is_fresh else make_open
    return Target(
        f"connection-{profile.name}-{start}-{role.value}",
        partial(check_connection, partial(make_pair, profile, role)),
        _seeds(profile, role, is_fresh=is_fresh),
    )


TARGETS = [
    *(
        _target(profile, role, is_fresh=True)
        for profile in (DOCUMENTED, ZEEBE)
        for role in ConnectionRole
    ),
    *(
        _target(profile.up_to(version), role, is_fresh=False)
        for profile in (DOCUMENTED, ZEEBE)
        for version in profile.versions
        for role in ConnectionRole
    ),
]
