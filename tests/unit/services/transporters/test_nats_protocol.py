"""What a NATS server says is understood, however it is cut; what it cannot say is refused."""

import pytest

from postroad.core.errors import MalformedPayloadError
from postroad.core.limits import MIB
from postroad.services.transporters.nats_protocol import (
    LINE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    NatsParser,
    ServerInfo,
    connect,
    publish_head,
    subscribe,
    unsubscribe,
)
from tests.support.cases import each
from tests.support.services.nats_talk import Heard, heard_of, message

EVERYTHING = (
    b'INFO {"server_id":"x","max_payload":8000,"tls_required":true,"connect_urls":["a:1"]} \r\n'
    b"+OK\r\n"
    b"MSG MOL.INFO 1 5\r\nhello\r\n"
    b"PING\r\n"
    b"MSG MOL.REQ.a 12 reply.to 0\r\n\r\n"
    b"-ERR 'Stale Connection'\r\n"
    b"MSG MOL.RES.a 3 14\r\nMSG a 1 0\r\n\r\n \r\n"
    b"PONG\r\n"
)
UNDERSTOOD = [
    ServerInfo(max_payload=8000, tls_required=True),
    (b"1", b"hello"),
    "ping",
    (b"12", b""),
    "error Stale Connection",
    (b"3", b"MSG a 1 0\r\n\r\n "),
    "pong",
]


def test_server_messages_are_understood_however_they_are_cut() -> None:
    for size in range(1, len(EVERYTHING) + 1):
        pieces = [EVERYTHING[at : at + size] for at in range(0, len(EVERYTHING), size)]
        assert heard_of(*pieces) == UNDERSTOOD, size
        assert heard_of(EVERYTHING[:size], EVERYTHING[size:]) == UNDERSTOOD, size


def test_whole_messages_are_told_before_nonsense() -> None:
    heard = Heard()
    parser = NatsParser(heard)
    whole = message(b"1", b"x" * 100)
    for at in range(len(whole) - 1):
        parser.feed(whole[at : at + 1])
        assert heard.all == []
    parser.feed(whole[-1:])
    assert heard.all == [(b"1", b"x" * 100)]
    heard = Heard()
    with pytest.raises(MalformedPayloadError):
        NatsParser(heard).feed(message(b"1", b"good") + b"nonsense\r\n")
    assert heard.all == [(b"1", b"good")]
    data = bytes(range(256)) * 4 * 1024 * 8
    whole = message(b"1", data) + message(b"2", b"after")
    pieces = [whole[at : at + 1000] for at in range(0, len(whole), 1000)]
    assert heard_of(*pieces) == [(b"1", data), (b"2", b"after")]


@each(
    b"\r\n",
    b"HTTP/1.1 400 Bad Request\r\n",
    b"MSG\r\n",
    b"MSG \r\n",
    b"MSG a 1\r\n",
    b"MSG a 1 2 3 4\r\n",
    b"MSG a 1 -1\r\n\r\n",
    b"MSG a 1 +1\r\nx\r\n",
    b"MSG a 1 1_0\r\n0123456789\r\n",
    b"MSG a 1 x\r\n",
    b"MSG a 1 \r\n",
    b"MSG a 1 3\r\nabcd\r\n",
    b"MSG a 1 99999999999999999999999\r\n",
    b"MSG a 1 %d\r\n" % (PAYLOAD_BYTES_MAX + 1),
    b"HMSG a 1 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
    b"msg a 1 0\r\n\r\n",
    b"INFO\r\n",
    b"INFO {\r\n",
    b"INFO []\r\n",
    b'INFO {"max_payload":"much"}\r\n',
    b'INFO {"max_payload":\xff}\r\n',
    b"PINGPONG\r\n",
    b"\xff" * 50 + b"\r\n",
)
def test_nonsense_is_refused(said: bytes) -> None:
    with pytest.raises(MalformedPayloadError):
        heard_of(said)
    with pytest.raises(MalformedPayloadError):
        heard_of(*(said[at : at + 1] for at in range(len(said))))


def test_lines_and_messages_have_a_limit() -> None:
    longest = b"-ERR " + b"x" * (LINE_BYTES_MAX - 5)
    assert len(heard_of(longest, b"\r", b"\n")) == 1
    with pytest.raises(MalformedPayloadError, match="too long"):
        heard_of(longest + b"x\r\n")
    with pytest.raises(MalformedPayloadError, match="too long"):
        heard_of(longest, b"xx")
    with pytest.raises(MalformedPayloadError, match="too long"):
        heard_of(b"MSG " + longest + b" 1 0\r\n\r\n")
    heard = Heard()
    parser = NatsParser(heard, payload_bytes_max=10)
    parser.feed(message(b"1", bytes(10)))
    with pytest.raises(MalformedPayloadError, match="11 bytes"):
        parser.feed(b"MSG a 1 11\r\n")
    assert heard.all == [(b"1", bytes(10))]


def test_defaults_and_what_is_sent() -> None:
    assert heard_of(b"INFO {}\r\n") == [ServerInfo(max_payload=MIB)]
    assert not ServerInfo().has_tls
    assert ServerInfo(tls_available=True).has_tls
    assert ServerInfo(tls_required=True).has_tls
    assert connect({"user": "us\r\ner", "verbose": False}) == (
        b'CONNECT {"user":"us\\r\\ner","verbose":false}\r\n'
    )
    assert publish_head("MOL.REQ.ä") == "PUB MOL.REQ.ä ".encode()
    assert subscribe("MOL.INFO", 7) == b"SUB MOL.INFO 7\r\n"
    assert subscribe("MOL.REQB.math.add", 8, "math.add") == b"SUB MOL.REQB.math.add math.add 8\r\n"
    assert unsubscribe(b"8") == b"UNSUB 8\r\n"
