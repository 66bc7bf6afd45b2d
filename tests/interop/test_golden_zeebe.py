"""Bytes recorded from real nodes of the source system, in profile `zeebe`.

Every conversation is fed in the pieces it was written in, byte by byte, and all in one piece, to
either side.
"""

import struct

import pytest

from postroad.core.errors import HandshakeRejectedError, MalformedFrameError, PeerTimeoutError
from postroad.core.limits import Limits
from postroad.wire import (
    ZEEBE,
    ConnectionEvent,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    FrameIgnored,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
    decode_datagram,
    encode_preamble,
    java_string_hash,
)
from postroad.wire.codecs.zeebe import (
    decode_varint32,
    decode_varint64,
    encode_varint32,
    encode_varint64,
)
from tests.support.wire.pairs import (
    FEEDINGS,
    QUIET,
    WALL_CLOCK_MS,
    Pair,
    Side,
    make_config,
    open_pair,
    server_config,
)

PREAMBLE = bytes.fromhex("eb 6e ec 8a")
HANDSHAKE_1 = PREAMBLE + b"\x00\x01"
HANDSHAKE_2 = PREAMBLE + b"\x00\x02"

CLIENT_V2 = bytes.fromhex("00 09") + b"127.0.0.1" + bytes.fromhex("00 00 6d 5e")
SERVER_V2 = bytes.fromhex("00 09") + b"127.0.0.1" + bytes.fromhex("00 00 67 86")
CLIENT_V1 = bytes.fromhex("04 7f 00 00 01 00 00 6d 5e")
SERVER_V1 = bytes.fromhex("04 7f 00 00 01 00 00 67 86")

REQUEST_1 = bytes.fromhex("01 01 04") + b"nohb" + bytes.fromhex("00 04") + b"echo"
REPLY_1 = bytes.fromhex("02 01 04") + b"nohb" + b"\x00"
REQUEST_2 = bytes.fromhex("01 02 04") + b"nohb" + bytes.fromhex("00 04") + b"echo"
REPLY_2 = bytes.fromhex("02 02 04") + b"nohb" + b"\x00"

SETUP_REQUEST = bytes.fromhex("05 00 01 00 0a 00 02 00 98 3a 00 00 01")
SETUP_RESPONSE = bytes.fromhex("02 00 02 00 0a 00 02 00 01 01")
SETUP_TAIL = b"\x00\x18internal-heartbeat-setup"
BEAT_TAIL = b"\x00\x12internal-heartbeat"
TIMESTAMP = struct.pack("<Q", WALL_CLOCK_MS)
BEAT = bytes.fromhex("08 00 03 00 0a 00 02 00") + TIMESTAMP
BEAT_ANSWER = bytes.fromhex("08 00 04 00 0a 00 02 00") + TIMESTAMP

BEATING = Limits(heartbeat_interval_s=5, heartbeat_timeout_s=15)

feedings = pytest.mark.parametrize("feed", FEEDINGS)


def zeebe_client(
    limits: Limits = QUIET, *, version: int = 2, heartbeat_payload: bool = True
) -> Side:
    profile = ZEEBE.up_to(version)
    config = make_config(profile=profile, limits=limits, heartbeat_payload=heartbeat_payload)
    return Side(ConnectionRole.CLIENT, config)


def zeebe_server(limits: Limits = QUIET, *, heartbeat_payload: bool = True) -> Side:
    config = server_config(profile=ZEEBE, limits=limits, heartbeat_payload=heartbeat_payload)
    return Side(ConnectionRole.SERVER, config)


def beating_pair() -> Pair:
    return open_pair(make_config(profile=ZEEBE, limits=BEATING), server_config(profile=ZEEBE))


def opened_client(limits: Limits = QUIET) -> Side:
    client = zeebe_client(limits)
    client.take()
    client.give(HANDSHAKE_2)
    client.events.clear()
    return client


def opened_server() -> Side:
    server = zeebe_server()
    server.give(HANDSHAKE_2 + CLIENT_V2)
    server.take()
    server.events.clear()
    return server


# Hash values.

