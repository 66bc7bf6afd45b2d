"""What holds among cores and satellites, whoever subscribes, consumes, stops and sends."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.cells import CellAddress, NoRouteError, Role, Route, RouteType
from tests.support.cells.networks import Journey, Network
from tests.support.tiers import by_tier

TOPICS = ("T", "U")
QUEUES = ("Q", "R")
ZONES = (None, "east", "west")


class Setup(NamedTuple):
    """A network of domains, and `cell@domain` with the topics and queues it takes."""

    network: Network
    topics: dict[str, tuple[str, ...]]
    queues: dict[str, tuple[str, ...]]

    def takers(self, name: str) -> list[str]:
        taken = [*self.topics.items(), *self.queues.items()]
        return sorted(cell for cell, names in taken if name in names)

    def stop(self, cell: str) -> None:
        self.network.stop(cell)
        self.topics.pop(cell)
        self.queues.pop(cell)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    network = Network()
    for number in range(draw(st.integers(1, 4))):
        network.add(f"C{number}", Role.CORE, draw(st.sampled_from(ZONES)))
    for number in range(draw(st.integers(0, 4))):
        network.add(f"S{number}", Role.SATELLITE, draw(st.sampled_from(ZONES)))
    network.link_all()
    setup = Setup(network, {}, {})
    for name in network.nodes:
        network.start(f"pub@{name}")
        for number in range(draw(st.integers(0, 2))):
            start(setup, f"c{number}@{name}", draw(subsets(TOPICS)), draw(subsets(QUEUES)))
    network.settle()
    return setup


def subsets(names: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.sampled_from([(), names[:1], names[1:], names])


def start(setup: Setup, cell: str, topics: tuple[str, ...], queues: tuple[str, ...]) -> None:
    setup.network.start(cell, topics=topics, queues=queues)
    setup.topics[cell], setup.queues[cell] = topics, queues


def check_all(setup: Setup) -> None:
    for sender in setup.network.nodes:
        for topic in TOPICS:
            check_topic(setup, f"pub@{sender}", topic)
        for queue in QUEUES:
            check_queue(setup, f"pub@{sender}", queue)


def check_topic(setup: Setup, sender: str, topic: str) -> None:
    journey = setup.network.send(sender, topic)
    assert journey.receivers == setup.takers(topic), "each subscriber exactly once"
    assert len(journey.crossings) <= len(setup.network.nodes), "no domain is entered twice"
    check_failures(journey, sender, is_lost=not setup.takers(topic))


def check_queue(setup: Setup, sender: str, queue: str) -> None:
    consumers = setup.takers(queue)
    journey = setup.network.send(sender, queue)
    assert len(journey.hits) == bool(consumers), "exactly one"
    assert set(journey.receivers) <= set(consumers)
    assert len(journey.crossings) <= 2
    check_failures(journey, sender, is_lost=not consumers)


def check_failures(journey: Journey, sender: str, *, is_lost: bool) -> None:
    assert [failure.code for failure in journey.failures] == [NoRouteError.code] * is_lost
    assert journey.told == [sender] * is_lost


@settings(max_examples=by_tier(test=50, nightly=1_000, quick=10))
@given(setups())
def test_topics_reach_all_and_queues_reach_one(setup: Setup) -> None:
    check_all(setup)


@settings(max_examples=by_tier(test=50, nightly=1_000, quick=10))
@given(setups(), st.data())
def test_routes_are_right_after_cells_stop_and_start(setup: Setup, data: st.DataObject) -> None:
    for cell in list(setup.topics):
        if data.draw(st.booleans()):
            setup.stop(cell)
    for name in data.draw(st.sets(st.sampled_from(sorted(setup.network.nodes)))):
        start(setup, f"new@{name}", data.draw(subsets(TOPICS)), data.draw(subsets(QUEUES)))
    setup.network.settle()
    check_all(setup)


@settings(max_examples=by_tier(test=50, nightly=1_000, quick=10))
@given(setups())
def test_every_cell_can_be_reached_and_can_answer(setup: Setup) -> None:
    addresses = [f"pub@{name}" for name in setup.network.nodes]
    for sender in addresses:
        for receiver in addresses:
            journey = setup.network.send(sender, receiver)
            assert journey.receivers == [receiver]
            source = journey.hits[0].delivery.envelope.source
            assert str(source.reversed()) == sender
        assert setup.network.send(sender, ":".join(addresses)).receivers == sorted(addresses)


@settings(max_examples=by_tier(test=50, nightly=1_000, quick=10))
@given(setups())
def test_tables_have_exactly_the_expected_routes(setup: Setup) -> None:
    nodes = setup.network.nodes.values()
    cores = [node for node in nodes if node.domain.role is Role.CORE]
    for node in nodes:
        is_core = node.domain.role is Role.CORE
        others = [other.domain.name for other in (nodes if is_core else cores) if other is not node]
        own = node.domain.name
        expected = routes_to_own(setup, own)
        expected |= routes_to(setup.queues, others, Route.to_queue)
        if is_core:
            expected |= routes_to(setup.topics, others, Route.to_topic)
        else:
            expected |= {str(Route.default(core.domain.address)) for core in cores}
        managed = [route for route in node.table if route.type is not RouteType.DOMAIN]
        assert {str(route).partition(" zone ")[0] for route in managed} == expected


def routes_to_own(setup: Setup, domain: str) -> set[str]:
    routes = set()
    for names_of, make in ((setup.queues, Route.to_queue), (setup.topics, Route.to_topic)):
        for cell, names in names_of.items():
            address = CellAddress.parse(cell)
            if address.domain == domain:
                routes |= {str(make(name, address)) for name in names}
    return routes


def routes_to(
    names_of: dict[str, tuple[str, ...]],
    domains: Iterable[str],
    make: Callable[[str, CellAddress], Route],
) -> set[str]:
    offered = {(cell.partition("@")[2], name) for cell, names in names_of.items() for name in names}
    return {
        str(make(name, CellAddress.of_domain(domain)))
        for domain, name in offered
        if domain in set(domains)
    }
