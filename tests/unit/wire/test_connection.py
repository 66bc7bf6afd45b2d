"""The life of a connection: opening, talking, draining, closing, and what time does to it."""

from collections.abc import Callable, Sequence

import pytest

from postroad import wire
from postroad.core.errors import PeerTimeoutError
from postroad.core.limits import Limits
from postroad.core.names import Address
from tests.support.wire import pairs

DIALECTS = {
    "documented 1": wire.DOCUMENTED.up_to(1),
    "documented 2": wire.DOCUMENTED.up_to(2),
    "version 3": wire.DOCUMENTED,
    "zeebe 1": wire.ZEEBE.up_to(1),
    "zeebe 2": wire.ZEEBE,
}
OLDER = [name for name in DIALECTS if name != "version 3"]


@pytest.fixture(params=DIALECTS)
def profile(request: pytest.FixtureRequest) -> wire.ProtocolProfile:
    return DIALECTS[request.param]


def pair_of(profile: wire.ProtocolProfile, limits: Limits = pairs.QUIET) -> pairs.Pair:
    return pairs.open_pair(
        pairs.make_config(profile=profile, limits=limits),
        pairs.server_config(profile=profile, limits=limits),
    )


@pytest.mark.parametrize("split", [pairs.whole, pairs.byte_by_byte])
def test_two_sides_open(
    profile: wire.ProtocolProfile, split: Callable[[bytes], Sequence[bytes]]
) -> None:
    pair = pairs.Pair(pairs.make_config(profile=profile), pairs.server_config(profile=profile))
    pair.settle(split)
    for side in (pair.client, pair.server):
        assert side.events == [wire.ConnectionOpened(profile.versions[-1])]
        assert side.machine.state is wire.ConnectionState.OPEN
        assert side.machine.version == profile.versions[-1]
        assert side.failure is None


def test_the_client_speaks_first_and_quiet_is_no_fault(profile: wire.ProtocolProfile) -> None:
    client = pairs.Side(wire.ConnectionRole.CLIENT, pairs.make_config(profile=profile))
    assert client.has_data
    assert len(client.take()) == 6
    assert not client.has_data
    assert not pairs.Side(wire.ConnectionRole.SERVER, pairs.server_config(profile=profile)).has_data

    pair = pair_of(profile)
    pair.tick(1e6)
    assert pair.client.failure is pair.server.failure is None


def test_an_older_side_decides_and_repr_tells_the_version() -> None:
    for client, server in (
        (wire.DOCUMENTED, wire.DOCUMENTED.up_to(2)),
        (wire.DOCUMENTED.up_to(1), wire.DOCUMENTED),
    ):
        pair = pairs.Pair(pairs.make_config(profile=client), pairs.server_config(profile=server))
        pair.settle()
        expected = min(client.versions[-1], server.versions[-1])
        assert (pair.client.machine.version, pair.server.machine.version) == (expected, expected)

    pair = pairs.Pair()
    assert repr(pair.client.machine) == "<WireConnection client version 0 handshake>"
    pair.settle()
    assert repr(pair.client.machine) == "<WireConnection client server version 3 open>"
    assert repr(pair.server.machine) == "<WireConnection server client version 3 open>"


def test_each_side_learns_the_address_of_the_other(profile: wire.ProtocolProfile) -> None:
    pair = pair_of(profile)
    pair.client.machine.request(1, "echo", b"payload", 0)
    pair.settle()
    assert pair.server.events == [wire.RequestFrame(1, "echo", b"payload")]
    pair.server.machine.reply(1, wire.ReplyStatus.OK, b"answer")
    pair.settle()
    assert pair.client.events == [wire.ReplyFrame(1, wire.ReplyStatus.OK, b"answer")]
    assert pair.server.machine.sender == pairs.CLIENT_ADDRESS
    assert pair.client.machine.sender == pairs.SERVER_ADDRESS


def test_connection_sender_before_it_arrives_is_none() -> None:
    pair = pair_of(wire.DOCUMENTED.up_to(2))
    assert pair.server.machine.sender is None
    assert pair.client.machine.sender is None

    config = pairs.make_config(
        profile=wire.DOCUMENTED.up_to(1), address=Address("node.example", 1), advertised_ip="::1"
    )
    pair = pairs.open_pair(config, pairs.server_config())
    pair.client.machine.request(1, "echo", b"", 0)
    pair.settle()
    assert pair.server.machine.sender == Address("::1", 1)


