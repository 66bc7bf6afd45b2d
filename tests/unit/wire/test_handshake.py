"""The negotiation of preamble and version, alone."""

import pytest

from postroad.core.errors import ConfigError, HandshakeRejectedError
from postroad.wire import DOCUMENTED, PROFILES, ZEEBE, ConnectionRole, ProtocolProfile
from postroad.wire.handshake import Handshake, encode_preamble, java_string_hash
from tests.support.wire.pairs import byte_by_byte, two_pieces

PREAMBLE = b"\xeb\x6e\xec\x8a"
BOTH = [DOCUMENTED, ZEEBE]


def handshake(role: ConnectionRole, profile: ProtocolProfile) -> Handshake:
    return Handshake(role, profile, PREAMBLE)


def test_a_profile_has_its_versions_without_the_newest_if_asked() -> None:
    assert PROFILES == {"documented": DOCUMENTED, "zeebe": ZEEBE}
    assert DOCUMENTED.versions == (1, 2, 3)
    assert ZEEBE.versions == (1, 2)

    assert DOCUMENTED.up_to(None) is DOCUMENTED
    assert DOCUMENTED.up_to(2).versions == (1, 2)
    assert DOCUMENTED.up_to(9) == DOCUMENTED
    with pytest.raises(ConfigError, match="profile 'zeebe' has no version 0 or older"):
        ZEEBE.up_to(0)


def test_a_profile_has_its_versions_without_the_oldest_if_asked() -> None:
    assert DOCUMENTED.since(None) is DOCUMENTED
    assert DOCUMENTED.since(2).versions == (2, 3)
    assert DOCUMENTED.since(0) == DOCUMENTED
    with pytest.raises(ConfigError, match="profile 'zeebe' has no version 3 or newer up to 2"):
        ZEEBE.since(3)


@pytest.mark.parametrize("profile", BOTH, ids=lambda profile: profile.name)
def test_the_client_opens_with_its_newest_version(profile: ProtocolProfile) -> None:
    newest = profile.versions[-1]
    assert handshake(ConnectionRole.CLIENT, profile).initial_bytes() == PREAMBLE + bytes(
        [0, newest]
    )
    assert handshake(ConnectionRole.SERVER, profile).initial_bytes() == b""


def test_the_server_hears_in_any_two_pieces(subtests: pytest.Subtests) -> None:
    for profile in BOTH:
        with subtests.test(profile=profile):
            for first, second in two_pieces(PREAMBLE + b"\x00\x02" + b"rest"):
                server = handshake(ConnectionRole.SERVER, profile)
                rest = server.feed(first)
                rest = server.feed(second) if rest is None else rest + second
                assert rest == b"rest"
                assert server.version == 2

    server = handshake(ConnectionRole.SERVER, DOCUMENTED)
    rests = [server.feed(piece) for piece in byte_by_byte(PREAMBLE + b"\x00\x01")]
    assert rests == [None, None, None, None, None, b""]
    assert server.version == 1


def test_handshake_server_answers_the_offered_or_its_latest_version(
    subtests: pytest.Subtests,
) -> None:
    for profile, offered, agreed in [
        (DOCUMENTED, b"\x00\x01", 1),
        (DOCUMENTED, b"\x00\x02", 2),
        (DOCUMENTED, b"\x00\x03", 3),
        (DOCUMENTED, b"\x00\x04", 3),
        (DOCUMENTED, b"\x00\x00", 3),
        (DOCUMENTED, b"\xff\xff", 3),
        (DOCUMENTED, b"\x80\x00", 3),
        (DOCUMENTED.up_to(2), b"\x00\x03", 2),
        (ZEEBE, b"\x00\x03", 2),
        (ZEEBE.up_to(1), b"\x00\x02", 1),
    ]:
        with subtests.test(offered=offered):
            server = handshake(ConnectionRole.SERVER, profile)
            assert server.feed(PREAMBLE + offered) == b""
            assert server.version == agreed
            prefix = PREAMBLE if profile.answers_preamble else b""
            assert server.response_bytes() == prefix + bytes([0, agreed])


def test_the_client_hears_in_any_two_pieces_and_refuses_unknown_versions(
    subtests: pytest.Subtests,
) -> None:
    for profile, answer in [(DOCUMENTED, b"\x00\x02"), (ZEEBE, PREAMBLE + b"\x00\x02")]:
        with subtests.test(answer=answer):
            for first, second in two_pieces(answer):
                client = handshake(ConnectionRole.CLIENT, profile)
                assert client.feed(first) is None
                assert client.feed(second + b"rest") == b"rest"
                assert client.version == 2

    for answer in [b"\x00\x00", b"\x00\x04", b"\x7f\xff", b"\xff\xff"]:
        with subtests.test(answer=answer):
            with pytest.raises(HandshakeRejectedError, match="this node supports 1, 2, 3"):
                handshake(ConnectionRole.CLIENT, DOCUMENTED).feed(answer)
            with pytest.raises(HandshakeRejectedError, match="this node supports 1, 2"):
                handshake(ConnectionRole.CLIENT, ZEEBE).feed(PREAMBLE + answer)


@pytest.mark.parametrize(
    "role_and_profile", [(ConnectionRole.SERVER, DOCUMENTED), (ConnectionRole.CLIENT, ZEEBE)]
)
@pytest.mark.parametrize("wrong", range(4))
def test_a_wrong_preamble_is_refused_at_its_first_wrong_byte(
    role_and_profile: tuple[ConnectionRole, ProtocolProfile], wrong: int
) -> None:
    side = handshake(*role_and_profile)
    for byte in byte_by_byte(PREAMBLE[:wrong]):
        assert side.feed(byte) is None
    with pytest.raises(HandshakeRejectedError, match="is not eb 6e ec 8a"):
        side.feed(bytes([PREAMBLE[wrong] ^ 1]))


def test_client_names_the_profiles_when_the_server_has_the_other_one() -> None:
    client = Handshake(ConnectionRole.CLIENT, DOCUMENTED, PREAMBLE)
    with pytest.raises(
        HandshakeRejectedError, match="profile 'zeebe' does; this node is configured"
    ):
        client.feed(PREAMBLE + b"\x00\x02")
    client = Handshake(ConnectionRole.CLIENT, ZEEBE, PREAMBLE)
    with pytest.raises(
        HandshakeRejectedError, match="profile 'documented' does; this node is conf"
    ):
        client.feed(b"\x00\x02")


def test_preamble_is_the_hash_over_utf16_units_as_four_bytes() -> None:
    for text, value in [
        ("", 0),
        ("a", 97),
        ("ab", 31 * 97 + 98),
        ("\uffff", 0xFFFF),
        ("\U00010000", 31 * 0xD800 + 0xDC00),
        ("\ud800", 0xD800),
        ("polygenelubricants", -(2**31)),
    ]:
        assert java_string_hash(text) == value, text
    assert encode_preamble("a") == b"\x00\x00\x00\x61"
    assert encode_preamble("polygenelubricants") == b"\x80\x00\x00\x00"
