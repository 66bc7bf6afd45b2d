"""Versions 1 and 2: the sender address before the first frame (2.1), and profile `documented`."""

from __future__ import annotations

import ipaddress
import struct
from abc import abstractmethod
from collections.abc import Callable

from postroad.core.errors import ConfigError, LocalProtocolError, MalformedFrameError
from postroad.core.limits import SUBJECT_BYTES_MAX
from postroad.core.names import Address
from postroad.wire.codecs.codec import JOIN_BYTES_MAX, Codec
from postroad.wire.frames import (
    Bytes,
    Frame,
    ReplyFrame,
    RequestFrame,
    check_frame_size,
    decode_utf8,
)

_LENGTH_16 = struct.Struct(">h")
_PORT = struct.Struct(">i")
_IP_LENGTHS = (4, 16)
# The longest name that DNS has.
_HOST_BYTES_MAX = 255


def encode_sender_host(address: Address) -> bytes:
    """Encode a version 2 sender: 16-bit length, host name, 32-bit port."""
    host = address.host.encode()
    return _LENGTH_16.pack(len(host)) + host + _PORT.pack(address.port)


def encode_sender_ip(ip: str, port: int, *, has_short_length: bool) -> bytes:
    """Encode a version 1 sender: 8-bit or 16-bit length, raw IP address, 32-bit port."""
    try:
        packed = ipaddress.ip_address(ip).packed
    except ValueError:
        raise ConfigError(f"version 1 needs an IP address to advertise, not {ip!r}") from None
    length = bytes([len(packed)]) if has_short_length else _LENGTH_16.pack(len(packed))
    return length + packed + _PORT.pack(port)


def decode_sender_host(data: Bytes) -> tuple[Address, int] | None:
    """Decode a version 2 sender; return it and its size, or None while it is incomplete."""
    if len(data) < _LENGTH_16.size:
        return None
    (length,) = _LENGTH_16.unpack_from(data)
    if length < 0:
        raise MalformedFrameError(f"sender host has a negative length, {length}")
    if length > _HOST_BYTES_MAX:
        raise MalformedFrameError(
            f"sender host of {length} bytes, at most {_HOST_BYTES_MAX} are allowed; "
            "a peer that compresses its connection looks like this: turn its compression off"
        )
    end = _LENGTH_16.size + length
    if len(data) < end + _PORT.size:
        return None
    host = decode_utf8(data[_LENGTH_16.size : end], "sender host")
    return Address(host, _decode_port(data, end)), end + _PORT.size


def decode_sender_ip(data: Bytes, *, has_short_length: bool) -> tuple[Address, int] | None:
    """Decode a version 1 sender; return it and its size, or None while it is incomplete."""
    start = 1 if has_short_length else _LENGTH_16.size
    if len(data) < start:
        return None
    length = data[0] if has_short_length else _LENGTH_16.unpack_from(data)[0]
    if length not in _IP_LENGTHS:
        raise MalformedFrameError(f"sender address has {length} bytes; an IP address has 4 or 16")
    end = start + length
    if len(data) < end + _PORT.size:
        return None
    host = str(ipaddress.ip_address(bytes(data[start:end])))
    return Address(host, _decode_port(data, end)), end + _PORT.size


def _decode_port(data: Bytes, position: int) -> int:
    (port,) = _PORT.unpack_from(data, position)
    if not 0 <= port <= 65535:
        raise MalformedFrameError(f"sender port {port} is not 0 to 65535")
    return int(port)


REQUEST = 1
REPLY = 2

# Highest reply status of these versions.
STATUS_MAX = 3
_STATUS = [bytes([status]) for status in range(STATUS_MAX + 1)]


