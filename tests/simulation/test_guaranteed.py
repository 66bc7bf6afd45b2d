"""Scenario `guaranteed`: it passes with many seeds, and finds bugs that are planted."""

import asyncio
from typing import Any

import pytest

from postroad.durable import Message, Transaction
from postroad.node.desk import Desk
from tests.simulation.planting import CORRECTNESS, LIVENESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("guaranteed", seeds)


@BUGS.replace(Desk, "send_on", CORRECTNESS, 0)
async def plant_sent_on_before_acknowledged(
    _: Any, self: Desk, message: Message, tx: Transaction
) -> None:
    consumers = await self._directions.wait(self.queue, 2.0)
    domain = self._directions.choose(consumers, message.body)
    await self._queues.send(self.incoming, message.body, to=domain, key=message.key)
    # Long enough for something to happen to somebody meanwhile.
    await asyncio.sleep(1.0)


@BUGS.replace(Desk, "_pass", LIVENESS, 1)
def plant_dropped_where_nobody_consumes(
    passed: Any, self: Desk, domain: str, queue: str, *args: Any
) -> None:
    if queue != self.outgoing:
        passed(self, domain, queue, *args)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("guaranteed", monkeypatch)
