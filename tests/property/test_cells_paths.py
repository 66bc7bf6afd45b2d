"""What holds for all addresses and paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.cells import CellAddress, CellPath
from postroad.cells.path import HOPS_MAX
from postroad.core.errors import ConfigError, LocalProtocolError

any_names = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S"], exclude_characters="@:*/\\"),
    min_size=1,
    max_size=8,
)
any_domains = any_names.filter(lambda name: name != "local")
any_addresses = st.one_of(
    st.builds(CellAddress, any_names, any_domains),
    st.builds(CellAddress, any_names),
    st.builds(CellAddress.of_domain, any_domains),
)

cells = st.sampled_from([CellAddress.parse(it) for it in ("a@S1", "a@S2", "b@S1", "local@C1")])
logical = st.sampled_from([CellAddress.parse(it) for it in ("a", "Q", "T")])
routers = st.sampled_from([CellAddress.of_domain(it) for it in ("S1", "S2", "C1")])
hops = st.one_of(cells, logical, routers)


@st.composite
def paths(draw: st.DrawFn, hops: st.SearchStrategy[CellAddress] = hops) -> CellPath:
    chosen = tuple(draw(st.lists(hops, max_size=8)))
    return CellPath(chosen, draw(st.integers(0, len(chosen))))


@given(any_addresses)
def test_an_address_is_read_as_it_is_written(address: CellAddress) -> None:
    assert CellAddress.parse(str(address)) == address


@given(st.text(max_size=12))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = CellAddress.parse(text)
    except ConfigError:
        return
    assert CellAddress.parse(str(address)) == address
    assert str(address) in (text, f"{text}@local", f"{text}local")


@given(paths())
def test_a_path_is_read_as_it_is_written(path: CellPath) -> None:
    assert CellPath.parse(str(path)) == CellPath(path.hops)


@given(paths())
def test_a_path_is_walked_once_and_keeps_all_hops(path: CellPath) -> None:
    walked = path
    taken = []
    while not walked.was_walked:
        taken.append(walked.current)
        upcoming = walked.upcoming
        walked = walked.advanced()
        assert upcoming == (None if walked.was_walked else walked.current)
    assert tuple(taken) == path.hops[path.position :]
    assert walked.hops == path.hops
    with pytest.raises(LocalProtocolError):
        walked.advanced()


@given(paths(), hops)
def test_another_hop_in_its_place_changes_nothing_else(path: CellPath, hop: CellAddress) -> None:
    if path.was_walked:
        path = CellPath((*path.hops, hop), path.position)
    changed = path.with_current(hop)
    assert changed.current == hop
    assert changed.advanced().hops[path.position + 1 :] == path.hops[path.position + 1 :]
    assert changed.with_current(path.current) == path


@given(paths(cells))
def test_reversing_cells_twice_changes_nothing(path: CellPath) -> None:
    assert path.reversed().hops == path.hops[::-1]
    assert path.reversed().reversed() == CellPath(path.hops)


@given(paths(st.one_of(cells, routers)))
def test_the_way_back_has_the_cells_alone(path: CellPath) -> None:
    back = path.reversed()
    assert back.hops == tuple(hop for hop in path.hops[::-1] if not hop.is_domain)
    assert back.position == 0


@given(paths())
def test_the_way_back_has_every_cell_and_what_resolves_a_logical_name(path: CellPath) -> None:
    back = path.reversed()
    assert [hop for hop in back.hops if not hop.is_domain] == [
        hop for hop in path.hops[::-1] if not hop.is_domain
    ]
    for place, hop in enumerate(back.hops):
        if hop.is_domain:
            assert back.hops[place + 1].is_local
    assert len(back) <= len(path) <= HOPS_MAX
    assert CellPath(back.hops[::-1]).reversed() == back
