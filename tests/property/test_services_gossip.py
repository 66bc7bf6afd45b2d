"""Nodes that gossip agree in the end, whatever happened to them and to their connections."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from postroad.services.balancing import StrategyMaker
from postroad.services.describing import describe_service
from postroad.services.gossip import GossipRequest
from postroad.services.gossiping import Gossiping, Heard
from postroad.services.nodes import NodeConflict
from postroad.services.registry import Registry
from postroad.services.schema import NodeInfo

NAMES = ("a", "b", "c", "d")
ROUNDS = 12


class Life:
    """One life of a node, from its start to its end."""

    def __init__(self, name: str, number: int, town: Town) -> None:
        self.name = name
        self.services = 0
        self.registry = Registry(
            name,
            NodeInfo(instance_id=f"{name}-{number}", seq=number),
            strategies=StrategyMaker(Random(1)),
            now=town.now,
        )
        self.gossiping = Gossiping(self.registry, lambda other: town.is_linked(name, other))

    def change(self) -> None:
        self.services += 1
        self.registry.add_service(describe_service(f"s{self.services}"))

    def sees(self, other: Life) -> bool:
        """Whether it knows another as it is."""
        node = self.registry.node(other.name)
        info = other.registry.local_info()
        return (
            node is not None
            and node.is_available
            and (node.info.instance_id, node.seq) == (info.instance_id, info.seq)
            and len(node.info.services) == other.services
        )


class Town:
    """All nodes, and what goes on between them."""

    def __init__(self, *, lives_count_on: bool) -> None:
        self.now = 0.0
        self.links: set[tuple[str, str]] = set()
        self._lives_count_on = lives_count_on
        self._births = 0
        self.alive: dict[str, Life] = {}
        self.conflicts = 0
        for name in NAMES:
            self.start(name)

    def is_linked(self, name: str, other: str) -> bool:
        return (name, other) in self.links

    def start(self, name: str) -> None:
        """Start a node, in place of its former life if that is still there."""
        self.stop(name)
        self._births += 100
        self.alive[name] = Life(name, self._births if self._lives_count_on else 1, self)

    def stop(self, name: str) -> None:
        """End a node; those with a connection to it see that."""
        self.alive.pop(name, None)
        for who, other in [*self.links]:
            if other == name:
                self.cut(who, other)
            elif who == name:
                self.links.discard((who, other))

    def cut(self, name: str, other: str) -> None:
        """End a connection, which is as good as a sign that the other is gone."""
        if (name, other) in self.links:
            self.links.discard((name, other))
            self.alive[name].registry.lose_node(other, self.now)

    def evict(self, name: str, other: str) -> None:
        """End a connection that is not needed."""
        self.links.discard((name, other))

    def ask(self, name: str, other: str) -> None:
        """Let a node ask another, and let all that follows happen."""
        asker = self.alive[name]
        self._deliver(name, other, asker.gossiping.make_request(), depth=2)

    def _deliver(self, name: str, other: str, request: GossipRequest, depth: int) -> None:
        asker, asked = self.alive[name], self.alive.get(other)
        if asked is None:
            asker.registry.lose_node(other, self.now)
            return
        if (name, other) not in self.links:
            self.links.add((name, other))
            introduction = asker.gossiping.make_introduction()
            heard = asked.gossiping.receive_response(introduction, self.now)
            self._follow(other, name, heard, depth)
        heard = asked.gossiping.receive_request(request, self.now)
        self._follow(other, name, heard, depth)
        for response in heard.responses:
            self._follow(name, other, asker.gossiping.receive_response(response, self.now), depth)

    def _follow(self, name: str, sender: str, heard: Heard, depth: int) -> None:
        self.conflicts += sum(isinstance(it, NodeConflict) for it in heard.changes)
        if not depth:
            return
        if heard.is_behind:
            request = self.alive[name].gossiping.make_request()
            self._deliver(name, sender, request, depth - 1)
        for node_id in heard.denied:
            request = self.alive[name].gossiping.make_request(heard.denied)
            self._deliver(name, node_id, request, depth - 1)

    def settle(self) -> None:
        """Let everybody ask everybody, for a while."""
        for _ in range(ROUNDS):
            self.now += 1
            for name, other in permutations(NAMES, 2):
                if name in self.alive:
                    self.ask(name, other)

    def disagreements(self) -> Iterator[str]:
        for name, life in self.alive.items():
            for other in NAMES:
                if other in self.alive and other != name and not life.sees(self.alive[other]):
                    yield f"{name} does not see {other}: {life.registry.node(other)}"
                node = life.registry.node(other)
                if other not in self.alive and node is not None and node.is_available:
                    yield f"{name} sees {other}, which is gone"


STEPS = st.tuples(
    st.sampled_from(["start", "stop", "ask", "ask", "cut", "evict", "change"]),
    st.sampled_from(list(permutations(NAMES, 2))),
)


def live(town: Town, steps: list[tuple[str, tuple[str, str]]]) -> None:
    for step, (name, other) in steps:
        town.now += 0.1
        if step == "start":
            town.start(name)
        elif name in town.alive:
            match step:
                case "stop":
                    town.stop(name)
                case "change":
                    town.alive[name].change()
                case _:
                    getattr(town, step)(name, other)


@given(st.lists(STEPS, max_size=60), st.booleans())
def test_all_agree_in_the_end(
    steps: list[tuple[str, tuple[str, str]]], lives_count_on: bool
) -> None:
    town = Town(lives_count_on=lives_count_on)
    live(town, steps)
    town.settle()
    assert list(town.disagreements()) == []
    if lives_count_on:
        assert town.conflicts == 0
