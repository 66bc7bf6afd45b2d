"""Addresses: how they are written, and which names may be in them."""

from collections.abc import Callable

import pytest

from postroad.cells import CellAddress
from postroad.cells.addresses import (
    validate_cell_name,
    validate_cell_names,
    validate_domain_name,
    validate_domain_names,
    validate_zone,
)
from postroad.core.errors import ConfigError


def test_an_address_is_read_as_it_is_written(subtests: pytest.Subtests) -> None:
    for text, cell, domain in [
        ("a", "a", "local"),
        ("a@", "a", "local"),
        ("a@local", "a", "local"),
        ("a@b", "a", "b"),
        ("*@d", "*", "d"),
        ("local@d", "local", "d"),
        ("Größe.1/x+y@eu-west_2", "Größe.1/x+y", "eu-west_2"),
    ]:
        with subtests.test(text=text):
            address = CellAddress.parse(text)
            assert (address.cell, address.domain) == (cell, domain)
            assert CellAddress.parse(str(address)) == address
            assert address.is_local == (domain == "local")
            assert address.is_domain == (cell == "*")

    text = "c" * 255 + "@" + "d" * 255
    assert str(CellAddress.parse(text)) == text

    texts = ["b@a", "a@b", "a@a"]
    assert [str(address) for address in sorted(map(CellAddress.parse, texts))] == [
        "a@a",
        "a@b",
        "b@a",
    ]


def test_a_bad_address_is_refused(subtests: pytest.Subtests) -> None:
    for text, reason in [
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
        ("n" * 513, "is longer than"),
    ]:
        with subtests.test(text=text), pytest.raises(ConfigError, match=reason):
            CellAddress.parse(text)


def test_names_of_cells_domains_and_zones_are_validated() -> None:
    assert validate_cell_name("cell") == "cell"
    assert validate_domain_name("domain") == "domain"
    assert validate_zone("zone") == "zone"
    with pytest.raises(ConfigError, match="reserved"):
        validate_domain_name("local")
    with pytest.raises(ConfigError, match="zone: "):
        validate_zone("a:b")


NAMES = ["a", "A.b-c_9", "größe", "x/y", "a\\b", "local", "", " ", "a b", "a@b", "a:b", "*"]
NAMES += ["\n", "\xa0", "\ud800", "n" * 255, "n" * 256, "ö" * 128, "ö" * 127, "\u2028", "😀"]


@pytest.mark.parametrize(
    ("one", "many"),
    [(validate_cell_name, validate_cell_names), (validate_domain_name, validate_domain_names)],
)
def test_lists_of_names_follow_the_same_rules(
    one: Callable[[str], str], many: Callable[[list[str]], None]
) -> None:
    good = [name for name in NAMES if is_good(one, name)]
    assert 5 < len(good) < len(NAMES)
    many([])
    many(good)
    for name in NAMES:
        assert is_good(lambda part: many(["first", part, "last"]), name) == (name in good), name


def is_good(validate: Callable[[str], object], name: str) -> bool:
    try:
        validate(name)
    except (ConfigError, UnicodeEncodeError):
        return False
    return True
