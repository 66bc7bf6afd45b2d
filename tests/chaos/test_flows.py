"""Three banks pay each other all the time, while one after the other is killed or paused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.chaos.flow_bank import CENTS_MAX
from tests.chaos.flow_processes import FlowNode, all_ended, flow_nodes
from tests.chaos.kills import Storm, seeded, store_of

NAMES = ("north", "south", "west")
PAUSE_S = 0.01
"""Between the beginnings of two payments of one bank."""


async def test_payments_in_a_storm_are_made_once_or_given_back(
    tmp_path: Path, chaos_seconds: float, seed: int
) -> None:
    """Banks are killed, stopped and paused."""
    chance = seeded(seed)
    async with flow_nodes(tmp_path, *NAMES, store=store_of(seed), is_cold=True) as banks:

        async def set_going(bank: FlowNode) -> None:
            """Have a bank that was started pay to all others."""
            # The first processes were cold, the next ones need not be.
            bank.is_cold = False
            others = [other for other in banks if other is not bank]
            bank.meet(*others)
            load = ("load", [other.name for other in others], PAUSE_S, chance.random())
            assert await bank.do(*load) == "loading"

        await Storm(banks, seed, set_going, weights=(6, 2, 2)).rage(chaos_seconds)
        for bank in banks:
            assert await bank.do("rest") == "resting"
        await all_ended(*banks)
        check_books(banks)


def check_books(banks: list[FlowNode]) -> None:
    """Each payment is on both sides once, or was given back; all money is still there."""
    begun: dict[str, str] = {}
    given: dict[str, list[int]] = {}
    taken: dict[str, list[int]] = {}
    for bank in banks:
        statement = "SELECT client_id, status FROM postroad_flows WHERE client_id IS NOT NULL"
        own = dict(bank.query(statement))
        begun |= own
        for payment, cents in bank.query('SELECT payment, cents FROM moves ORDER BY "row"'):
            side = given if payment in own else taken
            side.setdefault(payment, []).append(cents)
        assert bank.dead == []
        assert bank.query("SELECT step_id FROM moves GROUP BY 1 HAVING COUNT(*) > 1") == []
        assert bank.query("SELECT subject FROM notes GROUP BY 1 HAVING COUNT(*) > 1") == []
    statuses = Counter(begun.values())
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
