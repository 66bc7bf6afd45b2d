"""Addresses: how they are written, and which names may be in them."""

import pytest

from postroad.cells import CellAddress, validate_cell_name, validate_domain_name, validate_zone
from postroad.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "cell", "domain"),
    [
        ("a", "a", "local"),
        ("a@", "a", "local"),
        ("a@local", "a", "local"),
        ("a@b", "a", "b"),
        ("*@d", "*", "d"),
        ("local@d", "local", "d"),
        ("Größe.1/x+y@eu-west_2", "Größe.1/x+y", "eu-west_2"),
    ],
)
def test_an_address_is_read(text: str, cell: str, domain: str) -> None:
    address = CellAddress.parse(text)
    assert (address.cell, address.domain) == (cell, domain)
    assert CellAddress.parse(str(address)) == address
    assert address.is_local == (domain == "local")
    assert address.is_domain == (cell == "*")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("@b", "empty"),
        ("*", "needs the name of a domain"),
        ("*@local", "needs the name of a domain"),
        ("a@b@c", "'@'"),
        ("a:b@c", "':'"),
        ("a*@c", "'\\*'"),
        ("a@c*", "'\\*'"),
        ("a b@c", "' '"),
        ("a@b c", "' '"),
        ("a\n@c", "contains"),
        ("a\u00a0@c", "contains"),
        ("a\ud800@c", "contains"),
        ("n" * 256 + "@c", "256 bytes"),
        ("ü" * 128, "256 bytes"),
        ("c@" + "n" * 256, "256 bytes"),
        ("n" * 513, "too long"),
    ],
)
def test_a_bad_address_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        CellAddress.parse(text)


def test_the_longest_address_is_read() -> None:
    text = "c" * 255 + "@" + "d" * 255
    assert str(CellAddress.parse(text)) == text


def test_no_domain_is_called_local() -> None:
    with pytest.raises(ConfigError, match="reserved"):
        validate_domain_name("local")


def test_valid_names_are_given_back() -> None:
    assert validate_cell_name("cell") == "cell"
    assert validate_domain_name("domain") == "domain"
    assert validate_zone("zone") == "zone"


def test_a_refused_zone_is_called_a_zone() -> None:
    with pytest.raises(ConfigError, match="zone: "):
        validate_zone("a:b")


def test_addresses_sort_by_cell_and_then_by_domain() -> None:
    texts = ["b@a", "a@b", "a@a"]
    assert [str(it) for it in sorted(map(CellAddress.parse, texts))] == ["a@a", "a@b", "b@a"]
