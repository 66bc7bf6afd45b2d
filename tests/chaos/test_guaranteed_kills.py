"""Domains are killed at each fault point, and guaranteed messages are handled once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import postroad.node  # noqa: F401 - it declares fault points
from postroad.core import fault_points as faults
from tests.chaos.guaranteed_processes import domain_nodes
from tests.chaos.kills import (
    COUNT,
    Kill,
    kill_cases,
    live_through,
    start_again,
    store_of,
    storm_of_kills,
)
from tests.support.durable.mail_processes import all_quiet, duplicates, in_order

SENDER, CORE, CONSUMER = "sender", "core", "consumer"

KILLS = {
    "while it is sent": [
        Kill(SENDER, "durable.commit.before", "SendMutation"),
        Kill(SENDER, "durable.commit.after", "SendMutation", 3),
        Kill(SENDER, "durable.commit.reported", "SendMutation", 5),
    ],
    "while it is sent on": [
        Kill(SENDER, "durable.consumer.dispatched", nth=7),
        Kill(SENDER, "node.guaranteed.passed"),
        Kill(SENDER, "node.guaranteed.passed", nth=11),
        Kill(SENDER, "durable.consumer.handled", nth=5),
        Kill(SENDER, "durable.commit.before", "DispositionMutation"),
        Kill(SENDER, "durable.commit.after", "DispositionMutation"),
        Kill(SENDER, "durable.bridge.before_send", nth=2),
        Kill(SENDER, "durable.bridge.after_send", nth=2),
        Kill(SENDER, "durable.bridge.accepted"),
    ],
    "while the core is asked": [
        Kill(CORE, "node.guaranteed.asked"),
        Kill(CORE, "node.guaranteed.asked", nth=2),
    ],
    "while it comes in": [
        Kill(CONSUMER, "durable.receiver.before_accept", nth=2),
        Kill(CONSUMER, "durable.commit.after", "WindowMutation"),
        Kill(CONSUMER, "durable.receiver.after_accept"),
    ],
    "while it is handled": [
        Kill(CONSUMER, "durable.consumer.dispatched", nth=3),
        Kill(CONSUMER, "node.guaranteed.handed_over"),
        Kill(CONSUMER, "node.guaranteed.handed_over", nth=9),
        Kill(CONSUMER, "durable.consumer.handled", nth=5),
        Kill(CONSUMER, "durable.commit.before", "DispositionMutation"),
        Kill(CONSUMER, "durable.commit.after", "DispositionMutation", 3),
        Kill(CONSUMER, "durable.commit.reported", "DispositionMutation"),
    ],
}


def test_every_fault_point_of_guaranteed_queues_kills_somebody() -> None:
    points = {name for name in faults.fault_point_names() if name.startswith("node.guaranteed.")}
    assert len(points) == 3
    assert points <= {kill.point for kills in KILLS.values() for kill in kills}


@pytest.mark.parametrize(("store", "kills"), kill_cases(KILLS))
async def test_guaranteed_messages_around_a_kill_are_handled_once(
    store: str, kills: list[Kill], tmp_path: Path
) -> None:
    async with domain_nodes(tmp_path, CORE, SENDER, CONSUMER, store=store) as nodes:
        core, sender, consumer = nodes
        await consumer.consume()
        end = 0
        for kill in kills:
            end = await live_through(kill, nodes, sender.send, end, apart=(sender, consumer))
            assert sorted(consumer.handled) == list(range(end)), kill
            assert in_order(consumer.handled), kill
            assert core.dead == sender.dead == consumer.dead == [], kill


async def test_core_that_is_dead_delays_and_loses_nothing(tmp_path: Path) -> None:
    async with domain_nodes(tmp_path, CORE, SENDER, CONSUMER, is_cold=True) as nodes:
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
        left.tell("arm", "durable.consumer.dispatched", "-", 5)
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


async def test_guaranteed_messages_in_a_storm_of_kills_are_handled_once(
    tmp_path: Path, chaos_seconds: float, seed: int
) -> None:
    """Anybody is killed at any time, and consumers come and go."""
    store = store_of(seed)
    async with domain_nodes(tmp_path, CORE, SENDER, "left", "right", store=store) as nodes:
        _, sender, left, right = nodes
        await left.consume()
        await right.consume()

        async def move(chance: random.Random) -> None:
            if chance.random() < 0.3:
                mover = chance.choice((left, right))
                await mover.consume(is_wanted=False)
                await mover.consume()

        sent = await storm_of_kills(nodes, seed, chaos_seconds, sender.send, sender, move)
        numbers = left.handled + right.handled
        assert duplicates(numbers) == []
        assert sorted(numbers) == list(range(sent))
        assert [node.dead for node in nodes] == [[]] * 4