@pytest.mark.parametrize("name", OLDER)
def test_older_versions_never_send_stopping_cancel_or_goodbye(name: str) -> None:
    pair = pair_of(DIALECTS[name])
    pair.client.machine.cancel(1)
    pair.client.machine.goodbye("stopping")
    assert not pair.client.has_data
    assert pair.client.machine.state is wire.ConnectionState.DRAINING
    pair.server.machine.reply(1, wire.ReplyStatus.OK, b"late")
    pair.settle()
    assert pair.client.events == [wire.ReplyFrame(1, wire.ReplyStatus.OK, b"late")]

    pair = pair_of(DIALECTS[name])
    pair.server.machine.reply(1, wire.ReplyStatus.STOPPING, b"", 3100, True)
    pair.settle()
    assert pair.client.events == [wire.ReplyFrame(1, wire.ReplyStatus.NO_HANDLER, b"")]

    pair = pair_of(DIALECTS[name])
    pair.client.machine.reply(5, wire.ReplyStatus.OK, b"")
    pair.server.machine.request(6, "echo", b"", 0)
    pair.settle()
    assert pair.server.events == [wire.FrameIgnored("Reply", 5)]
    assert pair.client.events == [wire.FrameIgnored("Request", 6)]
    assert pair.client.failure is pair.server.failure is None


def test_unmatched_reply_has_no_waiter(profile: wire.ProtocolProfile) -> None:
    pair = pair_of(profile)
    waiting: wire.DeadlineMap[str] = wire.DeadlineMap()
    waiting.add(1, "somebody", 10)
    pair.server.machine.reply(99, wire.ReplyStatus.OK, b"")
    pair.settle()
    (reply,) = pair.client.events
    assert isinstance(reply, wire.ReplyFrame)
    assert waiting.pop(reply.id) is None
    assert len(waiting) == 1
    assert pair.client.failure is None


def test_messages_of_the_largest_size_go_straight_to_their_room(
    profile: wire.ProtocolProfile,
) -> None:
    limits = Limits(frame_bytes_max=1_000, heartbeat_interval_s=0, heartbeat_timeout_s=0)
    pair = pair_of(profile, limits)
    assert pair.client.machine.send_bytes_max == 1_000
    pair.client.machine.request(1, "echo", bytes(996), 0)
    pair.settle()
    assert pair.server.events == [wire.RequestFrame(1, "echo", bytes(996))]

    pair = pair_of(profile)
    payload = bytes(range(256)) * 4 * 1024
    pair.client.machine.request(1, "echo", payload, 0)
    pair.client.machine.request(2, "echo", b"small", 0)
    assert pair.server.machine.receive_buffer() is None
    pair.server.pour(pair.client.take())
    assert pair.server.events == [
        wire.RequestFrame(1, "echo", payload),
        wire.RequestFrame(2, "echo", b"small"),
    ]
    assert not pair.server.machine.wants_buffer


def test_an_unfinished_handshake_is_given_up(profile: wire.ProtocolProfile) -> None:
    limits = Limits(handshake_timeout_s=5)
    for role in wire.ConnectionRole:
        side = pairs.Side(role, pairs.make_config(profile=profile, limits=limits), now=100)
        assert side.machine.deadline() == 105
        side.tick(104.9)
        assert side.failure is None
        side.tick(105)
        assert isinstance(side.failure, PeerTimeoutError)
        assert "no complete handshake within 5 s" in str(side.failure)
        assert side.machine.state is wire.ConnectionState.CLOSED
        assert side.machine.deadline() == wire.NEVER


def test_an_unfinished_handshake_that_trickles_or_was_held_up_is_given_up() -> None:
    side = pairs.Side(
        wire.ConnectionRole.CLIENT, pairs.make_config(limits=Limits(handshake_timeout_s=5))
    )
    side.machine.extend_deadlines(1, 3)
    assert side.machine.deadline() == 5, "it has more than a second anyway"
    side.machine.extend_deadlines(4, 9)
    assert side.machine.deadline() == 13
    side.tick(13)
    assert isinstance(side.failure, PeerTimeoutError)

    server = pairs.Side(
        wire.ConnectionRole.SERVER, pairs.server_config(limits=Limits(handshake_timeout_s=5))
    )
    for now, piece in enumerate(pairs.byte_by_byte(b"\xeb\x6e\xec\x8a\x00")):
        server.tick(now)
        server.give(piece)
    assert server.machine.deadline() == 5
    server.tick(5)
    assert isinstance(server.failure, PeerTimeoutError)

    server = pairs.Side(wire.ConnectionRole.SERVER)
    server.give(b"random bytes")
    failure = server.failure
    assert failure is not None
    server.tick(1e9)
    assert server.failure is failure


