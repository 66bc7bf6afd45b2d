"""Brokers are killed at each fault point, and every group handles each durable event once."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import postroad.node  # noqa: F401 - it declares fault points
from postroad.core import faults
from tests.chaos.event_node import GROUPS
from tests.support.durable.mail_processes import MailNode, all_quiet, duplicates
from tests.support.servers.process import free_port
from tests.support.source_tree import ROOT

COUNT = 20
"""Events around each kill."""
BATCH = 4
NEXT_S = 2.0
"""With what has been emitted by then, the point is reached or will not be."""
SENDER, LEFT, RIGHT = "sender", "left", "right"
OFFERED = {SENDER: "-", LEFT: "mail,stock", RIGHT: "mail"}
SECONDS_MIN = 5.0
KILLS_MIN = 3
SEED = "POSTROAD_CHAOS_SEED"
"""Variable of the environment with the seed of a run that shall be repeated."""


class EventNode(MailNode):
    """A broker that can be killed and started again, on the same store and ports."""

    def __init__(self, name: str, directory: Path, urls: str) -> None:
        super().__init__(name, directory)
        self._urls = urls

    async def start(self) -> None:
        """Start it, where it was before if it was killed."""
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        port = self.address.rpartition(":")[2] or f"{free_port()}"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.chaos.event_node"),
            *(self.name, self._directory, port, OFFERED[self.name], self._urls),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self.address = await self.line()
        assert self.address, f"{self.name} did not start"

    async def emit(self, first: int, count: int) -> bool:
        """Have it emit; whether it lived to see that done."""
        self.tell("emit", first, count)
        return await self.line() == "sent"

    def handled(self, group: str) -> list[int]:
        """The numbers of the events that a group handled here."""
        rows = self.query("SELECT number FROM handled WHERE sender = ?", group)
        return [number for (number,) in rows]


@asynccontextmanager
async def event_nodes(directory: Path) -> AsyncIterator[list[EventNode]]:
    """Nodes that run and know each other; killed at the end."""
    ports = unused_ports(len(OFFERED))
    urls = ",".join(
        f"tcp://127.0.0.1:{port}/{name}" for name, port in zip(OFFERED, ports, strict=True)
    )
    nodes = [EventNode(name, directory, urls) for name in OFFERED]
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        for node in nodes:
            introduce(node, nodes)
        yield nodes
    finally:
        for node in nodes:
            await node.kill()


def introduce(node: EventNode, nodes: list[EventNode]) -> None:
    node.meet(*(other for other in nodes if other is not node))


def unused_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def check(nodes: list[EventNode], count: int, after: object) -> None:
    """Every group has handled every event once, and nothing died."""
    for group in GROUPS:
        numbers = [number for node in nodes for number in node.handled(group)]
        assert duplicates(numbers) == [], (group, after)
        assert sorted(numbers) == [*range(count)], (group, after)
    assert [node.dead for node in nodes] == [[]] * len(nodes), after


class Kill(NamedTuple):
    """Where a process dies."""

    victim: str
    point: str
    kind: str = "-"
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.victim} at {self.point} {self.kind} {self.nth}"


KILLS = {
    "the sender": [
        Kill(SENDER, "durable.commit.before", "Posting"),
        Kill(SENDER, "durable.commit.after", "Posting", 3),
        Kill(SENDER, "node.events.taken", nth=5),
        Kill(SENDER, "node.events.passed", nth=3),
        Kill(SENDER, "durable.commit.before", "Handling"),
        Kill(SENDER, "durable.commit.after", "Handling"),
        Kill(SENDER, "durable.bridge.after_send", nth=2),
    ],
    "a group": [
        Kill(LEFT, "durable.intake.after_accept"),
        Kill(LEFT, "node.events.taken", nth=3),
        Kill(LEFT, "node.events.handled", nth=4),
        Kill(LEFT, "durable.commit.before", "Handling"),
        Kill(LEFT, "durable.commit.after", "Handling", 2),
        Kill(LEFT, "durable.commit.reported", "Handling"),
    ],
}


def test_every_fault_point_of_durable_events_kills_somebody() -> None:
    points = {name for name in faults.names() if name.startswith("node.events.")}
    assert len(points) == 3
    assert points <= {kill.point for kills in KILLS.values() for kill in kills}


@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
async def test_killed(kills: list[Kill], tmp_path: Path) -> None:
    async with event_nodes(tmp_path) as nodes:
        by_name = {node.name: node for node in nodes}
        sender, first = by_name[SENDER], 0
        for kill in kills:
            victim = by_name[kill.victim]
            victim.tell("arm", kill.point, kill.kind, kill.nth)
            count, was_sent = await emit_until_death(sender, victim, first)
            await victim.start()
            introduce(victim, nodes)
            if not was_sent:
                assert await sender.emit(first, count), kill
            await all_quiet(*nodes, after=str(kill))
            first += count
            check(nodes, first, kill)


async def emit_until_death(sender: EventNode, victim: EventNode, first: int) -> tuple[int, bool]:
    """Emit until a fault point has killed the victim; how many, and whether all were taken."""
    count, was_sent = COUNT, await sender.emit(first, COUNT)
    while was_sent and not await has_died(victim):
        # So much went together that it did not come to the point often enough.
        was_sent = await sender.emit(first + count, BATCH)
        count += BATCH
    if not was_sent:
        await victim.dies()
    return count, was_sent


async def has_died(victim: EventNode) -> bool:
    try:
        await victim.dies(NEXT_S)
    except TimeoutError:
        return False
    return True


async def test_storm(tmp_path: Path, chaos_seconds: float) -> None:
    """Anybody is killed at any time."""
    seed = int(os.environ.get(SEED) or random.randrange(1 << 32))
    chance = random.Random(seed)
    async with event_nodes(tmp_path) as nodes:
        sender = nodes[0]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(chaos_seconds, SECONDS_MIN)
        kills = sent = 0
        while kills < KILLS_MIN or loop.time() < deadline:
            sender.tell("emit", sent, COUNT)
            # When it strikes is part of what is random.
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            victims = chance.sample(nodes, chance.choice((1, 1, 2)))
            await asyncio.gather(*(victim.kill() for victim in victims))
            kills += len(victims)
            for victim in victims:
                await victim.start()
                introduce(victim, nodes)
            if sender in victims:
                assert await sender.emit(sent, COUNT), seed
            else:
                assert await sender.line() == "sent", seed
            sent += COUNT
        await all_quiet(*nodes, after=f"seed {seed}")
        check(nodes, sent, f"seed {seed}")
