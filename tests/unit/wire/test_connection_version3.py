"""What version 3 adds: introductions, deadlines, cancel, goodbye, error details, pings."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from postroad.core import errors
from postroad.core.limits import Limits
from postroad.core.names import Address
from postroad.wire import (
    CancelFrame,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    GoodbyeFrame,
    HelloFrame,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
    WireConfig,
    java_string_hash,
)
from tests.support.wire import pairs


def beating(interval_s: float, timeout_s: float) -> Limits:
    return Limits(heartbeat_interval_s=interval_s, heartbeat_timeout_s=timeout_s)


def refusal(side: pairs.Side) -> str:
    """Why a side refused its peer; it must have said so to the peer too."""
    assert isinstance(side.failure, errors.HandshakeRejectedError)
    assert side.machine.state is ConnectionState.CLOSED
    assert side.machine.peer is None
    last = pairs.cut_version3(side.take())[-1]
    assert (last.kind, last.word) == (7, side.failure.code)
    assert last.body.decode() == str(side.failure)
    return str(side.failure)


@pytest.mark.parametrize("split", [pairs.whole, pairs.byte_by_byte])
def test_version_3_sides_connect(split: Callable[[bytes], Sequence[bytes]]) -> None:
    pair = pairs.Pair(
        pairs.make_config(limits=beating(1, 3), incarnation=7, compressions=("zlib",)),
        pairs.server_config(limits=beating(2, 9)),
    )
    pair.settle(split)
    assert pair.server.machine.peer == HelloFrame(
        cluster="zeebe-cluster",
        name="client",
        incarnation=7,
        address=pairs.CLIENT_ADDRESS,
        frame_bytes_max=4 * 1024 * 1024,
        requests_pending_max=16_384,
        heartbeat_timeout_ms=3_000,
        compressions=("zlib",),
    )
    assert pair.client.machine.peer == pairs.server_config(limits=beating(2, 9)).hello
    assert pair.client.machine.sender == pairs.SERVER_ADDRESS
    assert pair.server.machine.sender == pairs.CLIENT_ADDRESS


def test_a_hello_is_the_first_frame_of_either_side() -> None:
    server = pairs.Side(ConnectionRole.SERVER)
    server.give(b"\xeb\x6e\xec\x8a\x00\x03")
    assert server.take() == b"\x00\x03" + pairs.hello_frame(server.config.hello)
    assert server.machine.state is ConnectionState.AWAITING_HELLO
    assert server.events == []
    client = pairs.Side(ConnectionRole.CLIENT)
    client.take()
    client.give(b"\x00\x03")
    assert client.take() == pairs.hello_frame(client.config.hello)

    server = pairs.Side(ConnectionRole.SERVER)
    request = pairs.version3_sample(RequestFrame, ConnectionRole.SERVER)
    server.give(
        b"\xeb\x6e\xec\x8a\x00\x03"
        + pairs.hello_frame(pairs.peer_hello(ConnectionRole.SERVER))
        + request * 2
    )
    expected = RequestFrame(7, "echo", b"payload")
    assert server.events == [ConnectionOpened(3), expected, expected]


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("receiver", ConnectionRole)
def test_frames_before_the_hello_are_refused(receiver: ConnectionRole, pieces: int) -> None:
    """Else a peer could do without an identity by never telling one."""
    kind = RequestFrame if receiver is ConnectionRole.SERVER else ReplyFrame
    side = pairs.open_side(receiver, 3)
    frames = pairs.version3_sample(kind, receiver) * 2
    side.give(*([frames] if pieces == 1 else [frames[:30], frames[30:]]))
    assert side.events == []
    assert isinstance(side.failure, errors.UnexpectedFrameError)


def test_cluster_names_with_equal_hash_are_distinguished() -> None:
    assert java_string_hash("Aa") == java_string_hash("BB")
    pair = pairs.Pair(pairs.make_config(cluster="Aa"), pairs.make_config("server", cluster="BB"))
    pair.server.give(pair.client.take())
    pair.client.give(pair.server.take())
    pair.server.give(pair.client.take())
    assert pair.client.events == pair.server.events == []
    assert "cluster 'BB'" in str(pair.client.failure)
    assert "cluster 'Aa'" in refusal(pair.server)


@pytest.mark.parametrize("role", ConnectionRole)
def test_a_second_node_of_the_same_name_or_a_silent_one_is_refused(role: ConnectionRole) -> None:
    side = pairs.open_side(role, 3)
    ours = side.config.hello
    side.give(pairs.changed_hello(role, name=ours.name, incarnation=2, address=Address("b", 9)))
    assert refusal(side) == f"another live node at b:9 is named '{ours.name}'"
    assert isinstance(side.failure, errors.DuplicateNameHandshakeError)

    side = pairs.open_side(role, 3)
    (goodbye,) = pairs.cut_version3(side.tick(side.config.limits.handshake_timeout_s))
    assert isinstance(side.failure, errors.PeerTimeoutError)
    assert (goodbye.kind, goodbye.word) == (7, errors.PeerTimeoutError.code)

    # The hello was under way already when this side decided to stop.
    side = pairs.open_side(role, 3)
    side.machine.goodbye("stopping", 3100)
    assert pairs.cut_version3(side.take())[-1].body == b"stopping"
    side.give(pairs.hello_frame(pairs.peer_hello(role)))
    assert side.failure is None


def test_a_certificate_of_another_name_is_refused(subtests: pytest.Subtests) -> None:
    for names, shown in [
        (frozenset({"mallory"}), "mallory"),
        (frozenset({"mallory", "eve"}), "eve, mallory"),
        (frozenset[str](), "no node"),
    ]:
        for role in ConnectionRole:
            with subtests.test(shown=shown, role=role):
                config = (
                    pairs.make_config() if role is ConnectionRole.CLIENT else pairs.server_config()
                )
                side = pairs.Side(role, config, certificate_names=names)
                side.give(
                    b"\x00\x03" if role is ConnectionRole.CLIENT else b"\xeb\x6e\xec\x8a\x00\x03"
                )
                side.take()
                side.give(pairs.hello_frame(pairs.peer_hello(role)))
                name = role.opposite.value
                text = f"node '{name}' has a certificate for {shown}; its name must be in it"
                assert refusal(side) == text

    names = frozenset({"other", "client", "server"})
    pair = pairs.Pair(client_names=names, server_names=names)
    pair.settle()
    assert pair.client.failure is pair.server.failure is None

    config = pairs.make_config("alone")
    pair = pairs.open_pair(config, config)
    assert pair.client.failure is pair.server.failure is None


def test_refused_side_receives_the_reason() -> None:
    pair = pairs.Pair(pairs.make_config("same"), pairs.make_config("same", incarnation=2))
    pair.server.give(pair.client.take())
    pair.client.give(pair.server.take()[:2])
    pair.server.give(pair.client.take())
    pair.client.give(cut_goodbye(pair.server.take()))
    (goodbye,) = pair.client.events
    assert isinstance(goodbye, GoodbyeFrame)
    assert goodbye.code == errors.DuplicateNameHandshakeError.code
    assert "is named 'same'" in goodbye.reason
    assert pair.client.machine.state is ConnectionState.DRAINING


def cut_goodbye(data: bytes) -> bytes:
    """The goodbye alone, as if the hello before it had been refused unread."""
    frame = pairs.cut_version3(data)[-1]
    return pairs.version3_frame(frame.kind, frame.body, word=frame.word)


def test_requests_and_replies_tell_deadline_direction_code_and_retry() -> None:
    pair = pairs.open_pair()
    pair.client.machine.request(1, "slow", b"", 2_500)
    pair.client.machine.request(2, "log", b"line", 0, one_way=True)
    pair.settle()
    assert pair.server.events == [
        RequestFrame(1, "slow", b"", 2_500),
        RequestFrame(2, "log", b"line", 0, one_way=True),
    ]

    pair = pairs.open_pair()
    pair.client.machine.request(1, "slow", b"", 0)
    pair.client.machine.cancel(1)
    pair.settle()
    assert pair.server.events == [RequestFrame(1, "slow", b""), CancelFrame(1)]

    pair = pairs.open_pair()
    pair.server.machine.reply(1, ReplyStatus.HANDLER_FAILED, b"busy", 3800, True)
    pair.server.machine.reply(2, ReplyStatus.STOPPING, b"", 3100, True)
    pair.settle()
    assert pair.client.events == [
        ReplyFrame(1, ReplyStatus.HANDLER_FAILED, b"busy", 3800, retryable=True),
        ReplyFrame(2, ReplyStatus.STOPPING, b"", 3100, retryable=True),
    ]


def test_a_reply_to_nothing_ends_a_connection_of_version_3() -> None:
    client = pairs.greeted_side(ConnectionRole.CLIENT)
    client.machine.on_unmatched_reply(ReplyFrame(99, ReplyStatus.OK, b""))
    assert isinstance(client.failure, errors.UnexpectedFrameError)
    assert "reply to request 99" in str(client.failure)
    assert pairs.cut_version3(client.take())[-1].kind == 7

    client = pairs.open_side(ConnectionRole.CLIENT, 2)
    client.machine.on_unmatched_reply(ReplyFrame(99, ReplyStatus.OK, b""))
    assert client.failure is None


@pytest.mark.parametrize("speaker", ConnectionRole)
def test_connection_after_goodbye_finishes_requests_in_flight(speaker: ConnectionRole) -> None:
    pair = pairs.open_pair()
    pair.client.machine.request(1, "slow", b"", 0)
    pair.settle()
    side = pair.client if speaker is ConnectionRole.CLIENT else pair.server
    side.machine.goodbye("stopping", 3100)
    pair.settle()
    assert pair.client.machine.state is pair.server.machine.state is ConnectionState.DRAINING

    pair.server.machine.reply(1, ReplyStatus.OK, b"done")
    pair.settle()
    listener = pair.server if speaker is ConnectionRole.CLIENT else pair.client
    assert GoodbyeFrame(3100, "stopping") in listener.events
    assert pair.client.events[-1] == ReplyFrame(1, ReplyStatus.OK, b"done")


def test_goodbye_of_both_or_repeated_is_accepted() -> None:
    pair = pairs.open_pair()
    pair.client.machine.goodbye("idle")
    pair.server.machine.goodbye("stopping")
    pair.settle()
    assert pair.client.events == [GoodbyeFrame(0, "stopping")]
    assert pair.server.events == [GoodbyeFrame(0, "idle")]
    assert pair.client.failure is pair.server.failure is None

    pair = pairs.open_pair()
    pair.server.machine.goodbye("stopping")
    pair.server.machine.goodbye("stopped")
    pair.settle()
    assert pair.client.events == [GoodbyeFrame(0, "stopping"), GoodbyeFrame(0, "stopped")]
    assert pair.server.machine.state is ConnectionState.DRAINING


def test_the_peers_frame_limit_holds_but_not_for_the_introduction() -> None:
    small = Limits(frame_bytes_max=500, heartbeat_interval_s=0, heartbeat_timeout_s=0)
    pair = pairs.open_pair(pairs.make_config(), pairs.server_config(limits=small))
    assert pair.client.machine.send_bytes_max == 500
    assert pair.server.machine.send_bytes_max == 4 * 1024 * 1024

    tiny = Limits(frame_bytes_max=16, heartbeat_interval_s=0, heartbeat_timeout_s=0)
    pair = pairs.open_pair(pairs.make_config(limits=tiny), pairs.server_config(limits=tiny))
    assert pair.client.failure is pair.server.failure is None
    assert pair.client.machine.send_bytes_max == 16


def compressing(name: str, *compressions: str) -> WireConfig:
    return pairs.make_config(name, compressions=compressions)


def test_compression_is_used_if_both_offer_it(subtests: pytest.Subtests) -> None:
    for ours, theirs, is_compressed in [
        (("zlib",), ("zlib",), True),
        (("zlib", "zstd"), ("zstd", "zlib"), True),
        (("zstd",), ("zlib",), False),
        (("zlib",), (), False),
        ((), ("zlib",), False),
    ]:
        with subtests.test(is_compressed=is_compressed):
            pair = pairs.open_pair(compressing("client", *ours), compressing("server", *theirs))
            payload = b"to be or not to be, " * 500
            pair.client.machine.request(1, "echo", payload, 0)
            data = pair.client.take()
            assert (len(data) < 1_000) is is_compressed
            pair.server.give(data)
            assert pair.server.events == [RequestFrame(1, "echo", payload)]
            pair.server.machine.reply(1, ReplyStatus.OK, payload)
            data = pair.server.take()
            assert (len(data) < 1_000) is is_compressed
            pair.client.give(data)
            assert pair.client.events == [ReplyFrame(1, ReplyStatus.OK, payload)]

    # A client that has heard the server's hello knows what is agreed, and writes at once.
    pair = pairs.Pair(compressing("client", "zlib"), compressing("server", "zlib"))
    pair.server.give(pair.client.take())
    pair.client.give(pair.server.take())
    payload = bytes(10_000)
    pair.client.machine.request(1, "echo", payload, 0)
    pair.client.machine.request(2, "echo", payload, 0)
    pair.server.give(pair.client.take())
    assert pair.server.failure is None
    assert pair.server.events == [
        ConnectionOpened(3),
        RequestFrame(1, "echo", payload),
        RequestFrame(2, "echo", payload),
    ]


def test_both_sides_ping_when_quiet_each_by_its_own_interval() -> None:
    pair = pairs.open_pair(
        pairs.make_config(limits=beating(2, 30)), pairs.server_config(limits=beating(5, 30))
    )
    kinds: dict[ConnectionRole, list[int]] = {ConnectionRole.CLIENT: [], ConnectionRole.SERVER: []}
    for now in range(1, 31):
        for side in (pair.client, pair.server):
            data = side.tick(now)
            kinds[side.machine.role] += [frame.kind for frame in pairs.cut_version3(data)]
            other = pair.server if side is pair.client else pair.client
            other.now = now
            other.give(data)
    # A pong is a write as well, so the server, which answers every 2 s, is never quiet for 5 s.
    assert kinds[ConnectionRole.CLIENT].count(5) == 15
    assert kinds[ConnectionRole.SERVER].count(5) == 0
    assert kinds[ConnectionRole.SERVER].count(6) >= 14
    assert pair.client.failure is pair.server.failure is None


@pytest.mark.parametrize("receiver", ConnectionRole)
def test_a_ping_is_answered_with_its_id(receiver: ConnectionRole) -> None:
    side = pairs.greeted_side(receiver)
    side.take()
    assert side.give(pairs.version3_frame(5, id=77)) == []
    assert side.take() == pairs.version3_frame(6, id=77)


def test_a_ping_measures_the_round_trip_and_sets_the_pace() -> None:
    pair = pairs.open_pair(pairs.make_config(limits=beating(5, 15)), pairs.server_config())
    ping = pair.client.tick(5)
    pair.server.give(ping)
    pair.client.now = 5.125
    pair.client.give(pair.server.take())
    assert pair.client.machine.round_trip_s == 0.125
    assert pair.server.machine.round_trip_s is None

    pair = pairs.open_pair(
        pairs.make_config(limits=beating(5, 15)), pairs.server_config(limits=beating(1, 3))
    )
    assert pair.client.machine.deadline() == 1
    slow = msgspec.structs.replace(pairs.make_config(), limits=pairs.QUIET)
    pair = pairs.open_pair(slow, pairs.server_config(limits=beating(1, 3)))
    assert pair.client.machine.deadline() == 1
    assert [frame.kind for frame in pairs.cut_version3(pair.client.tick(1))] == [5]
    # Else a side that only hears would never ping, and its peer would give it up.
    pair = pairs.open_pair(
        pairs.make_config(limits=beating(5, 15)), pairs.server_config(limits=beating(5, 15))
    )
    assert pair.server.machine.data_to_send(4) == []
    assert pair.server.machine.deadline() == 5
    assert [frame.kind for frame in pairs.cut_version3(pair.server.tick(5))] == [5]


@pytest.mark.parametrize("role", ConnectionRole)
def test_silent_peer_is_disconnected(role: ConnectionRole) -> None:
    side = pairs.Side(role, pairs.make_config("ours", limits=beating(5, 15)))
    side.give(b"\x00\x03" if role is ConnectionRole.CLIENT else b"\xeb\x6e\xec\x8a\x00\x03")
    side.give(pairs.changed_hello(role, name="theirs"))
    side.take()
    beats = []
    while side.failure is None:
        now = side.machine.deadline()
        assert side.now < now <= 15
        beats += [frame.kind for frame in pairs.cut_version3(side.tick(now))]
    assert side.now == 15
    assert isinstance(side.failure, errors.PeerTimeoutError)
    assert beats == [5, 5, 7]


def test_pausing_suspends_giving_up_and_resuming_starts_anew() -> None:
    pair = pairs.open_pair(pairs.make_config(), pairs.server_config(limits=beating(5, 15)))
    server = pair.server
    server.machine.pause_reading()
    for now in range(5, 105, 5):
        assert [frame.kind for frame in pairs.cut_version3(server.tick(now))] == [5]
    assert server.failure is None
    assert server.machine.deadline() > 100

    server.machine.resume_reading(100)
    server.tick(114.9)
    assert server.failure is None
    server.tick(115)
    assert isinstance(server.failure, errors.PeerTimeoutError)
