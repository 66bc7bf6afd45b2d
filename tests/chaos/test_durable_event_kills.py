"""Brokers are killed at each fault point, and every group handles each durable event once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import postroad.node  # noqa: F401 - it declares fault points
from postroad.core import fault_points as faults
from tests.chaos.event_node import GROUPS
from tests.chaos.kills import Kill, kill_cases, live_through, store_of, storm_of_kills
from tests.support.durable.mail_processes import (
    MailNode,
    database,
    duplicates,
    introduce,
    running,
)
from tests.support.servers.process import free_port

SENDER, LEFT, RIGHT = "sender", "left", "right"
OFFERED = {SENDER: "-", LEFT: "mail,stock", RIGHT: "mail"}


class EventNode(MailNode):
    """A broker that can be killed and started again, on the same store and ports."""

    module = "tests.chaos.event_node"

    def __init__(self, name: str, directory: Path, urls: str, **options: Any) -> None:
        super().__init__(name, directory, **options)
        self._urls = urls

    @property
    def arguments(self) -> Sequence[str]:
        return (OFFERED[self.name], self._urls)

    async def emit(self, first: int, count: int) -> bool:
        """Have it emit; whether it lived to see that done."""
        self.tell("emit", first, count)
        return await self.line() == "sent"

    def handled(self, group: str) -> list[int]:
        """The numbers of the events that a group handled here."""
        rows = self.query("SELECT number FROM handled WHERE sender = ?", group)
        return [number for (number,) in rows]


@asynccontextmanager
async def event_nodes(
    directory: Path, store: str, *, is_cold: bool = False
) -> AsyncIterator[list[EventNode]]:
    """Nodes that run and know each other; killed at the end."""
    urls = ",".join(f"tcp://127.0.0.1:{free_port()}/{name}" for name in OFFERED)
    with database(store) as dsn:
        nodes = [EventNode(name, directory, urls, dsn=dsn, is_cold=is_cold) for name in OFFERED]
        async with running(nodes):
            introduce(*nodes)
            yield nodes


def check(nodes: list[EventNode], count: int, after: object) -> None:
    """Every group has handled every event once, and nothing died."""
    for group in GROUPS:
        numbers = [number for node in nodes for number in node.handled(group)]
        assert duplicates(numbers) == [], (group, after)
        assert sorted(numbers) == [*range(count)], (group, after)
    assert [node.dead for node in nodes] == [[]] * len(nodes), after


KILLS = {
    "the sender": [
        Kill(SENDER, "durable.commit.before", "SendMutation"),
        Kill(SENDER, "durable.commit.after", "SendMutation", 3),
        Kill(SENDER, "node.events.taken", nth=5),
        Kill(SENDER, "node.events.passed", nth=3),
        Kill(SENDER, "durable.commit.before", "DispositionMutation"),
        Kill(SENDER, "durable.commit.after", "DispositionMutation"),
        Kill(SENDER, "durable.bridge.after_send", nth=2),
    ],
    "a group": [
        Kill(LEFT, "durable.receiver.after_accept"),
        Kill(LEFT, "node.events.taken", nth=3),
        Kill(LEFT, "node.events.handled", nth=4),
        Kill(LEFT, "durable.commit.before", "DispositionMutation"),
        Kill(LEFT, "durable.commit.after", "DispositionMutation", 2),
        Kill(LEFT, "durable.commit.reported", "DispositionMutation"),
    ],
}


def test_every_fault_point_of_durable_events_kills_somebody() -> None:
    points = {name for name in faults.fault_point_names() if name.startswith("node.events.")}
    assert len(points) == 3
    assert points <= {kill.point for kills in KILLS.values() for kill in kills}


@pytest.mark.parametrize(("store", "kills"), kill_cases(KILLS))
async def test_durable_events_around_a_kill_are_handled_once_by_each_group(
    store: str, kills: list[Kill], tmp_path: Path
) -> None:
    async with event_nodes(tmp_path, store) as nodes:
        end = 0
        for kill in kills:
            end = await live_through(kill, nodes, nodes[0].emit, end)
            check(nodes, end, kill)


async def test_durable_events_in_a_storm_of_kills_are_handled_once_by_each_group(
    tmp_path: Path, chaos_seconds: float, seed: int
) -> None:
    async with event_nodes(tmp_path, store_of(seed), is_cold=True) as nodes:
        for node in nodes:
            node.is_cold = False
        sender = nodes[0]
        sent = await storm_of_kills(nodes, seed, chaos_seconds, sender.emit, sender)
        check(nodes, sent, "the storm")