HASHES = {
    "": (0, "00000000"),
    "a": (97, "00000061"),
    "zc": (3881, "00000f29"),
    "test": (3556498, "00364492"),
    "zeebe": (115778653, "06e6a45d"),
    "zeebe-cluster": (-345052022, "eb6eec8a"),
    "atomix": (-1407396288, "ac1cd640"),
    "Zeebe-Ünï": (-1482880371, "a79d0a8d"),
    "🚀": (1773027, "001b0de3"),
    "Aa": (2112, "00000840"),
    "BB": (2112, "00000840"),
}


def test_hash_of_a_cluster_name() -> None:
    for name, (value, preamble) in HASHES.items():
        assert java_string_hash(name) == value
        assert encode_preamble(name) == bytes.fromhex(preamble)
        client = Side(ConnectionRole.CLIENT, make_config(cluster=name, profile=ZEEBE))
        assert client.take() == bytes.fromhex(preamble) + b"\x00\x02"


# Variable-length integers.


def test_variable_length_integers() -> None:
    assert encode_varint32(300) == bytes.fromhex("ac 02")
    assert decode_varint32(bytes.fromhex("ac 02"), 0) == (300, 2)
    for value, data in ((-1, b"\xff" * 9), (2**62, b"\x80" * 8 + b"\x40")):
        assert encode_varint64(value) == data
        assert decode_varint64(data, 0) == (value, 9)


# Negotiation.


@feedings
@pytest.mark.parametrize(
    ("offered", "answered"),
    [(1, 1), (2, 2), (0, 2), (3, 2), (99, 2), (-1, 2), (-32768, 2)],
)
def test_the_server_answers_and_already_speaks_that_version(
    feed: str, offered: int, answered: int
) -> None:
    server = zeebe_server()
    sender, reply_sender = {1: (CLIENT_V1, SERVER_V1), 2: (CLIENT_V2, SERVER_V2)}[answered]
    units = [PREAMBLE + struct.pack(">h", offered), sender + REQUEST_1]
    written = server.echo(*FEEDINGS[feed](units))
    assert written == PREAMBLE + struct.pack(">h", answered) + reply_sender + REPLY_1
    assert server.events == [ConnectionOpened(answered), RequestFrame(1, "echo", b"nohb")]
    assert server.machine.version == answered


@feedings
def test_a_wrong_preamble_is_not_answered(feed: str) -> None:
    server = zeebe_server()
    assert server.echo(*FEEDINGS[feed]([b"\xeb\x6e\xec\x8b\x00\x02", CLIENT_V2 + REQUEST_1])) == b""
    assert server.events == []
    assert isinstance(server.failure, HandshakeRejectedError)
    assert server.machine.state is ConnectionState.CLOSED


@feedings
@pytest.mark.parametrize(
    ("answer", "version", "sender"), [(HANDSHAKE_1, 1, SERVER_V1), (HANDSHAKE_2, 2, SERVER_V2)]
)
def test_the_client_accepts_any_version_it_knows(
    feed: str, answer: bytes, version: int, sender: bytes
) -> None:
    client = zeebe_client()
    assert client.take() == HANDSHAKE_2, "nothing else before the answer"
    client.give(*FEEDINGS[feed]([answer, sender + REPLY_1]))
    assert client.events == [ConnectionOpened(version), ReplyFrame(1, ReplyStatus.OK, b"nohb")]


@feedings
@pytest.mark.parametrize("answered", [0, 3, 99, -1, -32768])
def test_the_client_refuses_an_unknown_version(feed: str, answered: int) -> None:
    client = zeebe_client()
    client.take()
    client.give(*FEEDINGS[feed]([PREAMBLE + struct.pack(">h", answered), SERVER_V2 + REPLY_1]))
    assert client.events == []
    assert isinstance(client.failure, HandshakeRejectedError)
    assert client.take() == b""


@feedings
def test_the_client_refuses_a_wrong_preamble(feed: str) -> None:
    client = zeebe_client()
    client.take()
    client.give(*FEEDINGS[feed]([b"\x00\x00\x00\x00\x00\x02", SERVER_V2 + REPLY_1]))
    assert client.events == []
    assert isinstance(client.failure, HandshakeRejectedError)


# Worked examples.

VERSIONS = pytest.mark.parametrize(
    ("handshake", "from_client", "from_server"),
    [(HANDSHAKE_1, CLIENT_V1, SERVER_V1), (HANDSHAKE_2, CLIENT_V2, SERVER_V2)],
    ids=["version 1", "version 2"],
)


