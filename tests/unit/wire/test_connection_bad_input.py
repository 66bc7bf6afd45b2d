"""What a peer may do wrong: each ends in a typed failure of that connection, and nothing raises."""

import random
import struct
import tracemalloc

import pytest

from postroad.core.errors import (
    FrameTooLargeError,
    HandshakeRejectedError,
    MalformedFrameError,
    PeerTimeoutError,
    RemoteProtocolError,
)
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.wire import (
    DOCUMENTED,
    ZEEBE,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    ProtocolProfile,
    ReplyFrame,
    RequestFrame,
)
from postroad.wire.compression import load_algorithm
from tests.support.wire import pairs

PREAMBLE = b"\xeb\x6e\xec\x8a"
SENDER = b"\x00\x01h\x00\x00\x00\x01"
PROFILES = {"documented": DOCUMENTED, "zeebe": ZEEBE}


def assert_closed(side: pairs.Side, failure: type[RemoteProtocolError], text: str = "") -> None:
    assert type(side.failure) is failure
    assert text in str(side.failure)
    assert side.machine.state is ConnectionState.CLOSED


def older_side(role: ConnectionRole, profile: ProtocolProfile) -> pairs.Side:
    """A side of version 2 whose peer has told its address."""
    side = pairs.open_side(role, 2, profile)
    side.give(SENDER)
    side.events.clear()
    return side


@pytest.fixture(params=PROFILES)
def profile(request: pytest.FixtureRequest) -> ProtocolProfile:
    return PROFILES[request.param]


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes(profile: ProtocolProfile, seed: int) -> None:
    noise = random.Random(seed).randbytes(1_000)
    for role in ConnectionRole:
        side = pairs.Side(role, pairs.make_config(profile=profile))
        side.take()
        side.give(*pairs.byte_by_byte(noise))
        assert_closed(side, HandshakeRejectedError)


def test_a_wrong_preamble_is_answered_with_nothing_and_ends_it(profile: ProtocolProfile) -> None:
    server = pairs.Side(ConnectionRole.SERVER, pairs.server_config(profile=profile))
    server.give(b"\xeb\x6e\xec\x8b\x00\x02")
    assert_closed(server, HandshakeRejectedError, "preamble eb 6e ec 8b is not eb 6e ec 8a")
    assert not server.has_data

    server = pairs.Side(ConnectionRole.SERVER, pairs.server_config(profile=profile))
    server.give(b"wrong!")
    assert server.give(PREAMBLE + b"\x00\x02") == []
    assert not server.has_data


