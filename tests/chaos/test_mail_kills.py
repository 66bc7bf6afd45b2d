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

import asyncio
from pathlib import Path

import psycopg
import pytest

from postroad.core import fault_points as faults
from tests.chaos.kills import COUNT, Kill, kill_cases, live_through, start_again
from tests.support.deadlines import eventually
from tests.support.durable.mail_processes import (
    POSTGRES,
    STORES,
    MailNode,
    all_quiet,
    in_order,
    introduce,
    mail_nodes,
)

# Who dies. Both have a bridge and consumers: one for the messages, the other for the receipts.
SENDER, RECEIVER = "sender", "receiver"

KILLS = {
    "into the outbox": [
        Kill(SENDER, "durable.commit.before", "SendMutation", ids="S1"),
        Kill(SENDER, "durable.commit.before", "SendMutation", 3, ids="S1"),
        Kill(SENDER, "durable.commit.after", "SendMutation", ids="S2"),
        Kill(SENDER, "durable.commit.after", "SendMutation", 6, ids="S2"),
        Kill(SENDER, "durable.commit.reported", "SendMutation", ids="S10"),
    ],
    "out of the outbox": [
        Kill(SENDER, "durable.bridge.before_send", ids="S4 B1"),
        Kill(SENDER, "durable.bridge.before_send", nth=3, ids="S5 B1"),
        Kill(SENDER, "durable.bridge.after_send", ids="S6 B2"),
        Kill(SENDER, "durable.bridge.after_send", nth=3, ids="S5 B2"),
        Kill(SENDER, "durable.bridge.accepted", ids="B4"),
        Kill(SENDER, "durable.bridge.accepted", nth=4, ids="B4"),
        Kill(SENDER, "durable.commit.before", "OutboxAckMutation", ids="B4"),
        Kill(SENDER, "durable.commit.after", "OutboxAckMutation", ids="B4"),
        Kill(SENDER, "durable.commit.reported", "OutboxAckMutation", ids="B4"),
    ],
    "into the inbox": [
        Kill(RECEIVER, "durable.receiver.before_accept", ids="B2"),
        Kill(RECEIVER, "durable.receiver.before_accept", nth=3, ids="B2 B5"),
        Kill(RECEIVER, "durable.commit.before", "WindowMutation", 2, ids="B2 B5"),
        Kill(RECEIVER, "durable.commit.after", "WindowMutation", ids="B3 R1"),
        Kill(RECEIVER, "durable.commit.reported", "WindowMutation", ids="B3 R1"),
        Kill(RECEIVER, "durable.receiver.after_accept", ids="B3 R1"),
        Kill(RECEIVER, "durable.receiver.after_accept", nth=4, ids="B3 R8"),
    ],
    "through the handler": [
        Kill(RECEIVER, "durable.consumer.dispatched", ids="R2"),
        Kill(RECEIVER, "durable.consumer.dispatched", nth=11, ids="R2 R7"),
        Kill(RECEIVER, "durable.consumer.handled", ids="S8"),
        Kill(RECEIVER, "durable.consumer.handled", nth=11, ids="S8 R7"),
        Kill(RECEIVER, "durable.commit.before", "DispositionMutation", ids="R3"),
        Kill(RECEIVER, "durable.commit.after", "DispositionMutation", ids="S3 S9 R4 R5"),
        Kill(RECEIVER, "durable.commit.after", "DispositionMutation", 4, ids="S3 S9 R4 R5"),
        Kill(RECEIVER, "durable.commit.reported", "DispositionMutation", ids="S9 R6"),
    ],
    # The receiver has a bridge as well, and the sender a consumer.
    "on the way back": [
        Kill(RECEIVER, "durable.bridge.before_send", ids="S4 S9 R5"),
        Kill(RECEIVER, "durable.bridge.after_send", nth=2, ids="S6 R6"),
        Kill(RECEIVER, "durable.bridge.accepted", ids="B4"),
        Kill(SENDER, "durable.receiver.after_accept", ids="B3 R1"),
        Kill(SENDER, "durable.consumer.handled", ids="S8"),
        Kill(SENDER, "durable.commit.after", "DispositionMutation", ids="R4"),
    ],
}

