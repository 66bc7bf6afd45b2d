"""When heartbeats are sent, answered and missed, and their layout in profile `zeebe`."""

from itertools import count

import pytest

from postroad.core.errors import MalformedFrameError, MalformedPayloadError, PeerTimeoutError
from postroad.core.timing import NEVER
from postroad.wire.frames import (
    CancelFrame,
    Frame,
    PingFrame,
    PongFrame,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
)
from postroad.wire.heartbeats import (
    HEARTBEAT_SUBJECT,
    SETUP_SUBJECT,
    Heartbeats,
    HeartbeatSetupRequest,
    HeartbeatSetupResponse,
    PingHeartbeats,
    ZeebeClientHeartbeats,
    ZeebeServerHeartbeats,
    decode_setup_request,
    decode_setup_response,
    encode_heartbeat,
    encode_heartbeat_reply,
    encode_setup_request,
    encode_setup_response,
)

SETUP = bytes.fromhex("05 00 01 00 0a 00 02 00 98 3a 00 00 01")
AGREED = bytes.fromhex("02 00 02 00 0a 00 02 00 01 01")


def zeebe_client(
    interval_s: float = 5, timeout_s: float = 15, *, sends_payload: bool = True
) -> ZeebeClientHeartbeats:
    heartbeats = ZeebeClientHeartbeats(
        interval_s,
        timeout_s,
        sends_payload=sends_payload,
        next_id=count(1).__next__,
        wall_clock=lambda: 0,
    )
    heartbeats.open(0.0)
    return heartbeats


def agreed_client() -> ZeebeClientHeartbeats:
    heartbeats = zeebe_client()
    assert heartbeats.consume(ReplyFrame(1, ReplyStatus.OK, AGREED), 0)
    heartbeats.outgoing.clear()
    return heartbeats


def test_a_connection_without_heartbeats_has_nothing_due() -> None:
    heartbeats = Heartbeats()
    heartbeats.open(0.0)
    heartbeats.tick(1e9, 0, 0)
    assert heartbeats.deadline(0, 0) == NEVER
    assert heartbeats.outgoing == []
    assert not heartbeats.consume(PingFrame(1), 0)
    assert heartbeats.round_trip_s is None

    heartbeats = Heartbeats()
    heartbeats.interval_s = 1
    heartbeats.tick(2, 0, 0)
    assert heartbeats.outgoing == []


def test_a_side_pings_when_quiet_and_gives_up_a_silent_peer() -> None:
    heartbeats = PingHeartbeats(5, 15, 15)
    assert heartbeats.deadline(0, 0) == 5
    heartbeats.tick(4.9, 0, 0)
    assert heartbeats.outgoing == []
    heartbeats.tick(5, 0, 0)
    assert heartbeats.outgoing == [PingFrame(1)]

    heartbeats = PingHeartbeats(5, 15, 15)
    assert heartbeats.deadline(0, 3) == 8
    heartbeats.tick(5, 0, 3)
    assert heartbeats.outgoing == []

    heartbeats = PingHeartbeats(5, 15, 15)
    assert heartbeats.deadline(0, 14) == 15
    heartbeats.tick(14.9, 0, 14)
    with pytest.raises(PeerTimeoutError, match="nothing was received from the peer for 15 s"):
        heartbeats.tick(15, 0, 14)


def test_the_peers_timeout_bounds_our_silence(subtests: pytest.Subtests) -> None:
    for ours, theirs_s, interval_s, timeout_s in [
        ((5, 15), 15, 5, 15),
        ((5, 15), 3, 1, 15),
        ((1, 3), 60, 1, 3),
        ((5, 15), 0, 5, 15),
        ((0, 0), 9, 3, NEVER),
        ((0, 0), 0, NEVER, NEVER),
    ]:
        with subtests.test(theirs_s=theirs_s):
            heartbeats = PingHeartbeats(*ours, theirs_s)
            assert (heartbeats.interval_s, heartbeats.timeout_s) == (interval_s, timeout_s)


def test_pings_are_answered_and_measured() -> None:
    heartbeats = PingHeartbeats(5, 15, 15)
    assert heartbeats.consume(PingFrame(42), 0)
    assert heartbeats.outgoing == [PongFrame(42)]
    heartbeats.tick(5, 5, 0)
    assert heartbeats.consume(PongFrame(1), 5.25)
    assert heartbeats.round_trip_s == 0.25

    heartbeats = PingHeartbeats(5, 15, 15)
    heartbeats.tick(5, 5, 0)
    assert heartbeats.consume(PongFrame(99), 6)
    assert heartbeats.round_trip_s is None

    others: list[Frame] = [RequestFrame(1, "echo", b""), ReplyFrame(1, 0, b""), CancelFrame(1)]
    for frame in others:
        assert not PingHeartbeats(5, 15, 15).consume(frame, 0), frame


