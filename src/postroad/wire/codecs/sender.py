"""The sender's address, told once per direction just before its first frame (versions 1 and 2)."""

from __future__ import annotations

import ipaddress
import struct

from postroad.core.address import Address
from postroad.core.errors import ConfigError, MalformedFrameError
from postroad.wire.checks import Bytes, decode_utf8

_LENGTH_16 = struct.Struct(">h")
_PORT = struct.Struct(">i")
_IP_LENGTHS = (4, 16)


def encode_sender_host(address: Address) -> bytes:
    """Version 2: 16-bit length, host name, 32-bit port."""
    host = address.host.encode()
    return _LENGTH_16.pack(len(host)) + host + _PORT.pack(address.port)


def encode_sender_ip(ip: str, port: int, *, has_short_length: bool) -> bytes:
    """Version 1: length of 8 or 16 bits, raw IP, 32-bit port."""
    try:
        packed = ipaddress.ip_address(ip).packed
    except ValueError:
        raise ConfigError(f"version 1 needs an IP address to advertise, not {ip!r}") from None
    length = bytes([len(packed)]) if has_short_length else _LENGTH_16.pack(len(packed))
    return length + packed + _PORT.pack(port)


def decode_sender_host(data: Bytes) -> tuple[Address, int] | None:
    """Version 2 sender and the bytes it took, or None while incomplete."""
    if len(data) < _LENGTH_16.size:
        return None
    (length,) = _LENGTH_16.unpack_from(data)
    if length < 0:
        raise MalformedFrameError(f"sender host has a negative length, {length}")
    end = _LENGTH_16.size + length
    if len(data) < end + _PORT.size:
        return None
    host = decode_utf8(data[_LENGTH_16.size : end], "sender host")
    return Address(host, _decode_port(data, end)), end + _PORT.size


def decode_sender_ip(data: Bytes, *, has_short_length: bool) -> tuple[Address, int] | None:
    """Version 1 sender and the bytes it took, or None while incomplete."""
    start = 1 if has_short_length else _LENGTH_16.size
    if len(data) < start:
        return None
    length = data[0] if has_short_length else _LENGTH_16.unpack_from(data)[0]
    if length not in _IP_LENGTHS:
        raise MalformedFrameError(f"sender address of {length} bytes is no IP address")
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