class LegacyCodec(Codec):
    """Sender addresses of both directions, and encoding; subclasses decode the frames."""

    # Returns type, id and payload length of a frame.
    pack_header: Callable[[int, int, int], bytes]
    # Layout of the length of a subject, and the error for one that no peer may send.
    subject_length: struct.Struct
    bad_subject = (
        f"request {{id}} has a subject of {{}} bytes; 0 to {SUBJECT_BYTES_MAX} are allowed"
    )
    # Whether version 1 always has the 8-bit length of profile `zeebe`.
    has_short_length = False

    def __init__(
        self, version: int, advertised: Address, advertised_ip: str, frame_bytes_max: int
    ) -> None:
        self._version = version
        self._advertised = advertised
        self._advertised_ip = advertised_ip
        # Whether the address of this node has been sent.
        self._has_sent_sender = False
        # Length format of version 1; a server replies in the format of the client.
        self._has_short_length = self.has_short_length
        self.frame_bytes_max = frame_bytes_max
        self.sender: Address | None = None
        self.bytes_needed = 1

    def decode(self, data: Bytes, frames: list[Frame]) -> int:
        position = 0
        if self.sender is None:
            sender = self._decode_sender(data)
            if sender is None:
                self.bytes_needed = len(data) + 1
                return 0
            self.sender, position = sender
        return self._decode_frames(data, position, frames)

    def encode_request(
        self,
        out: list[bytes],
        id: int,
        subject: str,
        payload: bytes,
        timeout_ms: int,
        one_way: bool,
    ) -> None:
        encoded = subject.encode()
        trailer = self.subject_length.pack(len(encoded)) + encoded
        self._encode(out, self.pack_header(REQUEST, id, len(payload)), payload, trailer)

    def encode_reply(
        self, out: list[bytes], id: int, status: int, payload: bytes, code: int, retryable: bool
    ) -> None:
        self._encode(out, self.pack_header(REPLY, id, len(payload)), payload, _STATUS[status])

    def _encode(self, out: list[bytes], header: bytes, payload: bytes, trailer: bytes) -> None:
        if not self._has_sent_sender:
            self._encode_sender_once(out)
        if len(payload) < JOIN_BYTES_MAX:
            out.append(header + payload + trailer)
        else:
            out += (header, payload, trailer)

    def encode_control(self, out: list[bytes], frame: Frame) -> None:
        raise LocalProtocolError(f"version {self._version} has no frame for {type(frame).__name__}")

    @abstractmethod
    def _decode_frames(self, data: Bytes, position: int, frames: list[Frame]) -> int:
        """Append every complete frame from the position on; return where the rest starts."""

    def _decode_body(
        self, kind: int, data: Bytes, id: int, start: int, stop: int, frames: list[Frame]
    ) -> int:
        """Append the frame if it is complete; return its end, or the start of its subject."""
        end = len(data)
        if kind == REPLY:
            if stop < end:
                status = data[stop]
                if status > STATUS_MAX:
                    raise MalformedFrameError(f"reply {id} has unknown status {status}")
                frames.append(ReplyFrame(id, status, data[start:stop]))  # type: ignore[arg-type]
            return stop + 1
        subject_start = stop + self.subject_length.size
        if subject_start > end:
            return subject_start
        (length,) = self.subject_length.unpack_from(data, stop)
        if not 0 <= length <= SUBJECT_BYTES_MAX:
            raise MalformedFrameError(self.bad_subject.format(length, id=id))
        check_frame_size(stop - start + int(length), self.frame_bytes_max)
        after = subject_start + int(length)
        if after <= end:
            subject = decode_utf8(data[subject_start:after], "subject", id)
            frames.append(RequestFrame(id, subject, data[start:stop]))  # type: ignore[arg-type]
        return after

    def _encode_sender_once(self, out: list[bytes]) -> None:
        """Append the address of this node, before its first frame."""
        if self._version == 1:
            ip, port = self._advertised_ip, self._advertised.port
            out.append(encode_sender_ip(ip, port, has_short_length=self._has_short_length))
        else:
            out.append(encode_sender_host(self._advertised))
        self._has_sent_sender = True

    def _decode_sender(self, data: Bytes) -> tuple[Address, int] | None:
        if self._version != 1:
            return decode_sender_host(data)
        if len(data) == 0:
            return None
        # The first byte of a 16-bit length is 0, an 8-bit length is 4 or 16.
        self._has_short_length = self.has_short_length or data[0] != 0
        return decode_sender_ip(data, has_short_length=self._has_short_length)


def unknown_type_error(kind: int) -> MalformedFrameError:
    """Build the error for a frame that is neither request nor reply."""
    return MalformedFrameError(f"unknown frame type {kind}; 1 is a request, 2 a reply")


_HEADER = struct.Struct(">Bqi")
_HEADER_BYTES = _HEADER.size


class DocumentedCodec(LegacyCodec):
    """Versions 1 and 2 of profile `documented`: fixed-width fields, big endian (2.2).

    request   i8 type = 1, i64 id, i32 payload length, payload, i32 subject length, subject
    reply     i8 type = 2, i64 id, i32 payload length, payload, i8 status
    """

    pack_header = staticmethod(_HEADER.pack)
    subject_length = struct.Struct(">i")

    def _decode_frames(self, data: Bytes, position: int, frames: list[Frame]) -> int:
        end = len(data)
        self.bytes_needed = _HEADER_BYTES
        while end - position >= _HEADER_BYTES:
            kind, id, length = _HEADER.unpack_from(data, position)
            if length < 0:
                raise MalformedFrameError(f"frame has a negative payload length, {length}")
            check_frame_size(length, self.frame_bytes_max)
            if kind != REQUEST and kind != REPLY:
                raise unknown_type_error(kind)
            start = position + _HEADER_BYTES
            after = self._decode_body(kind, data, id, start, start + length, frames)
            if after > end:
                self.bytes_needed = after - position
                break
            position = after
        return position
