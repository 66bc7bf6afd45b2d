"""The heartbeat messages of the `zeebe` profile, byte for byte."""

import pytest

from postroad.core.errors import MalformedPayloadError
from postroad.wire.heartbeats import (
    HeartbeatSetupRequest,
    HeartbeatSetupResponse,
    decode_setup_request,
    decode_setup_response,
    encode_heartbeat,
    encode_heartbeat_reply,
    encode_setup_request,
    encode_setup_response,
)

REQUEST = bytes.fromhex("05 00 01 00 0a 00 02 00 98 3a 00 00 01")
RESPONSE = bytes.fromhex("02 00 02 00 0a 00 02 00 01 01")


def test_messages_have_their_layout() -> None:
    setup = HeartbeatSetupRequest(15_000, sends_payload=True)
    assert encode_setup_request(setup) == REQUEST
    assert decode_setup_request(REQUEST) == setup

    response = HeartbeatSetupResponse(is_enabled=True, sends_payload=True)
    assert encode_setup_response(response) == RESPONSE
    assert decode_setup_response(RESPONSE) == response

    assert encode_heartbeat(0x0102030405060708) == bytes.fromhex(
        "08 00 03 00 0a 00 02 00 08 07 06 05 04 03 02 01"
    )
    assert encode_heartbeat_reply(1) == bytes.fromhex(
        "08 00 04 00 0a 00 02 00 01 00 00 00 00 00 00 00"
    )

    # 0 is false, 1 true, 255 null, which counts as false.
    for byte, value in [(0, False), (1, True), (255, False)]:
        assert decode_setup_request(REQUEST[:-1] + bytes([byte])).sends_payload is value, byte
        assert decode_setup_response(RESPONSE[:-2] + bytes([byte, 1])).is_enabled is value, byte
        assert decode_setup_response(RESPONSE[:-1] + bytes([byte])).sends_payload is value, byte


def test_other_schema_versions_lack_or_add_fields() -> None:
    request = bytes.fromhex("04 00 01 00 0a 00 01 00 98 3a 00 00")
    response = bytes.fromhex("01 00 02 00 0a 00 01 00 01")
    assert decode_setup_request(request) == HeartbeatSetupRequest(15_000, sends_payload=False)
    assert decode_setup_response(response) == HeartbeatSetupResponse(
        is_enabled=True, sends_payload=False
    )
    request = bytes.fromhex("07 00 01 00 0a 00 03 00 98 3a 00 00 01 aa bb")
    assert decode_setup_request(request) == HeartbeatSetupRequest(15_000, sends_payload=True)


def test_other_payloads_are_no_set_up(subtests: pytest.Subtests) -> None:
    for payload, reason in [
        (b"", "shorter than its header"),
        (REQUEST[:7], "shorter than its header"),
        (RESPONSE, "template 2 of schema 10"),
        (REQUEST[:4] + b"\x0b\x00" + REQUEST[6:], "template 1 of schema 11"),
        (REQUEST[:-1], "ends after 4 bytes"),
        (bytes.fromhex("03 00 01 00 0a 00 01 00 98 3a 00"), "ends after 3 bytes"),
    ]:
        with subtests.test(payload=payload), pytest.raises(MalformedPayloadError, match=reason):
            decode_setup_request(payload)

    for payload in [b"", REQUEST, RESPONSE[:-1], b"internal-heartbeat-setup"]:
        with subtests.test(payload=payload), pytest.raises(MalformedPayloadError):
            decode_setup_response(payload)
