"""Three nodes post to each other all the time, while one after the other is killed or paused."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.durable.mail_node import LIMITS
from tests.support.durable.mail_processes import (
    MailNode,
    all_quiet,
    duplicates,
    in_order,
    mail_nodes,
)

Say: TypeAlias = Callable[[str], None]

NAMES = ("north", "south", "west")
SECONDS_MIN = 6.0
"""Below this there would hardly be a kill of each node."""
PAUSE_S = 0.02
"""Between two transactions of five messages of one node to another."""
SEED = "POSTROAD_CHAOS_SEED"
"""Variable of the environment with the seed of a run that shall be repeated."""


class Storm:
    """Hurts nodes at random, and heals them again."""

    def __init__(self, nodes: list[MailNode], chance: random.Random) -> None:
        self._nodes = nodes
        self._chance = chance
        self.kills = self.pauses = 0

    async def rage(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            # When it strikes is part of what is random.
            await asyncio.sleep(self._chance.uniform(0.0, 0.8))
            victims = self._chance.sample(self._nodes, self._chance.choice((1, 1, 2)))
            if self._chance.random() < 0.75:
                await asyncio.gather(*map(self._kill, victims))
            else:
                await self._pause(victims)

    async def _kill(self, victim: MailNode) -> None:
        await victim.kill()
        await victim.start()
        self.set_going(victim)
        self.kills += 1

    def set_going(self, node: MailNode) -> None:
        """Have a node that was started post to all others."""
        others = [other for other in self._nodes if other is not node]
        node.meet(*others)
        for other in others:
            node.tell("load", other.name, PAUSE_S)

    async def _pause(self, victims: list[MailNode]) -> None:
        for victim in victims:
            victim.signal(signal.SIGSTOP)
        await asyncio.sleep(LIMITS.heartbeat_timeout_s * self._chance.uniform(1.1, 1.6))
        for victim in victims:
            victim.signal(signal.SIGCONT)
        self.pauses += len(victims)


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Prints for whoever looks at a run, although what tests print is kept from them."""

    def print_line(text: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n{text}")
            sys.stdout.flush()

    return print_line


async def test_nothing_is_lost_or_done_twice(
    tmp_path: Path, chaos_seconds: float, say: Say
) -> None:
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(1_000_000))
    say(f"{SEED}={seed}")
    async with mail_nodes(tmp_path, *NAMES) as nodes:
        storm = Storm(nodes, random.Random(seed))
        for node in nodes:
            storm.set_going(node)
        await storm.rage(max(chaos_seconds, SECONDS_MIN))
        for node in nodes:
            node.tell("rest")
            assert await node.line() == "resting", f"{node.name} died by itself"
        await all_quiet(*nodes)
        say(f"{storm.kills} kills, {storm.pauses} pauses")
        for sender, receiver in itertools.permutations(nodes, 2):
            check_ledger(sender, receiver, say)


def check_ledger(sender: MailNode, receiver: MailNode, say: Say) -> None:
    """What one sent is what the other has handled, and has had a receipt for."""
    sent = sender.sent_to(receiver)
    handled = receiver.rows_from(sender)
    twice, lost = duplicates(handled), sent.difference(handled)
    say(
        f"{sender.name} to {receiver.name}: {len(sent)} sent, {len(handled)} handled, "
        f"{len(twice)} duplicates, {len(lost)} lost"
    )
    assert len(sent) > 0
    assert sorted(handled) == sorted(sent)
    assert in_order(handled)
    assert sorted(sender.rows_from(receiver, "receipts")) == sorted(sent)
    assert sender.dead == []