@feedings
@VERSIONS
def test_the_server_side_of_two_requests(
    feed: str, handshake: bytes, from_client: bytes, from_server: bytes
) -> None:
    server = zeebe_server()
    units = [handshake, from_client + REQUEST_1, REQUEST_2]
    assert server.echo(*FEEDINGS[feed](units)) == handshake + from_server + REPLY_1 + REPLY_2
    assert server.events == [
        ConnectionOpened(handshake[-1]),
        RequestFrame(1, "echo", b"nohb"),
        RequestFrame(2, "echo", b"nohb"),
    ]
    assert server.machine.sender == ("127.0.0.1", 27998)


@feedings
@VERSIONS
def test_the_client_side_of_two_requests(
    feed: str, handshake: bytes, from_client: bytes, from_server: bytes
) -> None:
    client = zeebe_client(version=handshake[-1])
    assert client.take() == handshake
    client.give(*FEEDINGS[feed]([handshake, from_server + REPLY_1, REPLY_2]))
    client.machine.request(1, "echo", b"nohb", 0)
    client.machine.request(2, "echo", b"nohb", 0)
    assert client.take() == from_client + REQUEST_1 + REQUEST_2
    assert client.events == [
        ConnectionOpened(handshake[-1]),
        ReplyFrame(1, ReplyStatus.OK, b"nohb"),
        ReplyFrame(2, ReplyStatus.OK, b"nohb"),
    ]
    assert client.machine.sender == ("127.0.0.1", 26502)


REPLIES = {
    "fail": (bytes.fromhex("02 01 08") + b"boom: xx" + b"\x02", ReplyFrame(1, 2, b"boom: xx")),
    "nosuch": (bytes.fromhex("02 01 06") + b"nosuch" + b"\x01", ReplyFrame(1, 1, b"nosuch")),
    "null reply": (bytes.fromhex("02 05 00 00"), ReplyFrame(5, 0, b"")),
    "unparsed": (bytes.fromhex("02 05 00 03"), ReplyFrame(5, 3, b"")),
}


@feedings
@pytest.mark.parametrize(("data", "reply"), REPLIES.values(), ids=REPLIES)
def test_replies(feed: str, data: bytes, reply: ReplyFrame) -> None:
    client = zeebe_client()
    client.take()
    client.give(*FEEDINGS[feed]([HANDSHAKE_2, SERVER_V2 + data, REPLY_2]))
    assert client.events == [ConnectionOpened(2), reply, ReplyFrame(2, ReplyStatus.OK, b"nohb")]

    server = opened_server()
    server.machine.reply(reply.id, reply.status, reply.payload)
    assert server.take() == SERVER_V2 + data


@feedings
def test_frames_in_the_wrong_direction_are_ignored(feed: str) -> None:
    server = opened_server()
    server.give(*FEEDINGS[feed]([REPLY_1, REQUEST_1]))
    assert server.events == [FrameIgnored("Reply", 1), RequestFrame(1, "echo", b"nohb")]

    client = opened_client()
    client.give(*FEEDINGS[feed]([SERVER_V2 + REQUEST_1, REPLY_1]))
    assert client.events == [FrameIgnored("Request", 1), ReplyFrame(1, ReplyStatus.OK, b"nohb")]


@feedings
@pytest.mark.parametrize(
    "data",
    [b"\x00", b"\x03", bytes.fromhex("01 01 00 80 00")],
    ids=["type 0", "type 3", "subject of negative length"],
)
def test_what_closes_the_connection_there_closes_it_here(feed: str, data: bytes) -> None:
    server = opened_server()
    server.give(*FEEDINGS[feed]([REQUEST_1, data]))
    assert server.events == [RequestFrame(1, "echo", b"nohb")]
    assert isinstance(server.failure, MalformedFrameError)


@feedings
@pytest.mark.parametrize(
    ("sender", "is_accepted"),
    [
        ("00 00 00 00 67 86", True),
        ("00 01 61 00 00 00 00", True),
        ("00 01 61 00 01 00 00", False),
        ("00 01 61 ff ff ff ff", False),
        ("ff ff", False),
    ],
    ids=["no host", "port 0", "port 65536", "port -1", "length -1"],
)
def test_odd_addresses(feed: str, sender: str, is_accepted: bool) -> None:
    server = zeebe_server()
    server.give(*FEEDINGS[feed]([HANDSHAKE_2, bytes.fromhex(sender) + REQUEST_1]))
    assert (server.failure is None) is is_accepted
    assert (len(server.events) == 2) is is_accepted