REFUSALS = [
    Kill(RECEIVER, "durable.commit.after", "WindowMutation", ids="R9"),
    Kill(RECEIVER, "durable.receiver.after_accept", ids="R9"),
    Kill(SENDER, "durable.bridge.accepted", ids="R9"),
    Kill(SENDER, "durable.commit.after", "OutboxAckMutation", ids="R9"),
]


def test_every_fault_point_of_mail_kills_somebody() -> None:
    points = {name for name in faults.fault_point_names() if name.startswith("durable.")}
    assert {kill.point for kills in KILLS.values() for kill in kills} == points


@pytest.mark.parametrize(("store", "kills"), kill_cases(KILLS, STORES))
async def test_mail_around_a_kill_is_handled_once(
    store: str, kills: list[Kill], tmp_path: Path
) -> None:
    async with mail_nodes(tmp_path, SENDER, RECEIVER, store=store) as nodes:
        sender, receiver = nodes
        receiver.meet(sender)

        async def post(first: int, count: int) -> bool:
            return await sender.post(receiver, first, count)

        end = 0
        for kill in kills:
            end = await live_through(kill, nodes, post, end, apart=(sender, receiver))
            check_ledger(sender, receiver, end, str(kill))


def check_ledger(sender: MailNode, receiver: MailNode, count: int, kill: str) -> None:
    """Each message was handled once, in the order of its key, and had one receipt."""
    handled = receiver.rows_from(sender)
    assert sorted(handled) == list(range(count)), kill
    assert in_order(handled), kill
    assert sorted(sender.rows_from(receiver, "receipts")) == list(range(count)), kill
    assert sender.dead == receiver.dead == [], kill


@pytest.mark.parametrize("store", STORES)
async def test_refusal_around_a_kill_is_told_once(store: str, tmp_path: Path) -> None:
    async with mail_nodes(tmp_path, SENDER, RECEIVER, store=store) as (sender, receiver):
        for number, kill in enumerate(REFUSALS):
            victim = sender if kill.victim == SENDER else receiver
            sender.lose(receiver)
            victim.tell("arm", kill.point, kill.kind, kill.nth)
            # It obeys in order: with an answer to this it is armed.
            assert await victim.post(sender, 0, 0)
            assert await sender.post(receiver, number * COUNT, COUNT, queue="_closed")
            sender.meet(receiver)
            await victim.dies()
            await victim.start()
            sender.meet(receiver)
            await all_quiet(sender, receiver, after=str(kill))
            assert sender.dead == [(1, "unknown queue", (number + 1) * COUNT)], kill
            assert receiver.dead == [], kill


async def test_node_killed_while_its_server_is_busy_starts_when_that_has_noticed(
    tmp_path: Path,
) -> None:
    """Until then its session has the lock of the store, and may still commit."""
    async with mail_nodes(tmp_path, SENDER, RECEIVER, store=POSTGRES) as nodes:
        sender, receiver = nodes
        introduce(*nodes)
        with psycopg.connect(receiver.dsn) as rival:
            rival.execute(f"LOCK TABLE {RECEIVER}.handled".encode())
            assert await sender.post(receiver, 0, COUNT)
            await until_one_session(sender, "wait_event_type = 'Lock'")
            await receiver.kill()
            starting = asyncio.ensure_future(start_again(receiver, nodes))
            await until_one_session(sender, "query LIKE '%pg_try_advisory_lock%'")
            rival.rollback()
        await starting
        await all_quiet(*nodes)
        check_ledger(sender, receiver, COUNT, "a busy server")


async def until_one_session(node: MailNode, condition: str) -> None:
    """Wait until one session of any node on a server is like that."""
    statement = f"SELECT COUNT(*) FROM pg_stat_activity WHERE {condition}"
    others = f"{statement} AND pid <> pg_backend_pid()"
    await eventually(lambda: node.query(others) == [(1,)], condition)
