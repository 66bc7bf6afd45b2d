"""The protocol of NATS, as far as packets between nodes need it. No I/O: bytes in, calls out.

A server says INFO first, then MSG for each message, PING, PONG, and -ERR; a client says CONNECT,
SUB, UNSUB, PUB, PING and PONG. Every line ends with CR LF, and so does the payload of a message.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from postroad.core.errors import MalformedPayloadError
from postroad.core.limits import KIB, MIB

LINE_BYTES_MAX = 64 * KIB
"""The longest line; the INFO of a large cluster lists all its servers."""
PAYLOAD_BYTES_MAX = 64 * MIB
"""No server can be configured to carry more."""

PING = b"PING\r\n"
PONG = b"PONG\r\n"
END = b"\r\n"

_MESSAGE = b"MSG "
_MESSAGE_LENGTH = len(_MESSAGE)
_encode = msgspec.json.Encoder().encode


class ServerInfo(msgspec.Struct, frozen=True):
    """What matters to us of what a server says of itself."""

    max_payload: int = MIB
    tls_required: bool = False
    tls_available: bool = False

    @property
    def has_tls(self) -> bool:
        return self.tls_required or self.tls_available


class ServerSide(Protocol):
    """Who is told what the server says."""

    def message(self, sid: bytes, data: bytes) -> None:
        """For the subscription of this number."""

    def info(self, info: ServerInfo) -> None: ...
    def ping(self) -> None: ...
    def pong(self) -> None: ...
    def error(self, text: str) -> None: ...


_decode_info = msgspec.json.Decoder(ServerInfo).decode


class NatsParser:
    """Makes calls of bytes. When it has raised, nothing more can be understood."""

    def __init__(self, told: ServerSide, *, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
        self._told = told
        self._payload_bytes_max = payload_bytes_max
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._needed_bytes = 0

    @property
    def is_within_word(self) -> bool:
        """Whether something has begun that is not whole."""
        return bool(self._waiting)

    def feed(self, data: bytes) -> None:
        """Take what came; raises MalformedPayloadError if it is not what a server says."""
        if self._waiting:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._waiting_bytes < self._needed_bytes:
                return
            data = b"".join(self._waiting)
            self._waiting.clear()
        used = self._parse(data)
        if used < len(data):
            self._waiting.append(data[used:] if used else data)
            self._waiting_bytes = len(data) - used

    def _parse(self, data: bytes) -> int:
        """Deal with all that is whole; says how much that is."""
        at, length, told = 0, len(data), self._told.message
        while at < length:
            line_end = data.find(END, at)
            if line_end < 0:
                self._need_line(length - at)
                break
            if line_end - at > LINE_BYTES_MAX:
                raise MalformedPayloadError("a line that is too long")
            if not data.startswith(_MESSAGE, at):
                self._control(data[at:line_end])
                at = line_end + 2
                continue
            words = data[at + _MESSAGE_LENGTH : line_end].split(b" ")
            begin = line_end + 2
            end = begin + self._size(words)
            if length < end + 2:
                self._needed_bytes = end + 2 - at
                break
            if data[end : end + 2] != END:
                raise MalformedPayloadError("a message is longer than announced")
            told(words[1], data[begin:end])
            at = end + 2
        return at

    def _size(self, words: list[bytes]) -> int:
        """How long the payload is: subject, number, perhaps a subject to answer to, and size."""
        text = words[-1]
        if not (3 <= len(words) <= 4 and text.isdigit() and len(text) < 12):
            raise MalformedPayloadError(f"no message begins so: {b' '.join(words)!r:.80}")
        size = int(text)
        if size > self._payload_bytes_max:
            raise MalformedPayloadError(f"a message of {size} bytes")
        return size

    def _need_line(self, length: int) -> None:
        # The first of the two characters of its end may be there.
        if length > LINE_BYTES_MAX + 1:
            raise MalformedPayloadError("a line that is too long")
        self._needed_bytes = length + 1

    def _control(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        match word:
            case b"PING":
                self._told.ping()
            case b"PONG":
                self._told.pong()
            case b"INFO":
                self._told.info(_parse_info(rest))
            case b"-ERR":
                self._told.error(rest.decode(errors="replace").strip(" '"))
            case b"+OK":
                return
            case _:
                raise MalformedPayloadError(f"no word of a NATS server: {line!r:.80}")


def _parse_info(text: bytes) -> ServerInfo:
    try:
        return _decode_info(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedPayloadError(f"INFO that cannot be read: {error}") from None


def connect(options: dict[str, Any]) -> bytes:
    """The first that a client says."""
    return b"CONNECT %b\r\n" % _encode(options)


def publish_head(subject: str) -> bytes:
    """How a message begins; its length, an end, the payload and an end follow."""
    return b"PUB %b " % subject.encode()


def subscribe(subject: str, sid: int, queue: str | None = None) -> bytes:
    """Hear all messages of a subject, or one's share in them with others of a queue."""
    words = [subject, str(sid)] if queue is None else [subject, queue, str(sid)]
    return f"SUB {' '.join(words)}\r\n".encode()


def unsubscribe(sid: bytes) -> bytes:
    return b"UNSUB %b\r\n" % sid
