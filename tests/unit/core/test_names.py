"""Which names a node and a cluster may have."""

import pytest

from postroad.core.errors import ConfigError
from postroad.core.names import NODE_NAME_BYTES_MAX, validate_cluster_name, validate_node_name


@pytest.mark.parametrize("name", ["a", "node-1", "eu.west_2", "Localhost", "Ünï", "n" * 255])
def test_good_node_names(name: str) -> None:
    assert validate_node_name(name) == name


@pytest.mark.parametrize("character", ["@", ":", "*", "/", "\\", " ", "\t", "\n", "\0", "\u2028"])
def test_a_node_name_with_a_separator_is_refused_by_that_character(character: str) -> None:
    with pytest.raises(ConfigError, match="contains") as caught:
        validate_node_name(f"a{character}b")
    assert repr(character) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("local", "reserved"),
        ("n" * 256, "256 bytes"),
        ("ü" * 128, "256 bytes"),
        ("a\ud800", "contains"),
    ],
)
def test_other_bad_node_names(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        validate_node_name(name)


@pytest.mark.parametrize("name", ["", "zeebe-cluster", "any thing: at @ll", "🚀", "c" * 255])
def test_good_cluster_names(name: str) -> None:
    assert validate_cluster_name(name) == name


def test_a_long_cluster_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"longer than {NODE_NAME_BYTES_MAX}"):
        validate_cluster_name("c" * 256)


def test_a_cluster_name_must_be_encodable() -> None:
    with pytest.raises(ConfigError, match="UTF-8"):
        validate_cluster_name("\ud800")