def test_a_ping_can_be_sent_at_any_time_and_is_forgotten_at_last() -> None:
    heartbeats = PingHeartbeats(5, 15, 15)
    heartbeats.ping(1)
    heartbeats.ping(2)
    assert heartbeats.outgoing == [PingFrame(1), PingFrame(2)]
    heartbeats.consume(PongFrame(1), 4)
    assert heartbeats.round_trip_s == 3
    heartbeats.consume(PongFrame(2), 4)
    assert heartbeats.round_trip_s == 2
    heartbeats.consume(PongFrame(2), 5)
    assert heartbeats.round_trip_s == 2, "an answer counts once"

    heartbeats = PingHeartbeats(5, 15, 15)
    for now in range(1, 10):
        heartbeats.ping(now)
    heartbeats.consume(PongFrame(1), 20)
    assert heartbeats.round_trip_s is None
    heartbeats.consume(PongFrame(2), 20)
    assert heartbeats.round_trip_s == 18

    for other in (Heartbeats(), zeebe_client()):
        other.outgoing.clear()
        other.ping(1)
        assert other.outgoing == []


def test_the_client_asks_first_and_waits_for_the_answer() -> None:
    assert zeebe_client().outgoing == [RequestFrame(1, SETUP_SUBJECT, SETUP)]

    heartbeats = zeebe_client(0, 0)
    assert heartbeats.outgoing == []
    assert heartbeats.deadline(0, 0) == NEVER

    heartbeats = zeebe_client()
    heartbeats.outgoing.clear()
    heartbeats.tick(100, 0, 0)
    assert heartbeats.outgoing == []
    assert heartbeats.deadline(0, 0) == NEVER


def test_without_agreement_the_client_runs_without_heartbeats(subtests: pytest.Subtests) -> None:
    for reply in [
        ReplyFrame(1, ReplyStatus.HANDLER_FAILED, AGREED),
        ReplyFrame(1, ReplyStatus.OK, b""),
        ReplyFrame(1, ReplyStatus.OK, bytes.fromhex("02 00 02 00 0a 00 02 00 00 01")),
    ]:
        with subtests.test(reply=reply):
            heartbeats = zeebe_client()
            assert heartbeats.consume(reply, 0)
            heartbeats.outgoing.clear()
            heartbeats.tick(1e9, 0, 0)
            assert heartbeats.outgoing == []


def test_the_client_beats_when_quiet_and_gives_up_with_an_unanswered_beat() -> None:
    heartbeats = agreed_client()
    assert heartbeats.deadline(0, 0) == 5
    heartbeats.tick(5, 0, 0)
    (beat,) = heartbeats.outgoing
    assert isinstance(beat, RequestFrame)
    assert (beat.id, beat.subject, len(beat.payload)) == (2, HEARTBEAT_SUBJECT, 16)
    assert heartbeats.deadline(0, 5) == 10
    assert heartbeats.deadline(0, 12) == 15, "a beat is unanswered, so the timeout counts"

    heartbeats = agreed_client()
    heartbeats.tick(16, 0, 15)
    assert len(heartbeats.outgoing) == 1, "nothing was read, so it asks although it writes"
    heartbeats.tick(20, 0, 19)
    with pytest.raises(PeerTimeoutError):
        heartbeats.tick(26, 0, 25)

    heartbeats = agreed_client()
    assert heartbeats.consume(RequestFrame(1, HEARTBEAT_SUBJECT, b""), 0)
    assert not heartbeats.consume(RequestFrame(1, "echo", b""), 0)
    assert heartbeats.outgoing == []


def test_a_beat_is_answered_by_its_reply_or_any_later_one() -> None:
    heartbeats = agreed_client()
    heartbeats.tick(5, 0, 0)
    assert heartbeats.consume(ReplyFrame(2, ReplyStatus.OK, b""), 6)
    heartbeats.tick(30, 6, 29)

    heartbeats = agreed_client()
    heartbeats.tick(5, 0, 0)
    heartbeats.tick(10, 0, 5)
    assert not heartbeats.consume(ReplyFrame(9, ReplyStatus.OK, b"somebody's"), 11)
    heartbeats.tick(30, 11, 29)

    heartbeats = agreed_client()
    heartbeats.tick(5, 0, 0)
    assert heartbeats.consume(ReplyFrame(1, ReplyStatus.OK, b"late"), 6)
    with pytest.raises(PeerTimeoutError):
        heartbeats.tick(21, 6, 20)

    heartbeats = agreed_client()
    assert heartbeats.consume(ReplyFrame(1, ReplyStatus.OK, AGREED), 0)

    assert not agreed_client().consume(CancelFrame(1), 0)


def zeebe_server(*, sends_payload: bool = True) -> ZeebeServerHeartbeats:
    return ZeebeServerHeartbeats(sends_payload=sends_payload, wall_clock=lambda: 0)


