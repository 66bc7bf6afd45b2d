"""Which names and addresses a node and a cluster may have."""

import pytest

from postroad.core.errors import ConfigError
from postroad.core.names import (
    NODE_NAME_BYTES_MAX,
    Address,
    to_address,
    validate_cluster_name,
    validate_node_name,
)


def test_node_names_are_validated(subtests: pytest.Subtests) -> None:
    for name in ["a", "node-1", "eu.west_2", "Localhost", "Ünï", "n" * 255]:
        assert validate_node_name(name) == name, name

    for character in ["@", ":", "*", "/", "\\", " ", "\t", "\n", "\0", "\u2028"]:
        with subtests.test(character=character):
            with pytest.raises(ConfigError, match="contains") as caught:
                validate_node_name(f"a{character}b")
            assert repr(character) in str(caught.value)

    for name, reason in [
        ("", "empty"),
        ("local", "reserved"),
        ("n" * 256, "256 bytes"),
        ("ü" * 128, "256 bytes"),
        ("a\ud800", "contains"),
    ]:
        with subtests.test(name=name), pytest.raises(ConfigError, match=reason):
            validate_node_name(name)


def test_cluster_names_are_validated() -> None:
    for name in ["", "zeebe-cluster", "any thing: at @ll", "🚀", "c" * 255]:
        assert validate_cluster_name(name) == name, name

    with pytest.raises(ConfigError, match=f"longer than {NODE_NAME_BYTES_MAX}"):
        validate_cluster_name("c" * 256)

    with pytest.raises(ConfigError, match="UTF-8"):
        validate_cluster_name("\ud800")


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
