"""Addresses and paths: how they are written, and which names may be in them."""

from collections.abc import Callable

import pytest

from postroad.cells import CellAddress, CellPath
from postroad.cells.addresses import (
    HOPS_MAX,
    validate_cell_name,
    validate_cell_names,
    validate_domain_name,
    validate_domain_names,
    validate_zone,
)
from postroad.core.errors import ConfigError, LocalProtocolError


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


def test_a_path_is_consumed_hop_by_hop_until_it_is_walked() -> None:
    path = CellPath.parse("b1@S2:a1@S1")
    assert str(path.current) == "b1@S2"
    assert path.describe() == "[>b1@S2:a1@S1]"
    path = path.advanced()
    assert str(path.current) == "a1@S1"
    assert path.describe() == "[b1@S2:>a1@S1]"
    assert not path.is_complete
    path = path.advanced()
    assert path.is_complete
    assert path.describe() == "[b1@S2:a1@S1]"
    assert str(path) == "b1@S2:a1@S1"

    path = CellPath.of("a@S1").advanced()
    with pytest.raises(LocalProtocolError, match=r"\[a@S1\] has no hop left"):
        _ = path.current
    with pytest.raises(LocalProtocolError):
        path.advanced()
    with pytest.raises(LocalProtocolError):
        path.with_current(CellAddress("b"))
    with pytest.raises(LocalProtocolError):
        path.delivered_to(CellAddress("b"))
    path = CellPath.of("a@S1", CellAddress("b", "S2"))
    assert (str(path.first), str(path.last)) == ("a@S1", "b@S2")
    assert CellPath().first is None
    assert CellPath().last is None
    assert not CellPath()
    assert CellPath().is_complete
    assert CellPath.parse("") == CellPath()


def test_hops_are_replaced_appended_and_taken() -> None:
    path = CellPath.parse("a:b:c").advanced()
    x = CellAddress("x", "S1")
    assert path.with_current(x).describe() == "[a@local:>x@S1:c@local]"
    assert path.appended(x).describe() == "[a@local:>b@local:c@local:x@S1]"
    assert path.describe() == "[a@local:>b@local:c@local]"

    path = CellPath.parse("a:Q:c").advanced()
    assert path.delivered_to(CellAddress("b", "S1")).describe() == "[a@local:b@S1:>c@local]"
    path = CellPath.parse("b@S1")
    assert path.delivered_to(CellAddress("b", "S1")) == path.advanced()
    assert path.describe() == "[>b@S1]"


def test_the_way_back_goes_by_the_cells() -> None:
    for source, way_back in [
        ("", ""),
        ("pub@S1", "pub@S1"),
        ("pub@S1:*@S1:*@C2", "pub@S1"),
        ("a@local:*@S1:*@C1", "*@S1:a@local"),
        ("pub@S1:*@S1:*@C2:b1@S2:*@S2:*@C2", "b1@S2:pub@S1"),
        ("a@local:*@S1:b@S2:*@S2", "b@S2:*@S1:a@local"),
        ("*@C1", ""),
    ]:
        assert str(CellPath.parse(source).reversed()) == way_back, source

    for source, domains in [
        ("", ""),
        ("p@S1", ""),
        ("p@S1:*@S1:*@C1", "S1 C1"),
        ("p@S1:*@S1:*@C2:b@S2:*@S2", "S2"),
    ]:
        assert CellPath.parse(source).trailing_domains() == frozenset(domains.split()), source


def test_a_bad_path_is_refused(subtests: pytest.Subtests) -> None:
    for text in [":", "a:", ":a", "a::b", "a@b@c"]:
        with subtests.test(text=text), pytest.raises(ConfigError):
            CellPath.parse(text)

    for position in [-1, 2]:
        with subtests.test(position=position), pytest.raises(ConfigError, match="position"):
            CellPath((CellAddress("a"),), position)

    hop = CellAddress("a")
    path = CellPath((hop,) * (HOPS_MAX - 1)).appended(hop)
    assert len(path) == HOPS_MAX
    with pytest.raises(ConfigError, match="65 hops"):
        path.appended(hop)
    with pytest.raises(ConfigError, match="is longer than"):
        CellPath.parse("a" * 40_000)