def test_the_server_uses_the_clients_timeout_and_never_beats() -> None:
    heartbeats = zeebe_server()
    assert heartbeats.deadline(0, 0) == NEVER
    assert heartbeats.consume(RequestFrame(1, SETUP_SUBJECT, SETUP), 0)
    assert heartbeats.outgoing == [ReplyFrame(1, ReplyStatus.OK, AGREED)]
    assert heartbeats.deadline(0, 0) == 15
    heartbeats.tick(14.9, 0, 0)
    with pytest.raises(PeerTimeoutError, match="nothing was received from the peer for 15 s"):
        heartbeats.tick(15, 0, 0)

    heartbeats = zeebe_server()
    millisecond = bytes.fromhex("05 00 01 00 0a 00 02 00 01 00 00 00 01")
    heartbeats.consume(RequestFrame(1, SETUP_SUBJECT, millisecond), 0)
    assert heartbeats.deadline(0, 0) >= 0.1
    heartbeats.pause()
    assert heartbeats.deadline(0, 0) >= 0.05 - 1e-9

    heartbeats = zeebe_server()
    heartbeats.consume(RequestFrame(1, SETUP_SUBJECT, SETUP), 0)
    heartbeats.outgoing.clear()
    heartbeats.tick(14, 0, 0)
    assert heartbeats.outgoing == []
    assert not heartbeats.consume(RequestFrame(2, "echo", b""), 0)
    assert not heartbeats.consume(ReplyFrame(2, ReplyStatus.OK, b""), 0)


def test_the_server_answers_a_set_up_with_nothing_to_do_enabled(subtests: pytest.Subtests) -> None:
    for payload in [bytes.fromhex("05 00 01 00 0a 00 02 00 00 00 00 00 01"), b"undecodable"]:
        with subtests.test(payload=payload):
            heartbeats = zeebe_server()
            assert heartbeats.consume(RequestFrame(1, SETUP_SUBJECT, payload), 0)
            (reply,) = heartbeats.outgoing
            assert isinstance(reply, ReplyFrame)
            assert reply.payload[:9] == AGREED[:9]
            assert heartbeats.deadline(0, 0) == NEVER
            assert not heartbeats.consume(RequestFrame(2, HEARTBEAT_SUBJECT, b""), 0)

    with pytest.raises(MalformedFrameError, match="has no payload"):
        zeebe_server().consume(RequestFrame(1, SETUP_SUBJECT, b""), 0)


def test_zeebe_server_answers_heartbeats_without_set_up_by_its_own() -> None:
    heartbeats = zeebe_server()
    assert heartbeats.consume(RequestFrame(7, HEARTBEAT_SUBJECT, b""), 0)
    assert heartbeats.outgoing == [RequestFrame(7, HEARTBEAT_SUBJECT, b"")]
    assert heartbeats.deadline(0, 0) == NEVER


def test_zeebe_client_whose_set_up_is_rejected_sends_heartbeats_and_awaits_no_reply() -> None:
    heartbeats = zeebe_client()
    heartbeats.consume(ReplyFrame(1, ReplyStatus.NO_HANDLER, SETUP_SUBJECT.encode()), 0)
    heartbeats.outgoing.clear()
    interval_s = heartbeats.interval_s
    for number in range(1, 20):
        assert heartbeats.deadline(0, number * interval_s) == (number + 1) * interval_s
        heartbeats.tick((number + 1) * interval_s, 0, number * interval_s)
    assert len(heartbeats.outgoing) == 19
    assert {frame.payload for frame in heartbeats.outgoing if isinstance(frame, RequestFrame)} == {
        b""
    }


def test_zeebe_client_gives_up_a_server_whose_own_heartbeats_cease() -> None:
    heartbeats = zeebe_client()
    heartbeats.consume(ReplyFrame(1, ReplyStatus.NO_HANDLER, SETUP_SUBJECT.encode()), 0)
    heartbeats.consume(RequestFrame(0, HEARTBEAT_SUBJECT, b""), 1)
    heartbeats.tick(1 + heartbeats.timeout_s / 2, 1, 1 + heartbeats.timeout_s / 2)
    with pytest.raises(PeerTimeoutError):
        heartbeats.tick(1 + heartbeats.timeout_s, 1, 1 + heartbeats.timeout_s)


REQUEST = bytes.fromhex("05 00 01 00 0a 00 02 00 98 3a 00 00 01")
RESPONSE = bytes.fromhex("02 00 02 00 0a 00 02 00 01 01")


def test_heartbeats_are_concerned_by_all_frames_that_they_consume_or_learn_from() -> None:
    def reply(id: int) -> Frame:
        return ReplyFrame(id, ReplyStatus.OK, b"")

    assert zeebe_client().concerns([reply(7)])  # The set-up is not answered yet.

    client = agreed_client()
    assert not client.concerns([reply(2), reply(9)])
    assert client.concerns([reply(2), reply(1)])  # The set-up is answered once more.
    client.tick(5, 0, 0)
    assert client.concerns([reply(3)])  # It proves as much as the reply to the heartbeat.
    assert not client.consume(reply(3), 6)
    assert not client.concerns([reply(3)])
    assert client.concerns([reply(3), reply(2)])
    assert client.consume(reply(2), 6)

    server = zeebe_server()
    request = RequestFrame(1, "echo", b"")
    assert not server.concerns([request])
    for subject in (SETUP_SUBJECT, HEARTBEAT_SUBJECT):
        assert server.concerns([request, RequestFrame(2, subject, SETUP)])
        assert server.consume(RequestFrame(2, subject, SETUP), 0)

    assert not Heartbeats().concerns([request])


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
