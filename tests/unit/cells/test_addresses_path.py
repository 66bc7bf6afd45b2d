"""Paths: hops are taken, not removed, and the way back goes by the cells."""

import pytest

from postroad.cells import CellAddress, CellPath
from postroad.cells.addresses import HOPS_MAX
from postroad.core.errors import ConfigError, LocalProtocolError


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
