"""The documented layout of versions 1 and 2, packed by hand, in profile `documented`.

Field by field: the handshake is a 32-bit preamble and a 16-bit version, answered by a version. The
sender is a 16-bit length, that many bytes of host name (version 1: of raw IP address) and a 32-bit
port, once. A message is an 8-bit type, a 64-bit id and a payload with a 32-bit length, then for a
request a subject with a 32-bit length, for a reply an 8-bit status. All signed, all big endian.
"""

import struct

import pytest

from postroad.core.errors import HandshakeRejectedError, MalformedFrameError
from postroad.core.names import Address
from postroad.wire import (
    DOCUMENTED,
    ConnectionOpened,
    ConnectionRole,
    ConnectionState,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
)
from tests.support.wire.pairs import FEEDINGS, Side, make_config, server_config

PREAMBLE = struct.pack(">i", -345052022)

feedings = pytest.mark.parametrize("feed", FEEDINGS)
versions = pytest.mark.parametrize("version", [1, 2])


def handshake(version: int) -> bytes:
    return struct.pack(">ih", -345052022, version)


def answer(version: int) -> bytes:
    return struct.pack(">h", version)


def sender(version: int, port: int) -> bytes:
    host = bytes([127, 0, 0, 1]) if version == 1 else b"127.0.0.1"
    return struct.pack(f">h{len(host)}si", len(host), host, port)


def request(id: int, payload: bytes, subject: bytes) -> bytes:
    layout = f">bqi{len(payload)}si{len(subject)}s"
    return struct.pack(layout, 1, id, len(payload), payload, len(subject), subject)


def reply(id: int, payload: bytes, status: int) -> bytes:
    return struct.pack(f">bqi{len(payload)}sb", 2, id, len(payload), payload, status)


FROM_CLIENT = 27998
FROM_SERVER = 26502


def client_of(version: int) -> Side:
    return Side(ConnectionRole.CLIENT, make_config(profile=DOCUMENTED.up_to(version)))


def server_of(version: int = 3) -> Side:
    return Side(ConnectionRole.SERVER, server_config(profile=DOCUMENTED.up_to(version)))


def test_the_layout_byte_for_byte() -> None:
    """What the functions above pack, spelled out once."""
    assert handshake(2) == bytes.fromhex("eb6eec8a 0002")
    assert answer(2) == bytes.fromhex("0002")
    assert sender(1, FROM_CLIENT) == bytes.fromhex("0004 7f000001 00006d5e")
    assert sender(2, FROM_CLIENT) == bytes.fromhex("0009 3132372e302e302e31 00006d5e")
    assert request(1, b"hi", b"echo") == bytes.fromhex(
        "01 0000000000000001 00000002 6869 00000004 6563686f"
    )
    assert reply(1, b"hi", 0) == bytes.fromhex("02 0000000000000001 00000002 6869 00")


@feedings
@versions
def test_the_server_side(feed: str, version: int) -> None:
    server = server_of()
    units = [
        handshake(version),
        sender(version, FROM_CLIENT) + request(1, b"hello", b"echo"),
        request(2, b"", b""),
        request(2**63 - 1, b"x" * 300, "Ünï 🚀".encode()),
    ]
    written = server.echo(*FEEDINGS[feed](units))
    assert server.events == [
        ConnectionOpened(version),
        RequestFrame(1, "echo", b"hello"),
        RequestFrame(2, "", b""),
        RequestFrame(2**63 - 1, "Ünï 🚀", b"x" * 300),
    ]
    assert written == (
        answer(version)
        + sender(version, FROM_SERVER)
        + reply(1, b"hello", 0)
        + reply(2, b"", 0)
        + reply(2**63 - 1, b"x" * 300, 0)
    )
    assert server.machine.sender == Address("127.0.0.1", FROM_CLIENT)


@feedings
@versions
def test_the_client_side(feed: str, version: int) -> None:
    client = client_of(version)
    assert client.take() == handshake(version)
    units = [
        answer(version),
        sender(version, FROM_SERVER) + reply(1, b"hello", 0),
        reply(2, b"nosuch", 1),
        reply(3, b"boom", 2),
        reply(-4, b"", 3),
    ]
    client.give(*FEEDINGS[feed](units))
    assert client.events == [
        ConnectionOpened(version),
        ReplyFrame(1, ReplyStatus.OK, b"hello"),
        ReplyFrame(2, ReplyStatus.NO_HANDLER, b"nosuch"),
        ReplyFrame(3, ReplyStatus.HANDLER_FAILED, b"boom"),
        ReplyFrame(-4, ReplyStatus.PROTOCOL_FAILED, b""),
    ]
    assert client.machine.sender == Address("127.0.0.1", FROM_SERVER)

    client.machine.request(1, "echo", b"hello", 5_000)
    client.machine.request(2, "log", b"", 0, one_way=True)
    assert client.take() == (
        sender(version, FROM_CLIENT) + request(1, b"hello", b"echo") + request(2, b"", b"log")
    )


