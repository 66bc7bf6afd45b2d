"""What is told by gossip, and what follows from requests and responses."""

from random import Random
from typing import Any

import pytest
from msgspec import UNSET

from postroad.services.balancing import StrategyMaker
from postroad.services.describing import describe_service
from postroad.services.gossip import GossipRequest, GossipResponse
from postroad.services.gossiping import DOUBT_S, RESPONSE_BYTES_MAX, RIVALRIES_MAX, Gossiping, Heard
from postroad.services.info_form import ReadInfo, write_info
from postroad.services.kinds import VERSION
from postroad.services.nodes import (
    EntriesRefused,
    NodeConflict,
    NodeConnected,
    NodeDisconnected,
    NodeRecord,
    NodeUpdated,
    ServicesChanged,
)
from postroad.services.registry import Registry
from postroad.services.schema import NodeInfo

CHANGED = ServicesChanged(is_local=False)
NOW = 100.0


def make_info(seq: int, *names: str, life: str = "life-1", port: int | None = 4000) -> NodeInfo:
    services = tuple(describe_service(name, actions={"run": {}}) for name in names)
    return NodeInfo(instance_id=life, seq=seq, services=services, port=port)


class Talker:
    """A node that hears gossip of `other`."""

    def __init__(self) -> None:
        self.registry = Registry(
            "me", NodeInfo(instance_id="my-life"), strategies=StrategyMaker(Random(1)), now=0
        )
        self.linked: set[str] = set()
        self.gossiping = Gossiping(self.registry, self.linked.__contains__)

    def know(self, node_id: str, seq: int, *names: str, cpu_seq: int = 0) -> NodeRecord:
        self.registry.receive_info(node_id, ReadInfo(make_info(seq, *names), ()), 0)
        self.registry.receive_cpu(node_id, 50, cpu_seq)
        return self.record(node_id)

    def know_gone(self, node_id: str, seq: int) -> NodeRecord:
        """`seq` is that of the node while it was there."""
        self.know(node_id, seq)
        self.registry.lose_node(node_id, 0)
        return self.record(node_id)

    def record(self, node_id: str) -> NodeRecord:
        node = self.registry.node(node_id)
        assert node is not None
        return node

    def ask(
        self,
        online: dict[str, Any] | None = None,
        offline: dict[str, Any] | None = None,
        *,
        sender: str = "other",
        now: float = NOW,
    ) -> Heard:
        packet = GossipRequest(
            online=online or UNSET, offline=offline or UNSET, ver=VERSION, sender=sender
        )
        return self.gossiping.receive_request(packet, now)

    def tell(
        self,
        online: dict[str, Any] | None = None,
        offline: dict[str, Any] | None = None,
        *,
        sender: str = "other",
    ) -> Heard:
        packet = GossipResponse(
            online=online or UNSET, offline=offline or UNSET, ver=VERSION, sender=sender
        )
        return self.gossiping.receive_response(packet, NOW)


def make_talker() -> Talker:
    """One that knows the other."""
    talker = Talker()
    talker.know("other", 1)
    return talker


@pytest.fixture
def me() -> Talker:
    return make_talker()


def answer_of(heard: Heard) -> tuple[Any, Any]:
    """What is told online, and offline, in the one response there is."""
    (response,) = heard.responses
    assert (response.sender, response.ver) == ("me", VERSION)
    return response.online, response.offline


def test_request_has_what_is_known_and_denied(me: Talker) -> None:
    me.registry.set_cpu(7)
    me.know("a", 5, cpu_seq=3)
    me.know_gone("b", 6)
    request = me.gossiping.make_request()
    assert request.online == {"me": [1, 1, 7], "other": [1, 0, 0], "a": [5, 3, 50]}
    assert request.offline == {"b": 7}
    request = Talker().gossiping.make_request()
    assert request.online == {"me": [1, 0, 0]}
    assert request.offline is UNSET
    request = me.gossiping.make_request({"a": 6})
    assert request.offline == {"a": 6, "b": 7}
    assert isinstance(request.online, dict)
    assert "a" not in request.online


def test_local_changes_are_told_with_a_larger_seq() -> None:
    me = Talker()
    me.registry.add_service(describe_service("mine"))
    assert me.gossiping.make_request().online == {"me": [2, 0, 0]}
    introduction = me.gossiping.make_introduction()
    assert introduction.online == {"me": [write_info(me.registry.local.info), 0, 0]}
    assert introduction.offline is UNSET
    stopping = me.gossiping.make_introduction(is_stopping=True)
    assert isinstance(stopping.online, dict)
    assert stopping.online["me"][0]["services"] == []
    assert stopping.online["me"][0]["seq"] == 3
    me = Talker()
    goodbye = me.gossiping.make_goodbye()
    assert goodbye.offline == {"me": 2}
    assert goodbye.online is UNSET


