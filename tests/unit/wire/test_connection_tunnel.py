"""Tunnels: connections on which both sides send requests and neither answers."""

from collections.abc import Callable, Sequence

import pytest

from postroad.core import errors
from postroad.core.limits import Limits
from postroad.wire import (
    DOCUMENTED,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    GoodbyeFrame,
    RequestFrame,
)
from tests.support.wire import pairs
from tests.support.wire.tunnel_ends import (
    PREAMBLE,
    tunnel_client,
    tunnel_hello,
    tunnel_pair,
    tunnel_server,
    tunnel_side,
    with_part,
)

REQUEST = pairs.version3_sample(RequestFrame, ConnectionRole.SERVER)
BEATING = Limits(heartbeat_interval_s=5, heartbeat_timeout_s=15)


def phase_of(side: pairs.Side) -> ConnectionState:
    return side.machine.state


@pytest.mark.parametrize("split", [pairs.whole, pairs.byte_by_byte])
def test_a_client_waits_until_its_tunnel_is_taken(
    split: Callable[[bytes], Sequence[bytes]],
) -> None:
    pair = pairs.Pair(tunnel_client(), tunnel_server())
    pair.settle(split)
    assert pair.server.events == [ConnectionOpened(3)]
    assert pair.client.events == []
    assert phase_of(pair.client) is ConnectionState.AWAITING_TUNNEL

    pair.server.machine.ping(0)
    pair.settle(split)
    assert pair.client.events == [ConnectionOpened(3)]
    assert phase_of(pair.client) is ConnectionState.OPEN
    assert pair.client.machine.is_tunnel and pair.server.machine.is_tunnel


def test_a_tunnel_checks_its_peer_and_learns_its_part() -> None:
    pair = tunnel_pair()
    client, server = pair.client.machine.peer, pair.server.machine.peer
    assert client is not None and server is not None
    assert (client.role, client.zone, client.is_tunnel) == ("core", "north", False)
    assert (server.role, server.zone, server.is_tunnel) == ("satellite", "", True)
    side = tunnel_side(ConnectionRole.CLIENT, is_taken=False)
    assert side.give(REQUEST) == [ConnectionOpened(3), RequestFrame(7, "echo", b"payload")]
    assert side.machine.state is ConnectionState.OPEN

    namesake = with_part(pairs.make_config("client", incarnation=2), role="core")
    pair = pairs.Pair(tunnel_client(), namesake)
    pair.settle()
    assert isinstance(pair.client.failure, errors.DuplicateNameHandshakeError)
    pair = pairs.Pair(tunnel_client(), tunnel_server(), client_names=frozenset({"somebody"}))
    pair.settle()
    assert isinstance(pair.server.failure, errors.HandshakeRejectedError)
    assert "certificate for somebody" in str(pair.server.failure)


@pytest.mark.parametrize("role", ConnectionRole)
def test_small_and_large_messages_may_follow_the_hello(role: ConnectionRole) -> None:
    is_client = role is ConnectionRole.CLIENT
    side = pairs.Side(role, tunnel_client() if is_client else tunnel_server())
    opening = PREAMBLE[4:] if is_client else PREAMBLE
    side.give(opening + pairs.hello_frame(tunnel_hello(role)) + REQUEST * 2)
    expected = RequestFrame(7, "echo", b"payload")
    assert side.events == [ConnectionOpened(3), expected, expected]

    side = pairs.Side(role, tunnel_client() if is_client else tunnel_server())
    payload = bytes(range(256)) * 4_000
    large = pairs.version3_frame(1, b"bulk" + payload, short=4)
    opening = (PREAMBLE[4:] if is_client else PREAMBLE) + pairs.hello_frame(tunnel_hello(role))
    data = opening + large + REQUEST
    side.pour(data, piece_bytes=200_000)
    requests = [RequestFrame(0, "bulk", payload), RequestFrame(7, "echo", b"payload")]
    assert side.events == [ConnectionOpened(3), *requests]


