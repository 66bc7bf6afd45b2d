"""A process with mail is killed at each fault point, and nothing is lost or done twice.

The ids are those of the catalogue of fault scenarios: S of a sender, B of an outbound queue and its
bridge, R of a receiver.

What needs no death is in tests/integration/durable: bridges in processes of their own (B6, B7, B9),
a peer that moves (B8), oversized mail (B10), false certificates (B11), half-open links (B13), full
disks (B14), poison (R11), restored backups (R12) and consumers that come later (R13). A connection
to the database that is lost (B12) is in the tests of the stores. Of flows only are: a session that
is confirmed (S7) or ends (S11, R14), a flow that is over (R10), and the checkpoints of S1, R3, R5.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from postroad.core import faults
from tests.support.durable.mail_node import BATCH
from tests.support.durable.mail_processes import MailNode, all_quiet, in_order, mail_nodes

COUNT = 40
# With what has been posted by then, the point is reached or will not be.
NEXT_S = 2.0
"""Messages around each kill: half of them wait when the bridge begins, half are posted then."""

# Who dies. Both have a bridge and consumers: one for the messages, the other for the receipts.
SENDER, RECEIVER = "sender", "receiver"


class Kill(NamedTuple):
    """Where a process dies."""

    ids: str
    victim: str
    point: str
    kind: str = "-"
    nth: int = 1

    def __str__(self) -> str:
        kind = "" if self.kind == "-" else f"-{self.kind.lower()}"
        return f"{self.victim}-{self.point.removeprefix('durable.')}{kind}-{self.nth}"


KILLS = {
    "into the outbox": [
        Kill("S1", SENDER, "durable.commit.before", "Posting"),
        Kill("S1", SENDER, "durable.commit.before", "Posting", 3),
        Kill("S2", SENDER, "durable.commit.after", "Posting"),
        Kill("S2", SENDER, "durable.commit.after", "Posting", 6),
        Kill("S10", SENDER, "durable.commit.reported", "Posting"),
    ],
    "out of the outbox": [
        Kill("S4 B1", SENDER, "durable.bridge.before_send"),
        Kill("S5 B1", SENDER, "durable.bridge.before_send", nth=3),
        Kill("S6 B2", SENDER, "durable.bridge.after_send"),
        Kill("S5 B2", SENDER, "durable.bridge.after_send", nth=3),
        Kill("B4", SENDER, "durable.bridge.accepted"),
        Kill("B4", SENDER, "durable.bridge.accepted", nth=4),
        Kill("B4", SENDER, "durable.commit.before", "Settlement"),
        Kill("B4", SENDER, "durable.commit.after", "Settlement"),
        Kill("B4", SENDER, "durable.commit.reported", "Settlement"),
    ],
    "into the inbox": [
        Kill("B2", RECEIVER, "durable.intake.before_accept"),
        Kill("B2 B5", RECEIVER, "durable.intake.before_accept", nth=3),
        Kill("B2 B5", RECEIVER, "durable.commit.before", "Acceptance", 2),
        Kill("B3 R1", RECEIVER, "durable.commit.after", "Acceptance"),
        Kill("B3 R1", RECEIVER, "durable.commit.reported", "Acceptance"),
        Kill("B3 R1", RECEIVER, "durable.intake.after_accept"),
        Kill("B3 R8", RECEIVER, "durable.intake.after_accept", nth=4),
    ],
    "through the handler": [
        Kill("R2", RECEIVER, "durable.consumer.taken"),
        Kill("R2 R7", RECEIVER, "durable.consumer.taken", nth=11),
        Kill("S8", RECEIVER, "durable.consumer.handled"),
        Kill("S8 R7", RECEIVER, "durable.consumer.handled", nth=11),
        Kill("R3", RECEIVER, "durable.commit.before", "Handling"),
        Kill("S3 S9 R4 R5", RECEIVER, "durable.commit.after", "Handling"),
        Kill("S3 S9 R4 R5", RECEIVER, "durable.commit.after", "Handling", 4),
        Kill("S9 R6", RECEIVER, "durable.commit.reported", "Handling"),
    ],
    # The receiver has a bridge as well, and the sender a consumer.
    "on the way back": [
        Kill("S4 S9 R5", RECEIVER, "durable.bridge.before_send"),
        Kill("S6 R6", RECEIVER, "durable.bridge.after_send", nth=2),
        Kill("B4", RECEIVER, "durable.bridge.accepted"),
        Kill("B3 R1", SENDER, "durable.intake.after_accept"),
        Kill("S8", SENDER, "durable.consumer.handled"),
        Kill("R4", SENDER, "durable.commit.after", "Handling"),
    ],
}

REFUSALS = [
    Kill("R9", RECEIVER, "durable.commit.after", "Acceptance"),
    Kill("R9", RECEIVER, "durable.intake.after_accept"),
    Kill("R9", SENDER, "durable.bridge.accepted"),
    Kill("R9", SENDER, "durable.commit.after", "Settlement"),
]


def test_every_fault_point_of_mail_kills_somebody() -> None:
    points = {name for name in faults.names() if name.startswith("durable.")}
    assert {kill.point for kills in KILLS.values() for kill in kills} == points


@pytest.mark.parametrize("kills", KILLS.values(), ids=KILLS)
async def test_killed(kills: list[Kill], tmp_path: Path) -> None:
    async with mail_nodes(tmp_path, SENDER, RECEIVER) as (sender, receiver):
        receiver.meet(sender)
        first = 0
        for kill in kills:
            victim, other = (sender, receiver) if kill.victim == SENDER else (receiver, sender)
            sender.lose(receiver)
            victim.tell("arm", kill.point, kill.kind, kill.nth)
            was_posted = await post_around(sender, receiver, first)
            count = COUNT
            while was_posted and not await has_died(victim):
                # So much went together that it did not come to the point often enough.
                was_posted = await sender.post(receiver, first + count, BATCH)
                count += BATCH
            if not was_posted:
                await victim.dies()
            await victim.start()
            victim.meet(other)
            if not was_posted:
                assert await sender.post(receiver, first, count)
                sender.meet(receiver)
            await all_quiet(sender, receiver, after=str(kill))
            first += count
            check_ledger(sender, receiver, first, str(kill))


async def has_died(victim: MailNode) -> bool:
    try:
        await victim.dies(NEXT_S)
    except TimeoutError:
        return False
    return True


async def post_around(sender: MailNode, receiver: MailNode, first: int) -> bool:
    """Post half of the messages before the receiver can be reached, and half after."""
    if not await sender.post(receiver, first, COUNT // 2):
        return False
    sender.meet(receiver)
    return await sender.post(receiver, first + COUNT // 2, COUNT // 2)


def check_ledger(sender: MailNode, receiver: MailNode, count: int, kill: str) -> None:
    """Each message was handled once, in the order of its key, and had one receipt."""
    handled = receiver.rows_from(sender)
    assert sorted(handled) == list(range(count)), kill
    assert in_order(handled), kill
    assert sorted(sender.rows_from(receiver, "receipts")) == list(range(count)), kill
    assert sender.dead == receiver.dead == [], kill


async def test_refusal_is_told_once(tmp_path: Path) -> None:
    async with mail_nodes(tmp_path, SENDER, RECEIVER) as (sender, receiver):
        for number, kill in enumerate(REFUSALS):
            victim = sender if kill.victim == SENDER else receiver
            sender.lose(receiver)
            victim.tell("arm", kill.point, kill.kind, kill.nth)
            assert await sender.post(receiver, number * COUNT, COUNT, queue="_closed")
            sender.meet(receiver)
            await victim.dies()
            await victim.start()
            sender.meet(receiver)
            await all_quiet(sender, receiver, after=str(kill))
            assert sender.dead == [(1, "unknown queue", (number + 1) * COUNT)], kill
            assert receiver.dead == [], kill