def test_neighbour_without_news_gets_no_answer(me: Talker) -> None:
    heard = me.ask({"me": [1, 0, 0], "other": [1, 0, 0]})
    assert heard == Heard()
    me.ask({"me": [1, 9, 99], "other": [1, 0, 0]})
    assert me.registry.local.cpu is None
    node = me.know_gone("a", 5)
    heard = me.ask({"me": [1, 0, 0], "other": [1, 0, 0]}, {"a": 9})
    assert heard == Heard()
    assert (node.seq, node.is_available) == (9, False)


def test_neighbour_with_an_older_state_is_told_the_newer(me: Talker) -> None:
    node = me.know("a", 5, "posts", cpu_seq=3)
    me.know_gone("b", 6)
    online, offline = answer_of(me.ask({"me": [1, 0, 0], "other": [1, 0, 0]}))
    assert online == {"a": [write_info(node.info), 3, 50]}
    assert online["a"][0]["port"] == 4000
    assert offline == {"b": 7}


def test_who_has_an_older_seq_is_told_the_newer(me: Talker) -> None:
    node = me.know("a", 5)
    me.know_gone("b", 6)
    rows = {"me": [1, 0, 0], "other": [1, 0, 0], "b": [6, 0, 0]}
    assert answer_of(me.ask({**rows, "a": [4, 9, 0]})) == (
        {"a": [write_info(node.info), 0, 0]},
        {"b": 7},
    )
    assert answer_of(me.ask(rows, {"a": 4})) == ({"a": [write_info(node.info), 0, 0]}, {"b": 7})
    assert me.record("a").is_available


@pytest.mark.parametrize("seq", [5, 8])
def test_who_says_that_a_node_is_offline_is_believed(me: Talker, seq: int) -> None:
    node = me.know("a", 5)
    heard = me.ask({"me": [1, 0, 0], "other": [1, 0, 0]}, {"a": seq})
    assert heard.changes == [NodeDisconnected("a", False), CHANGED]
    assert heard.responses == []
    assert (node.seq, node.is_available) == (seq, False)


def test_node_with_a_connection_is_told_instead(me: Talker) -> None:
    node = me.know("a", 5)
    me.linked.add("a")
    heard = me.ask({"me": [1, 0, 0], "other": [1, 0, 0]}, {"a": 6})
    assert heard == Heard(denied={"a": 6})
    assert (node.seq, node.is_available) == (5, True)
    assert me.tell(offline={"a": 6}) == Heard(denied={"a": 6})


def test_who_says_so_of_itself_is_believed_whatever_the_connection(me: Talker) -> None:
    me.linked.add("other")
    heard = me.tell(offline={"other": 2})
    assert heard.changes == [NodeDisconnected("other", False), CHANGED]


def test_this_node_outruns_who_says_that_it_is_offline(me: Talker) -> None:
    heard = me.ask({"other": [1, 0, 0]}, {"me": 8})
    assert me.registry.local.seq == 9
    assert heard.is_outrun
    online, offline = answer_of(heard)
    assert online == {"me": [write_info(me.registry.local.info), 0, 0]}
    assert online["me"][0]["seq"] == 9
    assert offline is UNSET


def test_who_remembers_a_former_life_is_outrun(me: Talker) -> None:
    heard = me.ask({"me": [8, 0, 0], "other": [1, 0, 0]})
    assert (me.registry.local.seq, heard.is_outrun) == (9, True)
    assert answer_of(heard)[0]["me"][0]["seq"] == 9


def test_larger_number_of_a_measurement_wins(me: Talker) -> None:
    newer, older = me.know("a", 5, cpu_seq=3), me.know("b", 5, cpu_seq=3)
    gone = me.know_gone("c", 4)
    rows = {"me": [1, 0, 0], "other": [1, 0, 0], "a": [5, 4, 90], "b": [5, 2, 90], "c": [5, 4, 9]}
    online, offline = answer_of(me.ask(rows))
    assert (newer.cpu, newer.cpu_seq) == (90, 4)
    assert (older.cpu, older.cpu_seq) == (50, 3)
    assert online == {"b": [3, 50]}
    assert offline is UNSET
    assert (gone.cpu_seq, gone.is_available) == (0, False)


