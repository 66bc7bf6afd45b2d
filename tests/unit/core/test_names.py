"""Which names a node and a cluster may have."""

import pytest

from postroad.core.errors import ConfigError
from postroad.core.names import NODE_NAME_BYTES_MAX, validate_cluster_name, validate_node_name


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
