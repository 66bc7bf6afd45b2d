"""Three nodes post to each other all the time, while one after the other is killed or paused."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.chaos.kills import Storm, store_of
from tests.support.durable.mail_processes import (
    MailNode,
    all_quiet,
    duplicates,
    in_order,
    mail_nodes,
)

NAMES = ("north", "south", "west")
PAUSE_S = 0.02
"""Between two transactions of five messages of one node to another."""


async def test_mail_in_a_storm_of_kills_and_pauses_is_handled_once(
    tmp_path: Path, chaos_seconds: float, seed: int
) -> None:
    async with mail_nodes(tmp_path, *NAMES, store=store_of(seed), is_cold=True) as nodes:

        async def set_going(node: MailNode) -> None:
            """Have a node that was started post to all others."""
            # The first processes were cold, the next ones need not be.
            node.is_cold = False
            others = [other for other in nodes if other is not node]
            node.meet(*others)
            for other in others:
                node.tell("load", other.name, PAUSE_S)

        await Storm(nodes, seed, set_going, weights=(6, 0, 2)).rage(chaos_seconds)
        for node in nodes:
            node.tell("rest")
            assert await node.line() == "resting", f"{node.name} died by itself"
        await all_quiet(*nodes)
        for sender, receiver in itertools.permutations(nodes, 2):
            check_ledger(sender, receiver)


def check_ledger(sender: MailNode, receiver: MailNode) -> None:
    """What one sent is what the other has handled, and has had a receipt for."""
    sent = sender.sent_to(receiver)
    handled = receiver.rows_from(sender)
    assert len(sent) > 0
    assert (duplicates(handled), sent.difference(handled)) == ([], set())
    assert sorted(handled) == sorted(sent)
    assert in_order(handled)
    assert sorted(sender.rows_from(receiver, "receipts")) == sorted(sent)
    assert sender.dead == []