def test_who_knows_more_is_asked(me: Talker) -> None:
    me.know("a", 5)
    rows = {"me": [1, 0, 0], "other": [1, 0, 0], "a": [5, 0, 0]}
    assert not me.ask(rows).is_behind
    assert me.ask({**rows, "a": [6, 0, 0]}).is_behind
    assert me.ask({**rows, "b": [1, 0, 0]}).is_behind
    # Nodes that are unknown and gone are of no interest.
    assert not me.ask(rows, {"b": 1}).is_behind


def test_who_is_unknown_or_offline_is_asked(me: Talker) -> None:
    assert me.ask({"me": [1, 0, 0]}, sender="new").is_behind
    me.registry.lose_node("other", 0)
    assert me.ask({"me": [1, 0, 0], "other": [1, 0, 0]}).is_behind


def test_node_that_counts_anew_has_a_new_life(me: Talker) -> None:
    node = me.know("other", 7)
    rows = {"me": [1, 0, 0], "other": [3, 0, 0]}
    assert me.ask(rows, now=NOW).changes == []
    assert me.ask(rows, now=NOW + DOUBT_S / 2).changes == []
    heard = me.ask(rows, now=NOW + DOUBT_S)
    assert heard.changes == [NodeDisconnected("other", True), CHANGED]
    assert heard.is_behind
    assert answer_of(heard)[1] == {"other": 8}
    assert node.seq == 8


def test_what_was_on_its_way_raises_no_doubt(me: Talker) -> None:
    me.know("other", 7)
    me.ask({"me": [1, 0, 0], "other": [6, 0, 0]}, now=NOW)
    me.ask({"me": [1, 0, 0], "other": [7, 0, 0]}, now=NOW + 0.1)
    heard = me.ask({"me": [1, 0, 0], "other": [6, 0, 0]}, now=NOW + 5)
    assert heard.changes == []
    assert me.record("other").is_available


def test_only_the_node_itself_can_count_anew(me: Talker) -> None:
    me.know("a", 7)
    rows = {"me": [1, 0, 0], "other": [1, 0, 0], "a": [3, 0, 0]}
    for second in range(5):
        assert me.ask(rows, now=NOW + second).changes == []


def test_long_answer_is_several(me: Talker) -> None:
    for number in range(5):
        info = NodeInfo(
            instance_id="life-1", metadata={"text": "x" * (RESPONSE_BYTES_MAX // 2 - 2_000)}
        )
        me.registry.receive_info(f"n{number}", ReadInfo(info, ()), 0)
    me.know_gone("gone", 3)
    heard = me.ask({"me": [1, 0, 0], "other": [1, 0, 0]})
    told = [set(it.online) for it in heard.responses if isinstance(it.online, dict)]
    assert [len(nodes) for nodes in told] == [2, 2, 1]
    assert set().union(*told) == {f"n{number}" for number in range(5)}
    assert [it.offline for it in heard.responses] == [{"gone": 4}, UNSET, UNSET]


def test_what_cannot_be_measured_travels_alone(me: Talker) -> None:
    info = NodeInfo(instance_id="life-1", metadata={"odd": object()})
    me.registry.receive_info("a", ReadInfo(info, ()), 0)
    me.know("b", 1)
    heard = me.ask({"me": [1, 0, 0], "other": [1, 0, 0]})
    assert [it.online and [*it.online] for it in heard.responses] == [["a"], ["b"]]


def test_new_node(me: Talker) -> None:
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


def test_node_comes_back_with_a_larger_seq_alone(me: Talker) -> None:
    me.know_gone("a", 5)
    for seq in (5, 6):
        assert me.tell({"a": [write_info(make_info(seq)), 1, 1]}).changes == []
    heard = me.tell({"a": [write_info(make_info(7)), 1, 1]})
    assert heard.changes == [NodeConnected("a", True), CHANGED]


def test_node_can_tell_that_it_is_in_a_new_life_with_the_same_seq(me: Talker) -> None:
    node = me.know("a", 5)
    heard = me.tell({"a": [write_info(make_info(5, life="life-2"))]}, sender="a")
    assert heard.changes == [NodeDisconnected("a", True), CHANGED]
    assert heard.is_behind
    assert node.seq == 6
    assert me.tell({"a": [write_info(make_info(5, life="life-2"))]}, sender="a") == Heard()


def test_new_life_counts_its_measurements_anew(me: Talker) -> None:
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


def test_bad_info_harms_only_itself(me: Talker) -> None:
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
