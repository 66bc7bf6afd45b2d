"""The cluster's mark."""

from postroad.wire.handshake import encode_preamble, java_string_hash


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
