"""What becomes of messages among cores and satellites.

The numbered cases are traces of the system this follows. Its spurious failures are left out, and
which of the cores a satellite chooses is decided by another hash.
"""

from typing import NamedTuple

import pytest

from postroad.cells import CellAddress, CellNotFoundError, NoRouteError, Route
from postroad.cells.delivery.envelope import make_reply
from postroad.cells.delivery.failure import decode_failure, make_error_reply
from postroad.cells.routing.decision import LOCAL_ORIGIN, REMOTE_ONLY_ORIGIN, MessageOrigin
from postroad.cells.routing.rendezvous import rendezvous_rank
from tests.support.cells.networks import Network, make_envelope, make_id, make_network

CORES = ("C1", "C2")


ALL_OF_T = ["a1@S1", "a2@S1", "b1@S2", "x1@C1", "y1@C2"]


def core_for(name: str) -> str:
    """The core that satellites send messages to a name through."""
    return rendezvous_rank(name.encode(), CORES)[0]


def other_core(core: str) -> str:
    return next(name for name in CORES if name != core)


@pytest.fixture
def network() -> Network:
    network = make_network(CORES, ("S1", "S2"))
    for cell in ("pub@S1", "pub@C1", "T2@S1"):
        network.start(cell)
    network.start("a1@S1", topics=["T", "K"])
    network.start("a2@S1", topics=["T"], queues=["K"])
    network.start("b1@S2", topics=["T", "T2", "U"])
    network.start("x1@C1", topics=["T"])
    network.start("y1@C2", topics=["T"])
    network.start("e@S2", queues=["Q"])
    network.settle()
    for core in CORES:
        network.nodes[core].add(Route.to_queue("R", CellAddress.of_domain("S2")))
    return network


class Case(NamedTuple):
    """A message, who gets it, and where it fails."""

    sender: str
    path: str
    receivers: list[str]
    failed_at: tuple[str, ...] = ()
    origin: MessageOrigin = LOCAL_ORIGIN


def core_of(name: str) -> tuple[str]:
    return (core_for(f"{name}@local"),)