def test_a_client_that_waits_is_refused_gives_up_or_hears_nothing() -> None:
    pair = pairs.Pair(tunnel_client(), tunnel_server())
    pair.settle()
    pair.server.machine.goodbye("not you", errors.HandshakeRejectedError.code)
    pair.settle()
    assert pair.client.events == [GoodbyeFrame(errors.HandshakeRejectedError.code, "not you")]
    assert pair.client.failure is None

    side = tunnel_side(ConnectionRole.CLIENT, is_taken=False)
    assert side.machine.deadline() == 5
    side.tick(5)
    assert isinstance(side.failure, errors.PeerTimeoutError)
    assert "no complete handshake" in str(side.failure)

    side = tunnel_side(ConnectionRole.CLIENT, is_taken=False)
    side.machine.goodbye("given up")
    assert [frame.body for frame in pairs.cut_version3(side.take())] == [b"given up"]
    assert side.machine.state is ConnectionState.CLOSED


def test_a_server_without_a_role_or_of_an_older_version_is_refused() -> None:
    """It may be an older node, which knows of no tunnels and would answer."""
    pair = pairs.Pair(tunnel_client(), pairs.server_config())
    pair.settle()
    assert isinstance(pair.client.failure, errors.HandshakeRejectedError)
    assert str(pair.client.failure) == (
        "node 'server' accepts no tunnels: it has no role in the cells layer"
    )
    (goodbye,) = [event for event in pair.server.events if isinstance(event, GoodbyeFrame)]
    assert goodbye.code == errors.HandshakeRejectedError.code

    older = pairs.server_config(profile=DOCUMENTED.up_to(2))
    pair = pairs.Pair(tunnel_client(), older)
    pair.settle()
    assert isinstance(pair.client.failure, errors.HandshakeRejectedError)
    assert (
        str(pair.client.failure) == "the peer answered protocol version 2; tunnels need version 3"
    )
    assert pair.client.events == []


def test_a_role_or_the_word_of_a_server_alone_makes_no_tunnel() -> None:
    client = with_part(pairs.make_config(), role="satellite")
    pair = pairs.Pair(client, tunnel_server())
    pair.settle()
    assert pair.client.events == pair.server.events == [ConnectionOpened(3)]
    pair.client.machine.request(1, "echo", b"", 0)
    pair.settle()
    pair.server.machine.reply(1, 0, b"answer")
    pair.settle()
    assert pair.client.failure is pair.server.failure is None

    side = pairs.Side(ConnectionRole.CLIENT)
    hello = with_part(tunnel_server(), is_tunnel=True).hello
    side.give(PREAMBLE[4:] + pairs.hello_frame(hello))
    assert side.events == [ConnectionOpened(3)]
    assert not side.machine.is_tunnel


def ends(pair: pairs.Pair, sender: ConnectionRole) -> tuple[pairs.Side, pairs.Side]:
    sides = (pair.client, pair.server)
    return sides if sender is ConnectionRole.CLIENT else (sides[1], sides[0])


@pytest.mark.parametrize("sender", ConnectionRole)
@pytest.mark.parametrize("split", [pairs.whole, pairs.byte_by_byte])
def test_both_ends_send(sender: ConnectionRole, split: Callable[[bytes], Sequence[bytes]]) -> None:
    near, far = ends(tunnel_pair(), sender)
    for number in range(20):
        near.machine.request(0, f"subject-{number % 3}", bytes([number]), 0)
    far.give(*split(near.take()))
    assert far.events == [
        RequestFrame(0, f"subject-{number % 3}", bytes([number])) for number in range(20)
    ]
    assert far.take() == b"", "nothing is answered"


