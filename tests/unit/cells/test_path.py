"""Paths: hops are taken, not removed, and the way back goes by the cells."""

import pytest

from postroad.cells import CellAddress, CellPath
from postroad.cells.path import HOPS_MAX
from postroad.core.errors import ConfigError, LocalProtocolError


def test_a_path_is_consumed_hop_by_hop() -> None:
    path = CellPath.parse("b1@S2:a1@S1")
    assert (str(path.current), str(path.upcoming)) == ("b1@S2", "a1@S1")
    assert path.describe() == "[>b1@S2:a1@S1]"
    path = path.advanced()
    assert (str(path.current), path.upcoming) == ("a1@S1", None)
    assert path.describe() == "[b1@S2:>a1@S1]"
    assert not path.was_walked
    path = path.advanced()
    assert path.was_walked
    assert path.describe() == "[b1@S2:a1@S1]"
    assert str(path) == "b1@S2:a1@S1"


def test_a_walked_path_has_no_hop_to_take_or_change() -> None:
    path = CellPath.of("a@S1").advanced()
    with pytest.raises(LocalProtocolError, match=r"\[a@S1\] has no hop left"):
        _ = path.current
    with pytest.raises(LocalProtocolError):
        path.advanced()
    with pytest.raises(LocalProtocolError):
        path.with_current(CellAddress("b"))
    with pytest.raises(LocalProtocolError):
        path.arrived(CellAddress("b"))


def test_ends() -> None:
    path = CellPath.of("a@S1", CellAddress("b", "S2"))
    assert (str(path.first), str(path.last)) == ("a@S1", "b@S2")
    assert CellPath().first is None
    assert CellPath().last is None
    assert not CellPath()
    assert CellPath().was_walked
    assert CellPath.parse("") == CellPath()


def test_hops_are_replaced_and_appended() -> None:
    path = CellPath.parse("a:b:c").advanced()
    x = CellAddress("x", "S1")
    assert path.with_current(x).describe() == "[a@local:>x@S1:c@local]"
    assert path.appended(x).describe() == "[a@local:>b@local:c@local:x@S1]"
    assert path.describe() == "[a@local:>b@local:c@local]"


def test_a_cell_takes_the_hop_that_led_to_it() -> None:
    path = CellPath.parse("a:Q:c").advanced()
    assert path.arrived(CellAddress("b", "S1")).describe() == "[a@local:b@S1:>c@local]"
    path = CellPath.parse("b@S1")
    assert path.arrived(CellAddress("b", "S1")) == path.advanced()
    assert path.describe() == "[>b@S1]"


def test_a_path_does_not_grow_beyond_its_limit() -> None:
    path = CellPath.of(*["a"] * (HOPS_MAX - 1)).appended(CellAddress("b"))
    with pytest.raises(ConfigError, match="65 hops"):
        path.appended(CellAddress("c"))


@pytest.mark.parametrize(
    ("source", "way_back"),
    [
        ("", ""),
        ("pub@S1", "pub@S1"),
        ("pub@S1:*@S1:*@C2", "pub@S1"),
        ("a@local:*@S1:*@C1", "*@S1:a@local"),
        ("pub@S1:*@S1:*@C2:b1@S2:*@S2:*@C2", "b1@S2:pub@S1"),
        ("a@local:*@S1:b@S2:*@S2", "b@S2:*@S1:a@local"),
        ("*@C1", ""),
    ],
)
def test_the_way_back(source: str, way_back: str) -> None:
    assert str(CellPath.parse(source).reversed()) == way_back


@pytest.mark.parametrize(
    ("source", "domains"),
    [("", ""), ("p@S1", ""), ("p@S1:*@S1:*@C1", "S1 C1"), ("p@S1:*@S1:*@C2:b@S2:*@S2", "S2")],
)
def test_the_domains_since_the_last_cell(source: str, domains: str) -> None:
    assert CellPath.parse(source).latest_domains() == frozenset(domains.split())


def test_a_path_has_a_limit() -> None:
    hop = CellAddress("a")
    path = CellPath((hop,) * HOPS_MAX)
    assert len(path) == HOPS_MAX
    with pytest.raises(ConfigError, match="65 hops"):
        path.appended(hop)
    with pytest.raises(ConfigError, match="too long"):
        CellPath.parse("a" * 40_000)


@pytest.mark.parametrize("position", [-1, 2])
def test_a_position_is_within_the_path(position: int) -> None:
    with pytest.raises(ConfigError, match="position"):
        CellPath((CellAddress("a"),), position)


@pytest.mark.parametrize("text", [":", "a:", ":a", "a::b", "a@b@c"])
def test_a_bad_path_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        CellPath.parse(text)
