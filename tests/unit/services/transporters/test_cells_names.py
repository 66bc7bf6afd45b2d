"""Names of nodes, topics and queues among cells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.cells.addresses import validate_cell_name, validate_domain_name
from postroad.core.errors import ConfigError
from postroad.services.transporters.cells_names import CellNames, queue_of
from tests.support.cases import each

NAMES = CellNames("MOL-dev")

# Ids that fit, however much each character takes.
_ids = st.text(min_size=1, max_size=18)


def test_names_are_readable_and_bounded() -> None:
    assert NAMES.broadcast == "MOL-dev/all"
    assert NAMES.node("web-1.example_a~b") == "MOL-dev/node/web-1.example_a~b"
    assert queue_of("MOL-dev.REQB.math.add") == "queue/MOL-dev.REQB.math.add"
    assert CellNames("MOL").domain("local") == "%6Cocal"
    assert CellNames("MOL-dev").domain("local") == "MOL-dev+local"
    with pytest.raises(ConfigError, match="255"):
        NAMES.node("x" * 250)
    with pytest.raises(ConfigError, match="255"):
        NAMES.domain("@" * 100)
    names = {
        NAMES.listener(node_id, number) for node_id in ("a", "a/1", "a/") for number in (1, 11)
    }
    assert len(names) == 6
    assert all(NAMES.node_of(name) is None for name in names)
    topics = [f"MOL-dev.REQB.{'x' * 300}.{number}" for number in range(3)]
    queues = {queue_of(topic) for topic in topics}
    assert len(queues) == len(topics)
    assert all(validate_cell_name(queue) for queue in queues)
    # What a short topic is called cannot be what a long one was cut to.
    cut = queues.pop()
    assert queue_of(cut.removeprefix("queue/")) != cut


@given(_ids)
def test_id_is_read_back_from_the_name_of_its_cell(node_id: str) -> None:
    cell = NAMES.node(node_id)
    assert validate_cell_name(cell) == cell
    assert NAMES.node_of(cell) == node_id


@given(_ids, _ids)
def test_no_two_nodes_share_a_name(one: str, other: str) -> None:
    assert (NAMES.node(one) == NAMES.node(other)) == (one == other)
    assert (NAMES.domain(one) == NAMES.domain(other)) == (one == other)


@given(st.text(max_size=8), _ids, st.text(max_size=8), _ids)
def test_namespaces_are_apart(space: str, node_id: str, other_space: str, other_id: str) -> None:
    names, others = CellNames(f"MOL-{space}"), CellNames(f"MOL-{other_space}")
    is_same = (space, node_id) == (other_space, other_id)
    assert (names.node(node_id) == others.node(other_id)) == is_same
    assert (names.domain(node_id) == others.domain(other_id)) == is_same
    assert (names.broadcast == others.broadcast) == (space == other_space)
    assert (others.node_of(names.node(node_id)) is None) == (space != other_space)


@given(st.text(min_size=1, max_size=40))
def test_domain_may_have_the_name_of_a_node(node_id: str) -> None:
    for prefix in ("MOL", "MOL-dev"):
        try:
            name = CellNames(prefix).domain(node_id)
        except ConfigError as error:
            assert "255" in str(error)
        else:
            assert validate_domain_name(name) == name


@each(
    "System",
    "MOL-dev/all",
    "MOL-dev/node/",
    "MOL/node/a",
    "MOL-dev/node/a/b",
    "MOL-dev/node/%61",
    "MOL-dev/node/%4",
    "MOL-dev/node/%ff",
    "MOL-dev/listener/a/1",
    "x/MOL-dev/node/a",
)
def test_other_cells_are_no_nodes(cell: str) -> None:
    assert NAMES.node_of(cell) is None
