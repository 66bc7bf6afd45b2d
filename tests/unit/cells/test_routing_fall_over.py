"""Links that are missing: another core is taken, at once or at the second try."""

import pytest

from postroad.cells import OUTWARDS, CellAddress, rank
from tests.support.cells.networks import Network, make_envelope, make_network

CORES = ("C1", "C2", "C3")


@pytest.fixture
def network() -> Network:
    network = make_network(CORES, ("S1", "S2", "S3"))
    network.start("p@S1")
    network.start("x@S3", queues=["Q"], topics=["T"])
    network.settle()
    return network


@pytest.mark.parametrize("name", ["Q", "T", "x@S3"])
def test_a_satellite_without_its_first_core_takes_the_next(network: Network, name: str) -> None:
    first, second, _ = rank(str(CellAddress.parse(name)).encode(), CORES)
    assert network.send("p@S1", name).crossings == [("S1", first), (first, "S3")]
    network.unlink("S1", first)
    journey = network.send("p@S1", name)
    assert journey.crossings == [("S1", second), (second, "S3")]
    assert journey.receivers == ["x@S3"]


def test_a_core_without_the_tunnel_goes_through_one_that_has_it(network: Network) -> None:
    first = rank(b"x@S3", CORES)[0]
    network.unlink("S3", first)
    network.settle()
    journey = network.send("p@S1", "x@S3")
    (_, detour) = journey.crossings[1]
    assert journey.crossings == [("S1", first), (first, detour), (detour, "S3")]
    assert journey.receivers == ["x@S3"]


@pytest.mark.parametrize("name", ["Q", "T"])
def test_a_core_that_knows_no_way_can_be_avoided(network: Network, name: str) -> None:
    first = rank(str(CellAddress.parse(name)).encode(), CORES)[0]
    network.unlink("S3", first)
    sender = network.nodes["S1"]
    envelope = make_envelope(name, "p@S1")
    (forward,) = sender.route(envelope).forwards
    assert forward.choice == first
    failed = network.follow("S1", envelope)
    assert failed.failed_at == [first]
    (again,) = sender.route(envelope, avoid=frozenset({first})).forwards
    assert again.choice is not None
    journey = network.follow(again.choice, again.envelope)
    assert journey.receivers == ["x@S3"]


def test_consumers_and_domains_that_are_gone_are_withdrawn(network: Network) -> None:
    for core in CORES:
        network.unlink("S3", core)
        assert not network.nodes[core].table.queues("Q")
    assert not network.nodes["S3"].table.defaults()
    assert network.send("p@S1", "Q").told == ["p@S1"]

    network.stop("x@S3")
    network.settle()
    for node in network.nodes.values():
        assert not node.table.queues("Q")
        assert not node.table.topics("T")


def test_a_routing_manager_is_reached_through_its_domain(network: Network) -> None:
    for node in network.nodes.values():
        node.cells.add("RoutingMgr")
    journey = network.send("RoutingMgr@S1", "*@C2:RoutingMgr", origin=OUTWARDS)
    assert journey.receivers == ["RoutingMgr@C2"]
    source = journey.hits[0].delivery.envelope.source
    assert str(source.reversed()) == "RoutingMgr@S1"