@pytest.mark.parametrize("receiver", ConnectionRole)
def test_usual_messages_are_handed_over_as_they_were_decoded(
    receiver: ConnectionRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each frame that is looked at once more costs as much as decoding it."""
    side = tunnel_side(receiver)
    looked_at: list[object] = []
    monkeypatch.setattr(
        type(side.machine), "_process_frame", lambda _, frame, *__: looked_at.append(frame)
    )
    assert len(side.give(REQUEST * 100)) == 100
    assert looked_at == []
    side.give(REQUEST + pairs.version3_frame(5, id=3))
    assert len(looked_at) == 2


@pytest.mark.parametrize("receiver", ConnectionRole)
def test_large_and_one_way_messages_do_no_harm(receiver: ConnectionRole) -> None:
    side = tunnel_side(receiver)
    payload = bytes(range(256)) * 8_000
    data = pairs.version3_frame(1, b"bulk" + payload, short=4) + REQUEST
    assert side.pour(data) == [
        RequestFrame(0, "bulk", payload),
        RequestFrame(7, "echo", b"payload"),
    ]

    side = tunnel_side(receiver)
    side.give(pairs.version3_frame(1, b"echo", flags=1, short=4, id=7))
    assert side.events == [RequestFrame(7, "echo", b"", 0, True)]
    assert side.failure is None


@pytest.mark.parametrize("receiver", ConnectionRole)
def test_a_broken_or_oversized_message_is_not_answered(receiver: ConnectionRole) -> None:
    side = tunnel_side(receiver)
    side.give(REQUEST + pairs.version3_frame(1, b"\xff", short=1, id=9))
    assert side.events == [RequestFrame(7, "echo", b"payload")]
    assert isinstance(side.failure, errors.MalformedFrameError)
    (goodbye,) = pairs.cut_version3(side.take())
    assert (goodbye.kind, goodbye.word) == (7, errors.MalformedFrameError.code)

    side = tunnel_side(receiver)
    side.give(
        pairs.version3_frame(1, short=4)[:20].replace(b"\x00\x00\x00\x10", b"\x7f\xff\xff\xff", 1)
    )
    assert isinstance(side.failure, errors.FrameTooLargeError)


def test_nothing_is_compressed() -> None:
    server = with_part(pairs.make_config("server", compressions=("zlib",)), role="core")
    pair = tunnel_pair(tunnel_client(compressions=("zlib",)), server)
    payload = bytes(10_000)
    pair.client.machine.request(0, "echo", payload, 0)
    (frame,) = pairs.cut_version3(pair.client.take())
    assert (frame.flags, frame.body) == (0, b"echo" + payload)

    pair.server.give(pairs.version3_frame(1, b"echo" + bytes(20), flags=2, short=4))
    assert isinstance(pair.server.failure, errors.MalformedFrameError)
    assert "no compression was negotiated" in str(pair.server.failure)


def test_the_round_trip_is_measured_while_both_are_busy() -> None:
    pair = tunnel_pair(tunnel_client(BEATING), tunnel_server(BEATING))
    for now in range(1, 20):
        pair.tick(now)
        pair.client.machine.request(0, "news", b"", 0)
        pair.server.machine.request(0, "news", b"", 0)
        pair.settle()
    assert pair.client.machine.round_trip_s is None, "nobody is ever quiet"

    pair.client.machine.ping(20.0)
    pair.server.give(pair.client.take())
    pair.client.now = 20.25
    pair.client.give(pair.server.take())
    assert pair.client.machine.round_trip_s == 0.25


@pytest.mark.parametrize("role", ConnectionRole)
def test_a_silent_end_is_given_up_and_messages_survive_a_goodbye(role: ConnectionRole) -> None:
    near, far = ends(tunnel_pair(tunnel_client(BEATING), tunnel_server(BEATING)), role)
    near.tick(14.9)
    assert near.failure is None
    near.tick(15)
    assert isinstance(near.failure, errors.PeerTimeoutError)
    assert far.failure is None

    side = tunnel_side(role)
    side.machine.is_writable = False
    side.give(pairs.version3_frame(5, id=3), pairs.version3_frame(5, id=4))
    side.machine.ping(1.0)
    assert side.take() == b"", "it would only pile up"
    side.machine.is_writable = True
    side.machine.send_heartbeats()
    assert side.take() == pairs.version3_frame(6, id=4)
    side.machine.send_heartbeats()
    assert side.take() == b""


@pytest.mark.parametrize("sender", ConnectionRole)
def test_messages_under_way_survive_a_goodbye(sender: ConnectionRole) -> None:
    near, far = ends(tunnel_pair(), sender)
    near.machine.goodbye("stopping", 3100)
    assert near.machine.state is ConnectionState.DRAINING
    far.machine.request(0, "late", b"", 0)
    near.give(far.take())
    assert near.events == [RequestFrame(0, "late", b"")]
    far.give(near.take())
    assert far.events == [GoodbyeFrame(3100, "stopping")]
    assert near.failure is far.failure is None