@feedings
@versions
@pytest.mark.parametrize("status", [0, 1, 2, 3])
def test_every_status(feed: str, version: int, status: int) -> None:
    server = server_of()
    server.give(*FEEDINGS[feed]([handshake(version), sender(version, FROM_CLIENT)]))
    server.machine.reply(1, status, b"text")
    expected = answer(version) + sender(version, FROM_SERVER) + reply(1, b"text", status)
    assert server.take() == expected

    client = client_of(version)
    client.give(*FEEDINGS[feed]([expected]))
    assert client.events == [ConnectionOpened(version), ReplyFrame(1, status, b"text")]


@feedings
def test_version_1_carries_an_ipv6_address(feed: str) -> None:
    packed = struct.pack(">h16si", 16, bytes(15) + b"\x01", FROM_CLIENT)
    server = server_of()
    server.give(*FEEDINGS[feed]([handshake(1), packed + request(1, b"", b"a")]))
    assert server.events == [ConnectionOpened(1), RequestFrame(1, "a", b"")]
    assert server.machine.sender == Address("::1", FROM_CLIENT)

    client = Side(
        ConnectionRole.CLIENT, make_config(profile=DOCUMENTED.up_to(1), advertised_ip="::1")
    )
    client.give(answer(1))
    client.take()
    client.machine.request(1, "a", b"", 0)
    assert client.take() == packed + request(1, b"", b"a")


@feedings
def test_version_1_with_the_short_length_of_real_nodes(feed: str) -> None:
    """The documentation leaves version 1 open; an 8-bit length is understood and answered alike."""
    short = struct.pack(">b4si", 4, bytes([127, 0, 0, 1]), FROM_CLIENT)
    server = server_of()
    units = [handshake(1), short + request(1, b"hello", b"echo")]
    written = server.echo(*FEEDINGS[feed](units))
    assert server.events == [ConnectionOpened(1), RequestFrame(1, "echo", b"hello")]
    back = struct.pack(">b4si", 4, bytes([127, 0, 0, 1]), FROM_SERVER)
    assert written == answer(1) + back + reply(1, b"hello", 0)


# Negotiation as documented.


@feedings
@pytest.mark.parametrize("offered", [0, 3, 99, -1, -32768])
def test_a_server_of_version_2_answers_an_unknown_version_with_its_latest(
    feed: str, offered: int
) -> None:
    server = server_of(2)
    units = [
        struct.pack(">ih", -345052022, offered),
        sender(2, FROM_CLIENT) + request(1, b"hello", b"echo"),
    ]
    written = server.echo(*FEEDINGS[feed](units))
    assert written == answer(2) + sender(2, FROM_SERVER) + reply(1, b"hello", 0)


@pytest.mark.parametrize("offered", [0, 4, 99, -1, -32768])
def test_a_server_of_version_3_answers_an_unknown_version_with_3(offered: int) -> None:
    server = server_of()
    server.give(struct.pack(">ih", -345052022, offered))
    assert server.take().startswith(answer(3))
    assert server.machine.state is ConnectionState.AWAITING_HELLO


@feedings
@versions
def test_a_client_of_version_3_speaks_what_the_server_answers(feed: str, version: int) -> None:
    client = client_of(3)
    assert client.take() == handshake(3)
    units = [answer(version), sender(version, FROM_SERVER) + reply(1, b"", 0)]
    client.give(*FEEDINGS[feed](units))
    assert client.events == [ConnectionOpened(version), ReplyFrame(1, ReplyStatus.OK, b"")]
    assert client.take() == b""


@feedings
@pytest.mark.parametrize("answered", [0, 4, 99, -1])
def test_a_client_closes_on_a_version_it_cannot_speak(feed: str, answered: int) -> None:
    client = client_of(3)
    client.take()
    client.give(*FEEDINGS[feed]([answer(answered)]))
    assert isinstance(client.failure, HandshakeRejectedError)
    assert client.machine.state is ConnectionState.CLOSED
    assert client.take() == b""


@feedings
def test_a_wrong_preamble_is_closed_without_an_answer(feed: str) -> None:
    server = server_of()
    server.give(*FEEDINGS[feed]([struct.pack(">ih", -345052021, 2), sender(2, FROM_CLIENT)]))
    assert isinstance(server.failure, HandshakeRejectedError)
    assert server.take() == b""


@feedings
@versions
def test_the_handshake_is_never_performed_again(feed: str, version: int) -> None:
    server = server_of()
    server.give(*FEEDINGS[feed]([handshake(version), sender(version, FROM_CLIENT)]))
    server.give(*FEEDINGS[feed]([handshake(version) * 3]))
    assert isinstance(server.failure, MalformedFrameError)
