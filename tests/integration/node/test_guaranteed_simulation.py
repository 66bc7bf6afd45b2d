"""Guaranteed queues while everything breaks, by seeds; and the bugs that this finds."""

from __future__ import annotations

import asyncio

import pytest

from postroad.cells import Envelope
from postroad.durable import Message, Transaction
from postroad.node.desk import Desk
from postroad.testing import CorrectnessFailure, LivenessFailure, Outcome, run_seed

from .guaranteed_world import run_guaranteed

SEEDS = 20
# A planted bug must show within so many.
PLANTED_SEEDS = 20


def run(seed: int) -> Outcome:
    return run_seed("guaranteed", run_guaranteed, seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_seed(seed: int) -> None:
    outcome = run(seed)
    assert outcome.exit_code == 0, outcome.describe()


def find(exit_code: int) -> bool:
    """Whether a run ends like that."""
    return any(run(seed).exit_code == exit_code for seed in range(PLANTED_SEEDS))


def test_sent_on_before_it_is_acknowledged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send_on(self: Desk, message: Message, tx: Transaction) -> None:
        consumers = await self._directions.wait(self.queue, 2.0)
        domain = self._directions.choose(consumers, message.body)
        await self._mail.post(domain, self.incoming, message.body, key=message.key)
        # Long enough for something to happen to somebody meanwhile.
        await asyncio.sleep(1.0)

    monkeypatch.setattr(Desk, "send_on", send_on)
    assert find(CorrectnessFailure.exit_code)


def test_dropped_where_nobody_consumes_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = Desk._pass

    def lose(
        self: Desk,
        domain: str,
        queue: str,
        message: Message,
        envelope: Envelope,
        tx: Transaction,
    ) -> None:
        if queue != self.outgoing:
            passed(self, domain, queue, message, envelope, tx)

    monkeypatch.setattr(Desk, "_pass", lose)
    assert find(LivenessFailure.exit_code)