# Heartbeats.


@feedings
def test_heartbeats_are_set_up_by_the_first_frame_of_a_client(feed: str) -> None:
    client = zeebe_client(BEATING)
    client.take()
    client.give(*FEEDINGS[feed]([HANDSHAKE_2]))
    assert client.take() == CLIENT_V2 + b"\x01\x01\x0d" + SETUP_REQUEST + SETUP_TAIL

    server = zeebe_server()
    setup = b"\x01\x01\x0d" + SETUP_REQUEST + SETUP_TAIL
    written = server.echo(*FEEDINGS[feed]([HANDSHAKE_2, CLIENT_V2 + setup, REQUEST_2]))
    assert written == HANDSHAKE_2 + SERVER_V2 + b"\x02\x01\x0a" + SETUP_RESPONSE + b"\x00" + REPLY_2
    assert server.events == [ConnectionOpened(2), RequestFrame(2, "echo", b"nohb")]


@feedings
@pytest.mark.parametrize("client_wants", [True, False])
@pytest.mark.parametrize("server_wants", [True, False])
def test_all_combinations_of_payload(feed: str, client_wants: bool, server_wants: bool) -> None:
    """Timestamps travel if both sides want them."""
    client = zeebe_client(BEATING, heartbeat_payload=client_wants)
    server = zeebe_server(heartbeat_payload=server_wants)
    both = client_wants and server_wants
    server.give(client.take())
    client.give(*FEEDINGS[feed]([server.take()]))

    setup = client.take()
    assert setup == CLIENT_V2 + b"\x01\x01\x0d" + SETUP_REQUEST[:-1] + bytes([client_wants]) + (
        SETUP_TAIL
    )
    server.give(*FEEDINGS[feed]([setup]))
    answer = server.take()
    assert answer == SERVER_V2 + b"\x02\x01\x0a" + SETUP_RESPONSE[:-1] + bytes([both, 0])
    client.give(*FEEDINGS[feed]([answer]))

    beat = client.tick(5)
    payload = b"\x10" + BEAT if both else b"\x00"
    assert beat == b"\x01\x02" + payload + BEAT_TAIL
    server.now = 5
    server.give(*FEEDINGS[feed]([beat]))
    answer = server.take()
    assert answer == b"\x02\x02" + (b"\x10" + BEAT_ANSWER if both else b"\x00") + b"\x00"
    client.give(*FEEDINGS[feed]([answer]))

    assert client.events == server.events == [ConnectionOpened(2)]
    assert client.failure is server.failure is None


@feedings
def test_schema_version_1_has_no_payload(feed: str) -> None:
    """8.8: block lengths 4 and 1, and a missing flag counts as false."""
    server = opened_server()
    setup = bytes.fromhex("04 00 01 00 0a 00 01 00 98 3a 00 00")
    server.give(*FEEDINGS[feed]([b"\x01\x01\x0c" + setup + SETUP_TAIL]))
    assert server.take() == SERVER_V2 + b"\x02\x01\x0a" + SETUP_RESPONSE[:-1] + b"\x00\x00"

    client = opened_client(BEATING)
    client.take()
    answer = bytes.fromhex("01 00 02 00 0a 00 01 00 01")
    client.give(*FEEDINGS[feed]([SERVER_V2 + b"\x02\x01\x09" + answer + b"\x00"]))
    assert client.tick(5) == b"\x01\x02\x00" + BEAT_TAIL