def slow_server(limits: Limits) -> pairs.Side:
    """An open server of version 2 that has heard of its client, at time 0."""
    server = pairs.Side(wire.ConnectionRole.SERVER, pairs.server_config(limits=limits))
    server.give(b"\xeb\x6e\xec\x8a\x00\x02" + b"\x00\x01h\x00\x00\x00\x01")
    return server


def run_until(side: pairs.Side, now: float) -> None:
    """Tick whenever the machine asks for it, up to that time."""
    while side.machine.deadline() <= now:
        side.tick(side.machine.deadline())
    side.now = now


def test_a_frame_that_does_not_end_is_given_up() -> None:
    server = slow_server(Limits(frame_timeout_s=30))
    run_until(server, 10)
    server.give(b"\x01")
    run_until(server, 39.9)
    assert server.failure is None
    run_until(server, 10 + 1.5 * 30)
    assert isinstance(server.failure, PeerTimeoutError)
    assert "the peer did not finish a frame within 30 s" in str(server.failure)

    server = slow_server(Limits(frame_timeout_s=30))
    server.give(b"\x01")
    run_until(server, 29)
    server.machine.extend_deadlines(100, 129)
    server.tick(129)
    assert server.failure is None
    run_until(server, 129 + 1.5 * 30)
    assert isinstance(server.failure, PeerTimeoutError)


def test_a_frame_has_time_by_its_size_and_trickling_does_not_help() -> None:
    server = slow_server(Limits(frame_timeout_s=8))
    for byte in pairs.byte_by_byte(b"\x01" + bytes(7) + b"\x01\x00\x00\x04\x00" + bytes(1_024)):
        if server.failure is not None:
            break
        server.give(byte)
        run_until(server, server.now + 1)
    assert isinstance(server.failure, PeerTimeoutError)
    assert server.now <= 1.5 * 8 + 1

    server = slow_server(Limits(frame_timeout_s=30))
    server.give(b"\x01" + bytes(8) + (1024 * 1024).to_bytes(4, "big") + bytes(1_000))
    run_until(server, 30 + 16)
    assert server.failure is None
    run_until(server, 1.5 * 30 + 16.1)
    assert isinstance(server.failure, PeerTimeoutError)

    server = slow_server(Limits(frame_timeout_s=10))
    frame = b"\x01" + bytes(16)
    server.give(frame[:1])
    for now in range(9, 100, 9):
        run_until(server, now)
        server.give(frame[1:] + frame[:1])
    assert server.failure is None
    run_until(server, 99 + 15)
    assert isinstance(server.failure, PeerTimeoutError)


def test_connection_has_a_deadline_unless_reading_is_paused() -> None:
    server = slow_server(Limits(frame_timeout_s=30))
    for _ in range(10):
        due = server.machine.deadline()
        assert server.now < due <= server.now + 30
        server.tick(due)
    assert server.failure is None
    assert pairs.open_side(wire.ConnectionRole.SERVER, 2).machine.round_trip_s is None

    server = slow_server(Limits(frame_timeout_s=10))
    server.give(b"\x01")
    server.machine.pause_reading()
    run_until(server, 1_000)
    assert server.failure is None
    server.machine.resume_reading(1_000)
    run_until(server, 1_009.9)
    assert server.failure is None
    run_until(server, 1_015)
    assert isinstance(server.failure, PeerTimeoutError)


@pytest.mark.parametrize("role", wire.ConnectionRole)
def test_goodbye_in_the_greeting_says_nothing_and_ends(role: wire.ConnectionRole) -> None:
    side = pairs.Side(role)
    side.take()
    for _ in range(2):
        side.machine.goodbye("stopping")
        assert not side.has_data
        assert side.machine.state is wire.ConnectionState.CLOSED
    assert side.give(b"\xeb\x6e\xec\x8a\x00\x02") == []
    assert side.failure is None
