"""What guaranteed queues refuse, and what becomes a dead letter."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from postroad.cells import CellMessage, CellPath
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.envelope_codec import encode_envelope
from postroad.core.errors import (
    ConfigError,
    MessageTooLargeError,
    Reject,
    RemoteDecodeError,
    UsageError,
)
from postroad.durable import RetryPolicy
from postroad.node import GuaranteedQueues

from .guaranteed_nodes import (
    AT_ONCE,
    QUEUE,
    Till,
    all_quiet,
    guaranteed_nodes,
    until_dead,
)

ID = bytes(16)
MESSAGE = encode_envelope(Envelope(id=ID, destination=CellPath.of(QUEUE), payload=b"1"))


async def test_handler_that_always_fails_makes_a_dead_letter_to_retry(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 1) as nodes:
        till = await nodes.consumer("C1", failures=3)
        await nodes["S1"].domain.send(QUEUE, b"1")
        (dead,) = await until_dead(nodes["C1"], 1)
        assert (dead.queue, dead.reason, dead.failures) == ("cells.in.payments", "failed", 3)
        assert "as told" in dead.detail
        assert await till.rows() == []
        await nodes["C1"].mail.dead_letters.retry(dead.id)
        assert await till.until(1) == [b"1"]


@pytest.mark.parametrize("error", [Reject("never"), None], ids=["rejected", "undecodable"])
async def test_message_that_cannot_be_handled_is_a_dead_letter_at_once(
    error: Reject | None, tmp_path: Path
) -> None:
    async with guaranteed_nodes(tmp_path, 1, 0) as nodes:
        node = nodes["C1"]
        attempts: list[bytes] = []

        def handle(message: CellMessage) -> None:
            attempts.append(message.payload)
            if error is not None:
                raise error
            message.__class__(message.payload, "klingon").body  # noqa: B018

        node.domain.add_function("till", handle, consume=[QUEUE])
        await nodes.declare()
        await node.domain.send(QUEUE, b"1")
        (dead,) = await until_dead(node, 1)
        assert (dead.reason, dead.failures, attempts) == ("rejected", 1, [b"1"])
        assert ("never" if error else "klingon") in dead.detail


NO_MESSAGES = [
    (b"", "envelope"),
    (b"\xc1 of the next century", "version 193"),
    (MESSAGE[:1] + b"rubbish", "malformed envelope"),
    (MESSAGE[:-2], "malformed envelope"),
    (encode_envelope(Envelope(id=ID, destination=CellPath.of("others"))), "others"),
    (encode_envelope(Envelope(id=ID, destination=CellPath.of("payments@C1"))), "payments@C1"),
    (
        encode_envelope(
            Envelope(id=ID, destination=CellPath.of(QUEUE), kind=MessageKind.REPLY, in_reply_to=ID)
        ),
        "a reply",
    ),
]


async def test_letters_that_are_no_messages_are_dead_and_harm_nobody(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 1) as nodes:
        till = await nodes.consumer("C1")
        cases = [(way, *case) for case in NO_MESSAGES for way in ("in", "out")]
        for number, (way, body, detail) in enumerate(cases):
            await nodes["S1"].mail.send(f"cells.{way}.payments", body, to="C1")
            await nodes["S1"].domain.send(QUEUE, b"%d" % number)
            assert (await till.until(number + 1))[-1] == b"%d" % number, (way, body)
            (dead,) = await until_dead(nodes["C1"], 1)
            assert (dead.queue, dead.reason) == (f"cells.{way}.payments", "rejected"), body
            assert detail in dead.detail, (way, body)
            await nodes["C1"].mail.dead_letters.drop(dead.id)
        await all_quiet(nodes)
        assert await till.rows() == [b"%d" % number for number in range(len(cases))]


async def test_message_whose_time_is_over_is_a_dead_letter(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 0) as nodes:
        await nodes.declare()
        node = nodes["C1"]
        # Somebody has it in hand already, so that the others wait for their turn.
        await node.domain.send(QUEUE, b"1")
        await node.domain.send(QUEUE, b"2", timeout=0.01)
        await node.queues.send(QUEUE, b"3", timeout=600.0)
        await asyncio.sleep(0.05)  # It is time itself that is tested.
        till = await Till.at(node)
        assert sorted(await till.until(2)) == [b"1", b"3"]
        (dead,) = await until_dead(node, 1)
        assert (dead.queue, dead.reason) == ("cells.out.payments", "expired")


async def test_time_that_is_left_travels_with_the_message(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 1) as nodes:
        await nodes.consumer("C1")
        await nodes["C1"].mail.admin.pause("cells.in.payments")
        await nodes["S1"].domain.send(QUEUE, b"1", timeout=0.2)
        await asyncio.sleep(0.25)  # It is time itself that is tested.
        await nodes["C1"].mail.admin.resume("cells.in.payments")
        (dead,) = await until_dead(nodes["C1"], 1)
        assert (dead.queue, dead.reason) == ("cells.in.payments", "expired")


async def test_what_cannot_be_sent_is_refused_by_the_call(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 0) as nodes:
        await nodes.declare()
        queues, domain = nodes["C1"].queues, nodes["C1"].domain
        with pytest.raises(UsageError, match="'others' is not declared"):
            await queues.send("others", b"")
        with pytest.raises(ConfigError, match="'a@b' contains '@'"):
            await queues.send("a@b", b"")
        with pytest.raises(ConfigError, match="cannot encode a body"):
            await domain.send(QUEUE, object())
        with pytest.raises(MessageTooLargeError):
            await domain.send(QUEUE, bytes(2 << 20))
        with pytest.raises(ConfigError, match="33 headers"):
            await domain.send(QUEUE, headers={f"h{n}": "" for n in range(32)})
        with pytest.raises(UsageError, match="must be a str"):
            await queues.send(QUEUE, key=7)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="must be a str"):
            await queues.send(QUEUE, idempotency_key=7)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="longer than 1024"):
            await queues.send(QUEUE, key="k" * 1025)
        assert await nodes["C1"].waiting() == {}


async def test_declarations_that_cannot_be(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 1) as nodes:
        queues = nodes["C1"].queues
        await queues.declare(QUEUE, retry=AT_ONCE)
        await queues.declare(QUEUE, retry=AT_ONCE)
        with pytest.raises(UsageError, match="with other settings"):
            await queues.declare(QUEUE, retry=RetryPolicy(max_attempts=7))
        with pytest.raises(ConfigError, match="'a:b' contains ':'"):
            await queues.declare("a:b")
        with pytest.raises(ConfigError, match="concurrency=0"):
            await queues.declare("others", concurrency=0)
        # What failed half way has left nothing behind.
        await queues.declare("others")
        with pytest.raises(ConfigError, match="longer than 255"):
            await queues.declare("q" * 250)
        with pytest.raises(ConfigError, match="must be of the same node"):
            GuaranteedQueues(nodes["C1"].domain, nodes["S1"].mail)


async def test_declared_at_the_same_time_it_is_declared_once(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 0) as nodes:
        declare = nodes["C1"].queues.declare
        await asyncio.gather(*(declare(QUEUE) for _ in range(3)))
        assert "1 queues" in repr(nodes["C1"].queues)


# The cell that tells who consumes a queue.


async def test_domains_tell_who_consumes_a_queue(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 2) as nodes:
        await Till.at(nodes["S2"])
        await nodes.domains.settled()
        await nodes["C1"].queues.declare(QUEUE)
        domain = nodes["S1"].domain
        assert await domain.call("Guarantees@C1", QUEUE) == {"S2": None}
        assert await domain.call("Guarantees@C1", "others") == {}
        assert await domain.run_command("Guarantees@C1", "ls") == "payments: S2"
        assert await domain.run_command("Guarantees@S2", "ls") == "none"
        with pytest.raises(RemoteDecodeError, match="is a text, not 7"):
            await domain.call("Guarantees@C1", 7)


async def test_core_that_answers_nonsense_or_not_at_all_is_not_believed(tmp_path: Path) -> None:
    answers: list[object] = [{"no such name!": None}, ["S2"], {"S2": 7}, {"S1": None}]

    def answer(message: CellMessage) -> object:
        return answers.pop() if answers else {"S2": None}

    async with guaranteed_nodes(tmp_path, 2, 2) as nodes:
        await nodes["C1"].queues.stop()
        await nodes["C2"].queues.stop()
        nodes["C2"].domain.add_function("Guarantees", answer)
        for name in ("S1", "S2"):
            await nodes[name].queues.declare(QUEUE)
        till = await Till.at(nodes["S2"])
        await nodes["S1"].domain.send(QUEUE, b"1")
        assert await till.until(1) == [b"1"]
        assert answers == []


async def test_message_for_a_domain_without_a_consumer_finds_its_way(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 2) as nodes:
        await nodes.declare()
        till = await Till.at(nodes["S2"])
        await nodes.domains.settled()
        await nodes["C1"].mail.send("cells.in.payments", MESSAGE, to="S1")
        assert await till.until(1) == [b"1"]
        await all_quiet(nodes)
        assert await till.rows() == [b"1"]