def test_nobody_gives_up_without_a_reason() -> None:
    client = opened_client(BEATING)
    client.take()
    # Servers of versions 8.5 to 8.7 know no set-up, and expect heartbeats without answers.
    client.give(SERVER_V2 + b"\x02\x01\x18" + SETUP_TAIL[2:] + b"\x01")
    for id, now in ((2, 5), (3, 15), (4, 1_000)):
        assert client.tick(now) == b"\x01" + bytes([id]) + b"\x00" + BEAT_TAIL
    assert client.failure is None
    assert client.events == []

    client = opened_client(QUIET)
    assert client.take() == b""
    assert client.tick(1e6) == b""
    assert client.failure is None

    server = zeebe_server(BEATING)
    server.give(HANDSHAKE_2 + CLIENT_V2 + REQUEST_1)
    server.tick(1e6)
    assert server.failure is None

    pair = beating_pair()
    for now in range(1, 100):
        pair.tick(now)
    assert pair.client.failure is pair.server.failure is None


@pytest.mark.parametrize(
    "setup",
    [SETUP_REQUEST[:8] + b"\x00\x00\x00\x00\x01", b"undecodable"],
    ids=["timeout 0", "undecodable"],
)
def test_a_set_up_with_nothing_to_install_is_answered_enabled(setup: bytes) -> None:
    server = opened_server()
    server.give(b"\x01\x01" + bytes([len(setup)]) + setup + SETUP_TAIL)
    assert server.take().startswith(SERVER_V2 + b"\x02\x01\x0a" + SETUP_RESPONSE[:-1])
    beat: list[ConnectionEvent] = server.give(b"\x01\x02\x00" + BEAT_TAIL)
    assert beat == [RequestFrame(2, "internal-heartbeat", b"")], "left to be answered with status 1"
    server.tick(1e6)
    assert server.failure is None


def test_an_empty_set_up_closes_the_connection() -> None:
    server = opened_server()
    server.give(b"\x01\x01\x00" + SETUP_TAIL)
    assert isinstance(server.failure, MalformedFrameError)


def test_who_stays_silent_is_given_up() -> None:
    server = zeebe_server(BEATING)
    server.give(HANDSHAKE_2 + CLIENT_V2)
    server.give(b"\x01\x01\x0d" + SETUP_REQUEST[:8] + struct.pack("<IB", 2_000, 1) + SETUP_TAIL)
    assert server.machine.deadline() == 2
    server.tick(1.999)
    assert server.failure is None
    server.tick(2)
    assert isinstance(server.failure, PeerTimeoutError)

    client = beating_pair().client
    written = []
    while client.failure is None:
        written.append(client.tick(client.machine.deadline()))
    assert isinstance(client.failure, PeerTimeoutError)
    assert client.now == 15
    assert [data[1] for data in written if data] == [2, 3]


def test_any_later_reply_answers_a_heartbeat() -> None:
    client = beating_pair().client
    client.tick(5)
    client.now = 6
    client.give(bytes.fromhex("02 09 00 00"))
    client.now = 20
    client.tick(20)
    assert client.events == [ReplyFrame(9, ReplyStatus.OK, b"")]
    assert client.failure is None


@feedings
def test_swallowed_heartbeats_and_replies_that_look_like_them(feed: str) -> None:
    # 8.7: either side sends an empty heartbeat request when quiet, and wants no answer.
    client = opened_client()
    client.give(*FEEDINGS[feed]([SERVER_V2 + b"\x01\x07\x00" + BEAT_TAIL, REPLY_1]))
    assert client.events == [ReplyFrame(1, ReplyStatus.OK, b"nohb")]
    assert client.take() == b""

    # 16 bytes with schema 10 at offset 4 are lost there; here the id decides.
    client = beating_pair().client
    reply = b"\x02\x07\x10" + BEAT_ANSWER + b"\x00"
    client.give(*FEEDINGS[feed]([reply]))
    assert client.events == [ReplyFrame(7, ReplyStatus.OK, BEAT_ANSWER)]


# Datagrams.


KRYO_DATAGRAM = (
    b"\xf6\x03\x03payloa\xe4sourc\xe5subjec\xf4\x06\x06hello\x00"
    b"\x0e\x01127.0.0.\xb1\x4d\x68\x00\x00\x00\x04ech\xef\x00"
)


def test_a_datagram_of_the_source_system_is_refused_as_malformed() -> None:
    """Preamble and length are the same; the body is Java's, which no Postroad node speaks."""
    assert len(KRYO_DATAGRAM) == 0x35
    with pytest.raises(MalformedFrameError, match="datagram body"):
        decode_datagram(PREAMBLE, PREAMBLE + b"\x00\x00\x00\x35" + KRYO_DATAGRAM)
