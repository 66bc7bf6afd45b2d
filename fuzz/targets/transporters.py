"""Transporters of services: what servers and other nodes send, however it is cut."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.target import Target, prefixes, require
from postroad.core.errors import MalformedPayloadError
from postroad.services.kinds import Kind
from postroad.services.transporters import amqp_frames
from postroad.services.transporters.amqp_frames import FrameSorter
from postroad.services.transporters.cells_letters import decode_letter, encode_letter
from postroad.services.transporters.nats_protocol import NatsParser, ServerInfo
from postroad.services.transporters.tcp_frames import FrameReader, encode_header

_PACKET = b'{"ver":"5","sender":"a"}'
_PACKET_BYTES_MAX = 1_024

Said = list[object]


class _Told:
    """Writes down what a NATS server says."""

    def __init__(self) -> None:
        self.said: Said = []

    def message(self, sid: bytes, data: bytes) -> None:
        """A message for a subscription."""
        self.said.append((sid, data))

    def info(self, info: ServerInfo) -> None:
        """What the server says of itself."""
        self.said.append(info)

    def ping(self) -> None:
        """It wants to know whether we are there."""
        self.said.append("ping")

    def pong(self) -> None:
        """It is there."""
        self.said.append("pong")

    def error(self, text: str) -> None:
        """Something is wrong."""
        self.said.append(text)


def _read_nats(parts: list[bytes]) -> Said:
    told = _Told()
    parser = NatsParser(told, payload_bytes_max=_PACKET_BYTES_MAX)
    return _fed(parser.feed, parts, told.said)


def _read_tcp(parts: list[bytes]) -> Said:
    reader = FrameReader(_PACKET_BYTES_MAX)
    said: Said = []
    for part in parts:
        said += reader.receive(part)
        if reader.failure is not None:
            return [*said, type(reader.failure)]
    return said


def _read_amqp(parts: list[bytes]) -> Said:
    said: Said = []
    sorter = FrameSorter(
        lambda consumer, number, packet: said.append((consumer, number, packet)),
        lambda frame: said.append((frame, amqp_frames.closing_words(frame))),
    )
    sorter.channel = 1
    return _fed(sorter.feed, parts, said)


def _fed(feed: Callable[[bytes], None], parts: list[bytes], said: Said) -> Said:
    try:
        for part in parts:
            feed(part)
    except MalformedPayloadError:
        return [*said, MalformedPayloadError]
    return said


def _cut_anywhere(read: Callable[[list[bytes]], Said]) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        whole = read([data])
        require(
            read([data[at : at + 1] for at in range(len(data))]) == whole,
            "bytes one by one say something else",
        )

    return check


def check_letter(data: bytes) -> None:
    """Any bytes are a letter or malformed."""
    for it in (*prefixes(data), data):
        try:
            packets = decode_letter(it)
        except MalformedPayloadError:
            continue
        require(decode_letter(encode_letter(packets)) == packets, "a letter changed on its way")


def _amqp_delivery() -> bytes:
    method = b"\x00\x3c\x00\x3c" + b"\x02c1" + (7).to_bytes(8) + b"\x00" + b"\x00" + b"\x01q"
    return amqp_frames._frame(amqp_frames.METHOD, 1, method) + amqp_frames.content(
        1, _PACKET, 4_096
    )


_AMQP_CLOSE = amqp_frames._frame(
    amqp_frames.METHOD, 0, amqp_frames._CLOSE + b"\x01\x40\x04gone\0\0\0\0"
)

TARGETS = [
    Target(
        "nats",
        _cut_anywhere(_read_nats),
        [
            b'INFO {"max_payload":1048576,"tls_required":false}\r\nPING\r\n',
            b"MSG MOL.REQ.a 3 %d\r\n%b\r\n+OK\r\nPONG\r\n" % (len(_PACKET), _PACKET),
            b"-ERR 'Authorization Violation'\r\n",
        ],
    ),
    Target(
        "services-tcp",
        _cut_anywhere(_read_tcp),
        [encode_header(kind, len(_PACKET)) + _PACKET for kind in (Kind.REQUEST, Kind.EVENT)],
    ),
    Target("amqp", _cut_anywhere(_read_amqp), [_amqp_delivery(), _AMQP_CLOSE]),
    Target("services-letter", check_letter, [encode_letter([("REQ", _PACKET), ("RES", b"")])]),
]
