"""The four heartbeat messages of the `zeebe` profile, in SBE: little endian, 8-byte header."""

from __future__ import annotations

import struct

import msgspec

from postroad.core.errors import MalformedPayloadError

_HEADER = struct.Struct("<HHHH")
_SCHEMA_ID = 10
_SCHEMA_VERSION = 2
_SETUP_REQUEST, _SETUP_RESPONSE, _BEAT, _BEAT_ANSWER = 1, 2, 3, 4
_TRUE = 1

_SETUP_REQUEST_BODY = struct.Struct("<IB")
_SETUP_RESPONSE_BODY = struct.Struct("<BB")
_TIMESTAMP = struct.Struct("<Q")


class HeartbeatSetupRequest(msgspec.Struct, frozen=True):
    """A client tells its heartbeat timeout and whether it wants timestamps in heartbeats."""

    timeout_ms: int
    sends_payload: bool


class HeartbeatSetupResponse(msgspec.Struct, frozen=True):
    """The server's answer."""

    is_enabled: bool
    sends_payload: bool


def encode_setup_request(setup: HeartbeatSetupRequest) -> bytes:
    """Template 1."""
    body = _SETUP_REQUEST_BODY.pack(setup.timeout_ms, setup.sends_payload)
    return _header(_SETUP_REQUEST, len(body)) + body


def decode_setup_request(payload: bytes) -> HeartbeatSetupRequest:
    """Template 1; older schema versions lack the last field, which then counts as false."""
    body = _body(payload, _SETUP_REQUEST, 4)
    return HeartbeatSetupRequest(int.from_bytes(body[:4], "little"), body[4:5] == bytes([_TRUE]))


def encode_setup_response(setup: HeartbeatSetupResponse) -> bytes:
    """Template 2."""
    body = _SETUP_RESPONSE_BODY.pack(setup.is_enabled, setup.sends_payload)
    return _header(_SETUP_RESPONSE, len(body)) + body


def decode_setup_response(payload: bytes) -> HeartbeatSetupResponse:
    """Template 2; older schema versions lack the last field, which then counts as false."""
    body = _body(payload, _SETUP_RESPONSE, 1)
    return HeartbeatSetupResponse(body[0] == _TRUE, body[1:2] == bytes([_TRUE]))


def encode_heartbeat(epoch_ms: int) -> bytes:
    """Template 3: when a heartbeat was sent."""
    return _header(_BEAT, _TIMESTAMP.size) + _TIMESTAMP.pack(epoch_ms)


def encode_heartbeat_reply(epoch_ms: int) -> bytes:
    """Template 4: when a heartbeat was received."""
    return _header(_BEAT_ANSWER, _TIMESTAMP.size) + _TIMESTAMP.pack(epoch_ms)


def _header(template: int, block_bytes: int) -> bytes:
    return _HEADER.pack(block_bytes, template, _SCHEMA_ID, _SCHEMA_VERSION)


def _body(payload: bytes, template: int, block_bytes_min: int) -> bytes:
    if len(payload) < _HEADER.size:
        raise MalformedPayloadError(f"{len(payload)} bytes are no heartbeat message")
    block_bytes, actual_template, schema, _ = _HEADER.unpack_from(payload)
    body = payload[_HEADER.size : _HEADER.size + block_bytes]
    if (actual_template, schema) != (template, _SCHEMA_ID):
        raise MalformedPayloadError(
            f"template {actual_template} of schema {schema} is not expected"
        )
    if len(body) < max(block_bytes, block_bytes_min):
        raise MalformedPayloadError(f"heartbeat message ends after {len(body)} bytes of its body")
    return body
