"""Domains are killed at each fault point, and guaranteed messages are handled once."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from pathlib import Path
from typing import NamedTuple

import pytest

import postroad.node  # noqa: F401 - it declares fault points
from postroad.core import faults
from tests.chaos.guaranteed_processes import DomainNode, domain_nodes, introduce
from tests.support.durable.mail_processes import all_quiet, duplicates, in_order

COUNT = 40
"""Messages around each kill: half of them wait when the consumer can be reached at last."""
BATCH = 4
NEXT_S = 2.0
"""With what has been sent by then, the point is reached or will not be."""
SENDER, CORE, CONSUMER = "sender", "core", "consumer"
SECONDS_MIN = 6.0
KILLS_MIN = 4
SEED = "POSTROAD_CHAOS_SEED"
"""Variable of the environment with the seed of a run that shall be repeated."""


class Kill(NamedTuple):
    """Where a process dies."""

    victim: str
    point: str
    kind: str = "-"
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.victim} at {self.point} {self.kind} {self.nth}"


KILLS = {
    "while it is sent": [
        Kill(SENDER, "durable.commit.before", "Posting"),
        Kill(SENDER, "durable.commit.after", "Posting", 3),
        Kill(SENDER, "durable.commit.reported", "Posting", 5),
    ],
    "while it is sent on": [
        Kill(SENDER, "durable.consumer.taken", nth=7),
        Kill(SENDER, "node.guaranteed.passed"),
        Kill(SENDER, "node.guaranteed.passed", nth=11),
        Kill(SENDER, "durable.consumer.handled", nth=5),
        Kill(SENDER, "durable.commit.before", "Handling"),
        Kill(SENDER, "durable.commit.after", "Handling"),
        Kill(SENDER, "durable.bridge.before_send", nth=2),
        Kill(SENDER, "durable.bridge.after_send", nth=2),
        Kill(SENDER, "durable.bridge.accepted"),
    ],
    "while the core is asked": [
        Kill(CORE, "node.guaranteed.asked"),
        Kill(CORE, "node.guaranteed.asked", nth=2),
    ],
    "while it comes in": [
        Kill(CONSUMER, "durable.intake.before_accept", nth=2),
        Kill(CONSUMER, "durable.commit.after", "Acceptance"),
        Kill(CONSUMER, "durable.intake.after_accept"),
    ],
    "while it is handled": [
        Kill(CONSUMER, "durable.consumer.taken", nth=3),
        Kill(CONSUMER, "node.guaranteed.handed_over"),
        Kill(CONSUMER, "node.guaranteed.handed_over", nth=9),
        Kill(CONSUMER, "durable.consumer.handled", nth=5),
        Kill(CONSUMER, "durable.commit.before", "Handling"),
        Kill(CONSUMER, "durable.commit.after", "Handling", 3),
        Kill(CONSUMER, "durable.commit.reported", "Handling"),
    ],
}


def test_every_fault_point_of_guaranteed_queues_kills_somebody() -> None:
    points = {name for name in faults.names() if name.startswith("node.guaranteed.")}
    assert len(points) == 3
    assert points <= {kill.point for kills in KILLS.values() for kill in kills}


@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
async def test_killed(kills: list[Kill], tmp_path: Path) -> None:
    async with domain_nodes(tmp_path, CORE, SENDER, CONSUMER) as nodes:
        core, sender, consumer = nodes
        by_name = {node.name: node for node in nodes}
        await consumer.consume()
        first = 0
        for kill in kills:
            victim = by_name[kill.victim]
            sender.lose(consumer)
            victim.tell("arm", kill.point, kill.kind, kill.nth)
            count, was_sent = await send_until_death(sender, consumer, victim, first)
            await start_again(victim, nodes)
            if not was_sent:
                assert await sender.send(first, count), kill
                sender.meet(consumer)
            await all_quiet(*nodes, after=str(kill))
            first += count
            assert sorted(consumer.handled) == list(range(first)), kill
            assert in_order(consumer.handled), kill
            assert core.dead == sender.dead == consumer.dead == [], kill


async def send_until_death(
    sender: DomainNode, consumer: DomainNode, victim: DomainNode, first: int
) -> tuple[int, bool]:
    """Send until a fault point has killed the victim; how many, and whether all were taken."""
    was_sent = await sender.send(first, COUNT // 2)
    if was_sent:
        sender.meet(consumer)
        was_sent = await sender.send(first + COUNT // 2, COUNT // 2)
    count = COUNT
    while was_sent and not await has_died(victim):
        # So much went together that it did not come to the point often enough.
        was_sent = await sender.send(first + count, BATCH)
        count += BATCH
    if not was_sent:
        await victim.dies()
    return count, was_sent


async def has_died(victim: DomainNode) -> bool:
    try:
        await victim.dies(NEXT_S)
    except TimeoutError:
        return False
    return True


async def start_again(node: DomainNode, nodes: list[DomainNode]) -> None:
    await node.start()
    introduce(node, nodes)


async def test_core_that_is_dead_delays_and_loses_nothing(tmp_path: Path) -> None:
    async with domain_nodes(tmp_path, CORE, SENDER, CONSUMER) as nodes:
        core, sender, consumer = nodes
        await core.kill()
        assert await sender.send(0, COUNT)
        await consumer.consume()
        # Only cores know who consumes what, so everything waits where it was sent.
        assert (sender.waiting, consumer.handled) == (COUNT, [])
        await start_again(core, nodes)
        await all_quiet(*nodes)
        assert sorted(consumer.handled) == list(range(COUNT))
        assert in_order(consumer.handled)


async def test_consumer_moves_while_its_old_domain_is_killed(tmp_path: Path) -> None:
    async with domain_nodes(tmp_path, CORE, SENDER, "left", "right") as nodes:
        _, sender, left, right = nodes
        await left.consume()
        left.tell("arm", "durable.consumer.taken", "-", 5)
        assert await sender.send(0, COUNT)
        await left.dies()
        await right.consume()
        # What was on its way to the dead domain stays there, until it is back and sends it on.
        left.forget_cell()
        await start_again(left, nodes)
        await all_quiet(*nodes)
        assert sorted(left.handled + right.handled) == list(range(COUNT))
        assert right.handled
        assert [node.dead for node in nodes] == [[]] * 4


async def test_storm(tmp_path: Path, chaos_seconds: float) -> None:
    """Anybody is killed at any time, and consumers come and go."""
    seed = int(os.environ.get(SEED) or random.randrange(1 << 32))
    chance = random.Random(seed)
    async with domain_nodes(tmp_path, CORE, SENDER, "left", "right") as nodes:
        _, sender, left, right = nodes
        await left.consume()
        await right.consume()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(chaos_seconds, SECONDS_MIN)
        kills = sent = 0
        for round in itertools.count():
            if kills >= KILLS_MIN and loop.time() > deadline:
                break
            sender.tell("send", sent, COUNT)
            # When it strikes is part of what is random.
            await asyncio.sleep(chance.uniform(0.0, 0.2))
            victims = chance.sample(nodes, chance.choice((1, 1, 2)))
            await asyncio.gather(*(victim.kill() for victim in victims))
            kills += len(victims)
            for victim in victims:
                await start_again(victim, nodes)
            if sender in victims:
                assert await sender.send(sent, COUNT), seed
            else:
                assert await sender.line() == "sent", seed
            sent += COUNT
            mover = chance.choice((left, right))
            if round % 3 == 0:
                await mover.consume(is_wanted=False)
                await mover.consume()
        await all_quiet(*nodes, after=f"seed {seed}")
        numbers = left.handled + right.handled
        assert duplicates(numbers) == [], seed
        assert sorted(numbers) == list(range(sent)), seed
        assert [node.dead for node in nodes] == [[]] * 4, seed
