"""Heartbeat messages of the `zeebe` profile in SBE: little endian, 8-byte header (2.3)."""

from __future__ import annotations

import struct

import msgspec

from postroad.core.errors import MalformedPayloadError

_HEADER = struct.Struct("<HHHH")
_SCHEMA_ID = 10
_SCHEMA_VERSION = 2
_SETUP_REQUEST, _SETUP_RESPONSE, _HEARTBEAT, _HEARTBEAT_REPLY = 1, 2, 3, 4
_TRUE = 1

_SETUP_REQUEST_BODY = struct.Struct("<IB")
_SETUP_RESPONSE_BODY = struct.Struct("<BB")
_TIMESTAMP = struct.Struct("<Q")


class HeartbeatSetupRequest(msgspec.Struct, frozen=True):
    """Heartbeat timeout of a client, and whether it supports timestamps in heartbeats."""

    timeout_ms: int
    sends_payload: bool


class HeartbeatSetupResponse(msgspec.Struct, frozen=True):
    """The response of the server."""

    is_enabled: bool
    sends_payload: bool


def encode_setup_request(setup: HeartbeatSetupRequest) -> bytes:
    """Encode template 1."""
    body = _SETUP_REQUEST_BODY.pack(setup.timeout_ms, setup.sends_payload)
    return _header(_SETUP_REQUEST, len(body)) + body


def decode_setup_request(payload: bytes) -> HeartbeatSetupRequest:
    """Decode template 1; older schema versions lack the last field, then it is false."""
    body = _body(payload, _SETUP_REQUEST, 4)
    return HeartbeatSetupRequest(int.from_bytes(body[:4], "little"), body[4:5] == bytes([_TRUE]))


def encode_setup_response(setup: HeartbeatSetupResponse) -> bytes:
    """Encode template 2."""
    body = _SETUP_RESPONSE_BODY.pack(setup.is_enabled, setup.sends_payload)
    return _header(_SETUP_RESPONSE, len(body)) + body


def decode_setup_response(payload: bytes) -> HeartbeatSetupResponse:
    """Decode template 2; older schema versions lack the last field, then it is false."""
    body = _body(payload, _SETUP_RESPONSE, 1)
    return HeartbeatSetupResponse(body[0] == _TRUE, body[1:2] == bytes([_TRUE]))


def encode_heartbeat(epoch_ms: int) -> bytes:
    """Encode template 3: when a heartbeat was sent."""
    return _header(_HEARTBEAT, _TIMESTAMP.size) + _TIMESTAMP.pack(epoch_ms)


def encode_heartbeat_reply(epoch_ms: int) -> bytes:
    """Encode template 4: when a heartbeat was received."""
    return _header(_HEARTBEAT_REPLY, _TIMESTAMP.size) + _TIMESTAMP.pack(epoch_ms)


def _header(template: int, block_bytes: int) -> bytes:
    return _HEADER.pack(block_bytes, template, _SCHEMA_ID, _SCHEMA_VERSION)


def _body(payload: bytes, template: int, block_bytes_min: int) -> bytes:
    if len(payload) < _HEADER.size:
        raise MalformedPayloadError(
            f"heartbeat message of {len(payload)} bytes is shorter than its header"
        )
    block_bytes, actual_template, schema, _ = _HEADER.unpack_from(payload)
    body = payload[_HEADER.size : _HEADER.size + block_bytes]
    if (actual_template, schema) != (template, _SCHEMA_ID):
        raise MalformedPayloadError(
            f"heartbeat message has template {actual_template} of schema {schema}, "
            f"expected {template} of {_SCHEMA_ID}"
        )
    if len(body) < max(block_bytes, block_bytes_min):
        raise MalformedPayloadError(f"heartbeat message ends after {len(body)} bytes of its body")
    return body
