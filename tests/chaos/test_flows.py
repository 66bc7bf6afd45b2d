"""Three banks pay each other all the time, while one after the other is killed or paused."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.chaos.flow_bank import CENTS_MAX
from tests.chaos.flow_processes import FlowNode, all_ended, flow_nodes
from tests.support.durable.mail_node import LIMITS

Say: TypeAlias = Callable[[str], None]

NAMES = ("north", "south", "west")
SECONDS_MIN = 8.0
"""Below this there would hardly be a kill of each bank."""
PAUSE_S = 0.01
"""Between the beginnings of two payments of one bank."""
SEED = "POSTROAD_CHAOS_SEED"
"""Variable of the environment with the seed of a run that shall be repeated."""


class Storm:
    """Hurts banks at random, and heals them again."""

    def __init__(self, banks: list[FlowNode], chance: random.Random) -> None:
        self._banks = banks
        self._chance = chance
        self.kills = self.stops = self.pauses = 0

    async def rage(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            # When it strikes is part of what is random.
            await asyncio.sleep(self._chance.uniform(0.0, 0.8))
            victims = self._chance.sample(self._banks, self._chance.choice((1, 1, 2)))
            strike = self._chance.choices((self._kill, self._stop, self._pause), (6, 2, 2))[0]
            await asyncio.gather(*map(strike, victims))

    async def set_going(self, bank: FlowNode) -> None:
        """Have a bank that was started pay to all others."""
        others = [other for other in self._banks if other is not bank]
        bank.meet(*others)
        assert await bank.do("load", [other.name for other in others], PAUSE_S) == "loading"

    async def _kill(self, victim: FlowNode) -> None:
        await victim.kill()
        await victim.start()
        await self.set_going(victim)
        self.kills += 1

    async def _stop(self, victim: FlowNode) -> None:
        await victim.stop()
        await victim.start()
        await self.set_going(victim)
        self.stops += 1

    async def _pause(self, victim: FlowNode) -> None:
        victim.signal(signal.SIGSTOP)
        await asyncio.sleep(LIMITS.heartbeat_timeout_s * self._chance.uniform(1.1, 1.6))
        victim.signal(signal.SIGCONT)
        self.pauses += 1


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Prints for whoever looks at a run, although what tests print is kept from them."""

    def print_line(text: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n{text}")
            sys.stdout.flush()

    return print_line


async def test_every_payment_is_made_once_or_given_back(
    tmp_path: Path, chaos_seconds: float, say: Say
) -> None:
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(1_000_000))
    say(f"{SEED}={seed}")
    async with flow_nodes(tmp_path, *NAMES) as banks:
        storm = Storm(banks, random.Random(seed))
        for bank in banks:
            await storm.set_going(bank)
        await storm.rage(max(chaos_seconds, SECONDS_MIN))
        for bank in banks:
            assert await bank.do("rest") == "resting"
        await all_ended(*banks)
        say(f"{storm.kills} kills, {storm.stops} stops, {storm.pauses} pauses")
        check_books(banks, say)


def check_books(banks: list[FlowNode], say: Say) -> None:
    """Each payment is on both sides once, or was given back; all money is still there."""
    begun: dict[str, str] = {}
    given: dict[str, list[int]] = {}
    taken: dict[str, list[int]] = {}
    for bank in banks:
        statement = "SELECT client_id, status FROM postroad_flows WHERE client_id IS NOT NULL"
        own = dict(bank.query(statement))
        begun |= own
        for payment, cents in bank.query("SELECT payment, cents FROM moves ORDER BY rowid"):
            side = given if payment in own else taken
            side.setdefault(payment, []).append(cents)
        assert bank.dead == []
        assert bank.query("SELECT step_id FROM moves GROUP BY 1 HAVING COUNT(*) > 1") == []
        assert bank.query("SELECT subject FROM notes GROUP BY 1 HAVING COUNT(*) > 1") == []
    statuses = Counter(begun.values())
    say(f"{len(begun)} payments, {statuses['failed']} of them given back")
    assert statuses.keys() == {"done", "failed"}
    assert given.keys() == begun.keys()
    assert taken.keys() == {payment for payment, status in begun.items() if status == "done"}
    for payment, status in begun.items():
        if status == "done":
            assert given[payment] == [-cents for cents in taken[payment]]
        else:
            first, second = given[payment]
            assert first == -second < -CENTS_MAX
    assert sum(cents for side in (given, taken) for it in side.values() for cents in it) == 0