CASES = {
    "1 topic from a satellite": Case("pub@S1", "T", ALL_OF_T),
    "2 topic from a core": Case("pub@C1", "T", ALL_OF_T),
    "3 topic with one subscriber elsewhere": Case("pub@S1", "U", ["b1@S2"]),
    "4 topic with no subscriber": Case("pub@S1", "V", [], core_of("V")),
    "5 queue": Case("pub@S1", "Q", ["e@S2"]),
    "6 stale queue route": Case("pub@S1", "R", [], ("S2",)),
    "7a has no cell": Case("pub@S1", "z@S2", [], ("S2",)),
    "7b no such domain": Case("pub@S1", "z@Nowhere", [], (core_for("z@Nowhere"),)),
    "7c no such name": Case("pub@S1", "zz", [], core_of("zz")),
    "8 path of two cells": Case("pub@S1", "b1@S2:a1@S1", ["a1@S1", "b1@S2"]),
    "9a a cell comes before a topic": Case("pub@S1", "T2", ["T2@S1"]),
    "9b not if it must go outwards": Case("pub@S1", "T2", ["b1@S2"], origin=REMOTE_ONLY_ORIGIN),
    "10 topic and queue of one name": Case("pub@S1", "K", ["a1@S1", "a2@S1"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_trace(network: Network, case: Case) -> None:
    journey = network.send(case.sender, case.path, origin=case.origin)
    assert journey.receivers == sorted(case.receivers)
    assert journey.failed_at == list(case.failed_at)
    assert journey.told == [case.sender] * len(case.failed_at)


def test_1_and_2_a_topic_crosses_one_core_and_then_fans_out(network: Network) -> None:
    core = core_for("T@local")
    first, *others = network.send("pub@S1", "T").crossings
    assert first == ("S1", core)
    assert sorted(others) == sorted([(core, "S2"), (core, other_core(core))])
    assert sorted(network.send("pub@C1", "T").crossings) == [
        ("C1", "C2"),
        ("C1", "S1"),
        ("C1", "S2"),
    ]


def test_5_a_queue_message_names_its_consumer_and_its_reply_finds_its_own_way(
    network: Network,
) -> None:
    (hit,) = network.send("pub@S1", "Q").hits
    assert hit.delivery.route_name == "Q"
    assert hit.delivery.envelope.destination.describe() == "[e@S2]"
    assert hit.delivery.envelope.destination.is_complete
    reply = make_reply(hit.delivery.envelope, id=make_id(), payload=b"done")
    journey = network.follow("S2", reply.with_source_hop(CellAddress("e", "S2")))
    core = core_for("pub@S1")
    assert journey.crossings == [("S2", core), (core, "S1")]
    assert journey.receivers == ["pub@S1"]
    assert journey.hits[0].delivery.envelope.in_reply_to == hit.delivery.envelope.id


def test_8_the_source_path_has_every_sender_and_10_nothing_leaves_a_satellite_with_the_queue(
    network: Network,
) -> None:
    last = network.send("pub@S1", "b1@S2:a1@S1").hits[-1].delivery.envelope
    there, back = core_for("b1@S2"), core_for("a1@S1")
    assert str(last.source) == f"pub@S1:*@S1:*@{there}:b1@S2:*@S2:*@{back}"
    assert str(last.source.reversed()) == "b1@S2:pub@S1"

    assert network.send("pub@S1", "K").crossings == []
    with pytest.raises(CellNotFoundError, match="has no cell ghost@S1"):
        network.nodes["S1"].add(Route.to_queue("Q", CellAddress("ghost", "S1")))


def test_sender_receives_what_failed_and_where(network: Network) -> None:
    node = network.nodes["S2"]
    envelope = make_envelope("z@S2", "pub@S1:*@S1:*@C1", session="s", payload=b"x" * 100_000)
    failure = node.route(envelope, MessageOrigin(peer="C1")).failure
    assert failure is not None
    answer = make_error_reply(envelope, failure, id=make_id())
    error = decode_failure(answer.payload).to_error()
    assert isinstance(error, NoRouteError)
    assert (error.peer, error.subject) == ("S2", "z@S2")
    assert "no cell 'z' in domain S2" in str(error)
    assert len(answer.payload) < 200
    assert (str(answer.source), str(answer.destination)) == ("*@S2", "pub@S1")
    assert (answer.session, answer.in_reply_to, answer.is_reply) == ("s", envelope.id, True)


THREE_CORES = ("C1", "C2", "C3")


@pytest.fixture
def mesh() -> Network:
    mesh = make_network(THREE_CORES, ("S1", "S2", "S3"))
    mesh.start("p@S1")
    mesh.start("x@S3", queues=["Q"], topics=["T"])
    mesh.settle()
    return mesh


@pytest.mark.parametrize("name", ["Q", "T", "x@S3"])
def test_a_satellite_without_its_first_core_takes_the_next(mesh: Network, name: str) -> None:
    first, second, _ = rendezvous_rank(str(CellAddress.parse(name)).encode(), THREE_CORES)
    assert mesh.send("p@S1", name).crossings == [("S1", first), (first, "S3")]
    mesh.unlink("S1", first)
    journey = mesh.send("p@S1", name)
    assert journey.crossings == [("S1", second), (second, "S3")]
    assert journey.receivers == ["x@S3"]


def test_a_core_without_the_tunnel_goes_through_one_that_has_it(mesh: Network) -> None:
    first = rendezvous_rank(b"x@S3", THREE_CORES)[0]
    mesh.unlink("S3", first)
    mesh.settle()
    journey = mesh.send("p@S1", "x@S3")
    (_, detour) = journey.crossings[1]
    assert journey.crossings == [("S1", first), (first, detour), (detour, "S3")]
    assert journey.receivers == ["x@S3"]


@pytest.mark.parametrize("name", ["Q", "T"])
def test_a_core_that_knows_no_way_can_be_avoided(mesh: Network, name: str) -> None:
    first = rendezvous_rank(str(CellAddress.parse(name)).encode(), THREE_CORES)[0]
    mesh.unlink("S3", first)
    sender = mesh.nodes["S1"]
    envelope = make_envelope(name, "p@S1")
    (forward,) = sender.route(envelope).forwards
    assert forward.selected_target == first
    failed = mesh.follow("S1", envelope)
    assert failed.failed_at == [first]
    (again,) = sender.route(envelope, avoid=frozenset({first})).forwards
    assert again.selected_target is not None
    journey = mesh.follow(again.selected_target, again.envelope)
    assert journey.receivers == ["x@S3"]


def test_consumers_and_domains_that_are_gone_are_withdrawn(mesh: Network) -> None:
    for core in THREE_CORES:
        mesh.unlink("S3", core)
        assert not mesh.nodes[core].table.queues("Q")
    assert not mesh.nodes["S3"].table.defaults()
    assert mesh.send("p@S1", "Q").told == ["p@S1"]

    mesh.stop("x@S3")
    mesh.settle()
    for node in mesh.nodes.values():
        assert not node.table.queues("Q")
        assert not node.table.topics("T")


def test_a_routing_manager_is_reached_through_its_domain(mesh: Network) -> None:
    for node in mesh.nodes.values():
        node.cells.add("RoutingMgr")
    journey = mesh.send("RoutingMgr@S1", "*@C2:RoutingMgr", origin=REMOTE_ONLY_ORIGIN)
    assert journey.receivers == ["RoutingMgr@C2"]
    source = journey.hits[0].delivery.envelope.source
    assert str(source.reversed()) == "RoutingMgr@S1"
