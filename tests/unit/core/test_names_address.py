"""Addresses as people write them."""

import pytest

from postroad.core.errors import ConfigError
from postroad.core.names import Address, to_address


def test_an_address_is_parsed_and_printed() -> None:
    for text, address in [
        ("localhost:26502", Address("localhost", 26502)),
        ("10.0.0.1:0", Address("10.0.0.1", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        ("[fe80::1%eth0]:80", Address("fe80::1%eth0", 80)),
    ]:
        assert Address.parse(text) == address, text
        assert str(address) == text, text

    address = Address("a", 1)
    assert to_address(address) is address
    assert to_address("a:1") == address


def test_invalid_address_is_refused_naming_the_form(subtests: pytest.Subtests) -> None:
    for text in [
        "",
        "localhost",
        ":1",
        "[]:1",
        "host:",
        "host:-1",
        "host:1a",
        "host:²",
        "host: 1",
        "host:٣",
    ]:
        with subtests.test(text=text), pytest.raises(ConfigError, match="host:port"):
            Address.parse(text)

    for text in ["::1:26502", "a:b:1", "fe80::1"]:
        with subtests.test(text=text), pytest.raises(ConfigError, match="brackets"):
            Address.parse(text)

    for digits in ["65536", "99999999", "9" * 5_000]:
        with subtests.test(digits=digits), pytest.raises(ConfigError, match="0 to 65535"):
            Address.parse(f"host:{digits}")