def test_other_protocols_and_tls_are_refused(
    profile: ProtocolProfile, subtests: pytest.Subtests
) -> None:
    for line in [b"GET / HTTP/1.1\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"INFO {}"]:
        with subtests.test(line=line):
            for role in ConnectionRole:
                side = pairs.Side(role, pairs.make_config(profile=profile))
                side.give(line)
                assert_closed(side, HandshakeRejectedError)

    for record in ["16 03 01 02 00 01 00 01 fc 03 03", "15 03 03 00 02 02 46"]:
        with subtests.test(record=record):
            server = pairs.Side(ConnectionRole.SERVER, pairs.server_config(profile=profile))
            server.give(bytes.fromhex(record))
            assert_closed(server, HandshakeRejectedError, "the peer speaks TLS")

    client = pairs.Side(ConnectionRole.CLIENT, pairs.make_config(profile=profile))
    client.give(bytes.fromhex("15 03 03 00 02 02 46"))
    assert_closed(client, HandshakeRejectedError, "the peer speaks TLS")


@pytest.mark.parametrize("answer", [-1, 0, 4, 99])
def test_the_client_closes_on_an_unknown_version(profile: ProtocolProfile, answer: int) -> None:
    client = pairs.Side(ConnectionRole.CLIENT, pairs.make_config(profile=profile))
    client.take()
    client.give((PREAMBLE if profile is ZEEBE else b"") + struct.pack(">h", answer))
    assert_closed(client, HandshakeRejectedError, f"the peer answered version {answer}")
    assert not client.has_data


def test_a_handshake_or_answer_cut_anywhere_is_waited_for(profile: ProtocolProfile) -> None:
    for first, second in pairs.two_pieces(PREAMBLE + b"\x00\x02"):
        server = pairs.Side(ConnectionRole.SERVER, pairs.server_config(profile=profile))
        assert server.give(first) == []
        assert not server.has_data
        assert server.give(second) == [ConnectionOpened(2)]

    for first, second in pairs.two_pieces((PREAMBLE if profile is ZEEBE else b"") + b"\x00\x02"):
        client = pairs.Side(ConnectionRole.CLIENT, pairs.make_config(profile=profile))
        assert client.give(first) == []
        assert client.give(second) == [ConnectionOpened(2)]


REQUEST_HEADS = {"documented": struct.pack(">bq", 1, 7), "zeebe": b"\x01\x07"}


def test_a_bad_address_ends_the_connection(
    profile: ProtocolProfile, subtests: pytest.Subtests
) -> None:
    for sender in [
        "80 00",
        "ff ff",
        "00 01 61 00 01 00 00",
        "00 01 61 ff ff ff ff",
        "00 01 ff 00 00 00 01",
    ]:
        with subtests.test(sender=sender):
            for role in ConnectionRole:
                side = pairs.open_side(role, 2, profile)
                side.give(bytes.fromhex(sender))
                assert_closed(side, MalformedFrameError, "sender")

    for sender in ["05 00", "ff ff", "04 7f 00 00 01 00 01 00 00"]:
        with subtests.test(sender=sender):
            server = pairs.open_side(ConnectionRole.SERVER, 1, profile)
            server.give(bytes.fromhex(sender))
            assert_closed(server, MalformedFrameError, "sender")


LENGTHS = {
    ("documented", "-1"): (b"\xff\xff\xff\xff", MalformedFrameError),
    ("documented", "2 GiB"): (b"\x7f\xff\xff\xff", FrameTooLargeError),
    ("zeebe", "-1"): (b"\xff\xff\xff\xff\x0f", FrameTooLargeError),
    ("zeebe", "2 GiB"): (b"\xff\xff\xff\xff\x07", FrameTooLargeError),
}


@pytest.mark.parametrize(("case", "expected"), LENGTHS.items(), ids=map(" ".join, LENGTHS))
def test_impossible_lengths_take_no_memory(
    case: tuple[str, str], expected: tuple[bytes, type[RemoteProtocolError]]
) -> None:
    length, failure = expected
    server = older_side(ConnectionRole.SERVER, PROFILES[case[0]])
    assert peak_bytes(server, REQUEST_HEADS[case[0]] + length) < 64 * 1024
    assert_closed(server, failure)


def peak_bytes(side: pairs.Side, data: bytes) -> int:
    tracemalloc.start()
    try:
        side.give(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("feed", pairs.FEEDINGS)
def test_a_subject_that_is_no_text_is_answered_before_the_end(
    profile: ProtocolProfile, feed: str
) -> None:
    good, bad = {
        "documented": (
            struct.pack(">bqii", 1, 6, 0, 1) + b"a",
            struct.pack(">bqii", 1, 7, 0, 2) + b"\xc3\x28",
        ),
        "zeebe": (b"\x01\x06\x00\x00\x01a", b"\x01\x07\x00\x00\x02\xc3\x28"),
    }[profile.name]
    server = older_side(ConnectionRole.SERVER, profile)
    server.give(*pairs.FEEDINGS[feed]([good, bad]))
    assert server.events == [RequestFrame(6, "a", b"")]
    assert_closed(server, MalformedFrameError, "subject is not valid UTF-8")

    client = pairs.open_side(ConnectionRole.CLIENT, 2, profile)
    (reply,) = client.give(server.take())
    assert isinstance(reply, ReplyFrame)
    assert (reply.id, reply.status) == (7, 3)
    assert b"UTF-8" in reply.payload


def test_an_unknown_status_ends_it_after_the_frames_before(profile: ProtocolProfile) -> None:
    client = older_side(ConnectionRole.CLIENT, profile)
    head = b"\x02\x01\x00" if profile is ZEEBE else struct.pack(">bqi", 2, 1, 0)
    client.give(head + b"\x04")
    assert_closed(client, MalformedFrameError, "unknown status 4")
    assert not client.has_data

    server = older_side(ConnectionRole.SERVER, profile)
    good = b"\x01\x01\x00\x00\x00" if profile is ZEEBE else struct.pack(">bqii", 1, 1, 0, 0)
    assert server.give(good + b"\xff" * 20) == [RequestFrame(1, "", b"")]
    assert_closed(server, MalformedFrameError)


def test_closed_connection_ignores_data_in_its_buffer() -> None:
    server = pairs.greeted_side(ConnectionRole.SERVER)
    begin, end = pairs.cut_at(
        pairs.version3_frame(1, b"echo" + bytes(200_000), short=4, id=7), [100_000]
    )
    server.give(begin)
    assert server.machine.wants_buffer
    room = server.machine.receive_buffer()
    assert room is not None
    for now in range(0, 100, 5):
        server.tick(now)
    failure = server.failure
    assert isinstance(failure, PeerTimeoutError)

    assert server.machine.receive_buffer() is None
    room[: len(end)] = end
    assert server.machine.buffer_updated(len(end), 100) == []
    assert server.failure is failure


def test_version_3_malformed_frame_is_answered_with_goodbye(subtests: pytest.Subtests) -> None:
    Case = tuple[bytes, type[RemoteProtocolError], str]
    for role in ConnectionRole:
        for frame, failure, text in list[Case](
            [
                (
                    struct.pack(">IBBHIQ", 0, 1, 0, 0, 0, 0),
                    MalformedFrameError,
                    "shorter than its header",
                ),
                (
                    struct.pack(">IBBHIQ", 2**31, 1, 0, 0, 0, 0),
                    FrameTooLargeError,
                    "2147483632 bytes",
                ),
                (
                    struct.pack(">IBBHIQ", 2**32 - 1, 2, 0, 0, 0, 0),
                    FrameTooLargeError,
                    "4294967279 bytes",
                ),
                (pairs.version3_frame(99), MalformedFrameError, "unknown frame type 99"),
                (pairs.version3_frame(0), MalformedFrameError, "unknown frame type 0"),
                (pairs.version3_frame(2, short=5), MalformedFrameError, "unknown status 5"),
                (pairs.version3_frame(5, b"!"), FrameTooLargeError, "1 bytes was announced, 0"),
                (
                    pairs.version3_frame(2, bytes(600), flags=2),
                    MalformedFrameError,
                    "no compression was negotiated",
                ),
            ]
        ):
            with subtests.test(role=role, frame=frame):
                side = pairs.greeted_side(role)
                side.take()
                assert peak_bytes(side, frame) < 64 * 1024
                assert_closed(side, failure, text)
                (goodbye,) = pairs.cut_version3(side.take())
                assert (goodbye.kind, goodbye.word) == (7, failure.code)
                assert text in goodbye.body.decode()


def test_a_bad_request_is_answered_before_the_end(subtests: pytest.Subtests) -> None:
    for frame in [
        pairs.version3_frame(1, b"\xff", short=1, id=7),
        pairs.version3_frame(1, b"echo" + bytes(600), flags=2, short=4, id=7),
    ]:
        with subtests.test(frame=frame):
            server = pairs.greeted_side(ConnectionRole.SERVER)
            server.take()
            server.give(frame)
            assert_closed(server, MalformedFrameError)
            reply, goodbye = pairs.cut_version3(server.take())
            assert (reply.kind, reply.id, reply.short, reply.word) == (
                2,
                7,
                3,
                MalformedFrameError.code,
            )
            assert goodbye.kind == 7


@pytest.mark.parametrize("name", ["zlib", "zstd"])
@pytest.mark.parametrize("announced", [1_000, 64 * 1024 * 1024])
def test_a_decompression_bomb(name: str, announced: int) -> None:
    server = pairs.Side(ConnectionRole.SERVER, pairs.make_config("server", compressions=[name]))
    server.give(
        PREAMBLE + b"\x00\x03" + pairs.changed_hello(ConnectionRole.SERVER, compressions=(name,))
    )
    packed = load_algorithm(name).compress(bytes(64 * 1024 * 1024))
    body = b"echo" + struct.pack(">I", announced) + packed
    data = pairs.version3_frame(1, body, flags=2, short=4, id=7)
    assert peak_bytes(server, data) < 4 * 1024 * 1024
    assert isinstance(server.failure, MalformedFrameError | FrameTooLargeError)
    assert server.events == [ConnectionOpened(3)]


def test_a_bad_hello_ends_the_connection(subtests: pytest.Subtests) -> None:
    for role in ConnectionRole:
        for body, failure, text in [
            (b"", MalformedFrameError, "hello lacks its cluster"),
            (pairs.hello_fields({1: b"c"}), MalformedFrameError, "hello lacks its name"),
            (
                pairs.hello_fields({1: b"c", 2: b"a@b", 3: bytes(8), 6: b"\x01" * 4}),
                MalformedFrameError,
                "a@b",
            ),
            (
                pairs.hello_fields({1: b"c", 2: b"a", 3: b"", 6: b"\x01" * 4}),
                MalformedFrameError,
                "incarnation",
            ),
            (b"\x00", MalformedFrameError, "ends inside a field"),
            (bytes(HELLO_BYTES_MAX + 1), FrameTooLargeError, f"{HELLO_BYTES_MAX} are accepted"),
        ]:
            with subtests.test(role=role, body=body):
                side = pairs.open_side(role, 3)
                side.give(pairs.version3_frame(3, body))
                assert_closed(side, failure, text)
                assert side.machine.peer is None


@pytest.mark.parametrize("role", ConnectionRole)
def test_a_hello_cut_anywhere_is_waited_for(role: ConnectionRole) -> None:
    for first, second in pairs.two_pieces(pairs.hello_frame(pairs.peer_hello(role))):
        side = pairs.open_side(role, 3)
        assert side.give(first) == []
        assert side.give(second) == [ConnectionOpened(3)]
