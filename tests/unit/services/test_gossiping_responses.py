"""What follows from answers to gossip."""

import pytest

from postroad.services.gossiping import RIVALRIES_MAX, Heard
from postroad.services.info_form import write_info
from postroad.services.nodes import (
    EntriesRefused,
    NodeConflict,
    NodeConnected,
    NodeDisconnected,
    NodeUpdated,
)
from tests.unit.services.gossip_talker import CHANGED, Talker, make_info, make_talker


@pytest.fixture
def me() -> Talker:
    return make_talker()


def test_a_new_node(me: Talker) -> None:
    heard = me.tell({"a": [write_info(make_info(5, "posts")), 3, 40]})
    assert heard.changes == [NodeConnected("a", False), CHANGED]
    node = me.record("a")
    assert (node.seq, node.info.port, node.cpu, node.cpu_seq) == (5, 4000, 40, 3)
    assert me.registry.has_service("posts")


def test_only_news_count(me: Talker) -> None:
    me.know("a", 5, "posts")
    assert me.tell({"a": [write_info(make_info(4, "users"))]}).changes == []
    assert me.tell({"a": [write_info(make_info(5, "users", life="life-2"))]}).changes == []
    heard = me.tell({"a": [write_info(make_info(6, "users"))]})
    assert heard.changes == [NodeUpdated("a", False), CHANGED]
    assert me.registry.has_service("users")


def test_a_node_comes_back_with_a_larger_seq_alone(me: Talker) -> None:
    me.know_gone("a", 5)
    for seq in (5, 6):
        assert me.tell({"a": [write_info(make_info(seq)), 1, 1]}).changes == []
    heard = me.tell({"a": [write_info(make_info(7)), 1, 1]})
    assert heard.changes == [NodeConnected("a", True), CHANGED]


def test_a_node_can_tell_that_it_is_in_a_new_life_with_the_same_seq(me: Talker) -> None:
    node = me.know("a", 5)
    heard = me.tell({"a": [write_info(make_info(5, life="life-2"))]}, sender="a")
    assert heard.changes == [NodeDisconnected("a", True), CHANGED]
    assert heard.is_behind
    assert node.seq == 6
    assert me.tell({"a": [write_info(make_info(5, life="life-2"))]}, sender="a") == Heard()


def test_a_new_life_counts_its_measurements_anew(me: Talker) -> None:
    me.know("a", 5, cpu_seq=100)
    me.tell({"a": [write_info(make_info(6, life="life-2")), 2, 33]})
    node = me.record("a")
    assert (node.cpu, node.cpu_seq) == (33, 2)


def test_how_busy_nodes_are(me: Talker) -> None:
    node = me.know("a", 5, cpu_seq=3)
    me.tell({"a": [4, 77], "nobody": [4, 77]})
    assert (node.cpu, node.cpu_seq) == (77, 4)
    me.tell({"a": [4, 78]})
    assert node.cpu == 77


def test_nodes_that_are_gone(me: Talker) -> None:
    node = me.know("a", 5)
    assert me.tell(offline={"a": 5, "nobody": 3}) == Heard()
    heard = me.tell(offline={"a": 6})
    assert heard.changes == [NodeDisconnected("a", False), CHANGED]
    assert node.seq == 6
    me.tell(offline={"a": 9})
    assert node.seq == 9


def test_a_bad_info_harms_only_itself(me: Talker) -> None:
    heard = me.tell({"a": [{"services": 7}, 1, 1], "b": [write_info(make_info(2)), 1, 1]})
    refused, *others = heard.changes
    assert isinstance(refused, EntriesRefused)
    assert refused.node_id == "a"
    assert others == [NodeConnected("b", False), CHANGED]


def test_what_others_say_of_this_node(me: Talker) -> None:
    own = write_info(me.registry.local.info)
    assert me.tell({"me": [own, 9, 9]}) == Heard()
    assert me.tell({"me": [5, 9]}) == Heard()
    assert me.tell({"me": [{"services": 7}]}) == Heard()
    heard = me.tell({"me": [write_info(make_info(4, life="former")), 9, 9]})
    assert heard == Heard(is_outrun=True)
    assert me.registry.local.seq == 5
    assert me.tell(offline={"me": 8}) == Heard(is_outrun=True)
    assert me.registry.local.seq == 9
    assert me.tell(offline={"me": 3}) == Heard()


def test_another_process_with_this_name_is_told_from_a_former_life(me: Talker) -> None:
    changes = []
    for _ in range(RIVALRIES_MAX + 2):
        rival = make_info(me.registry.local.seq + 1, life="rival")
        changes.append(me.tell({"me": [write_info(rival)]}).changes)
    assert changes[RIVALRIES_MAX - 1] == [NodeConflict("me", "rival")]
    assert sum(map(len, changes)) == 1
