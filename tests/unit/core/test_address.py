"""Addresses as people write them."""

import pytest

from postroad.core.address import Address, to_address
from postroad.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:26502", Address("localhost", 26502)),
        ("10.0.0.1:0", Address("10.0.0.1", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        ("[fe80::1%eth0]:80", Address("fe80::1%eth0", 80)),
    ],
)
def test_parse_and_print(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "localhost", ":1", "[]:1", "host:", "host:-1", "host:1a", "host:²", "host: 1", "host:٣"],
)
def test_anything_else_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["::1:26502", "a:b:1", "fe80::1"])
def test_a_bare_ipv6_host_needs_brackets(text: str) -> None:
    with pytest.raises(ConfigError, match="brackets"):
        Address.parse(text)


@pytest.mark.parametrize("digits", ["65536", "99999999", "9" * 5_000])
def test_a_port_has_sixteen_bits(digits: str) -> None:
    with pytest.raises(ConfigError, match="0 to 65535"):
        Address.parse(f"host:{digits}")


def test_either_spelling_is_accepted() -> None:
    address = Address("a", 1)
    assert to_address(address) is address
    assert to_address("a:1") == address
