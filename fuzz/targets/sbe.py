"""The heartbeat messages of the `zeebe` profile, which fail as payloads, not as frames."""

from __future__ import annotations

from fuzz.target import Target, prefixes, require
from postroad.core.errors import MalformedPayloadError
from postroad.wire import heartbeats as sbe

_BYTES_MAX = 64


def check_setup_request(data: bytes) -> None:
    """Any bytes are a set-up request or a MalformedPayloadError, cut off or not."""
    for payload in (*prefixes(data), data):
        try:
            setup = sbe.decode_setup_request(payload)
        except MalformedPayloadError:
            continue
        again = sbe.decode_setup_request(sbe.encode_setup_request(setup))
        require(again == setup, f"{setup} does not survive encoding")


def check_setup_response(data: bytes) -> None:
    """Any bytes are a set-up response or a MalformedPayloadError, cut off or not."""
    for payload in (*prefixes(data), data):
        try:
            setup = sbe.decode_setup_response(payload)
        except MalformedPayloadError:
            continue
        again = sbe.decode_setup_response(sbe.encode_setup_response(setup))
        require(again == setup, f"{setup} does not survive encoding")


_OLDER_REQUEST = bytes.fromhex("04000100 0a000100 983a0000")
_OLDER_RESPONSE = bytes.fromhex("01000200 0a000100 01")

TARGETS = [
    Target(
        "sbe-setup-request",
        check_setup_request,
        [
            sbe.encode_setup_request(sbe.HeartbeatSetupRequest(15_000, sends_payload=True)),
            sbe.encode_setup_request(sbe.HeartbeatSetupRequest(0, sends_payload=False)),
            _OLDER_REQUEST,
            sbe.encode_heartbeat(1_700_000_000_000),
        ],
        _BYTES_MAX,
    ),
    Target(
        "sbe-setup-response",
        check_setup_response,
        [
            sbe.encode_setup_response(
                sbe.HeartbeatSetupResponse(is_enabled=True, sends_payload=True)
            ),
            sbe.encode_setup_response(
                sbe.HeartbeatSetupResponse(is_enabled=False, sends_payload=False)
            ),
            _OLDER_RESPONSE,
            sbe.encode_heartbeat_reply(1_700_000_000_000),
        ],
        _BYTES_MAX,
    ),
]
