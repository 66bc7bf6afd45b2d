"""Messages to guaranteed queues: where they wait, who handles them, and that it happens once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from postroad.cells import CellBusyError, CellMessage, CellPath
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.delivery.envelope_codec import encode_envelope
from postroad.core import fault_points as faults
from postroad.core.errors import IdempotencyConflictError, NotRunningError, UsageError
from postroad.node import ID_HEADER, KEY_HEADER, GuaranteedQueues
from tests.support.cells.nodes import Gate, Inbox, quick
from tests.support.deadlines import eventually

from .guaranteed_nodes import (
    AT_ONCE,
    MAIL,
    QUEUE,
    QUICK,
    Till,
    all_quiet,
    guaranteed_nodes,
    until_dead,
    until_waiting,
)


async def test_message_from_a_satellite_is_handled_once_at_another(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 3) as nodes:
        till = await nodes.consumer("S2")
        for number in range(20):
            await nodes["S1"].domain.send(QUEUE, b"%d" % number, session="a", headers={"x": "y"})
        rows = await till.until(20)
        await all_quiet(nodes)
        assert sorted(rows, key=int) == [b"%d" % number for number in range(20)]
        assert await till.rows() == rows
        message = till.messages[0]
        assert (str(message.sender), message.route_name) == ("System@S1", QUEUE)
        assert message.session == "a"
        assert message.headers is not None
        assert message.headers["x"] == "y"
        ids = {it.headers[ID_HEADER] for it in till.messages if it.headers}
        assert len(ids) == 20


async def test_a_core_and_a_domain_itself_can_be_the_consumer(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 1) as nodes:
        till = await nodes.consumer("C1")
        await nodes["S1"].domain.send(QUEUE, b"1")
        await nodes["C1"].domain.send(QUEUE, b"2")
        assert sorted(await till.until(2)) == [b"1", b"2"]


async def test_it_is_shared_by_all_domains_that_consume_it(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 2, 3) as nodes:
        tills = [await Till.at(nodes[name]) for name in ("C2", "S1", "S2")]
        await nodes.domains.settled()
        await nodes.declare()
        for number in range(60):
            await nodes["C1"].domain.send(QUEUE, b"%d" % number)

        async def are_all_there() -> bool:
            return sum([len(await till.rows()) for till in tills]) >= 60

        await eventually(are_all_there, "60 rows")
        await all_quiet(nodes)
        shares = [await till.rows() for till in tills]
        assert sorted(int(row) for share in shares for row in share) == list(range(60))
        assert all(len(share) > 5 for share in shares)


async def test_message_that_nobody_consumes_waits_and_is_no_dead_letter(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 2) as nodes:
        await nodes.declare()
        for number in range(5):
            await nodes["S1"].domain.send(QUEUE, b"%d" % number, headers={KEY_HEADER: "k"})
        # They are durable as soon as `send` has returned.
        assert await nodes["S1"].waiting() == {"cells.out.payments": 5}
        till = await Till.at(nodes["S2"])
        assert await till.until(5) == [b"0", b"1", b"2", b"3", b"4"]
        await all_quiet(nodes)
        assert await nodes["S1"].dead() == []


async def test_waiting_longer_than_a_message_is_held_in_hand_kills_none(tmp_path: Path) -> None:
    config = msgspec.structs.replace(MAIL, handler_timeout_s=0.1)
    async with guaranteed_nodes(tmp_path, 0, 1, mail=config) as nodes:
        await nodes.declare()
        await nodes["S1"].domain.send(QUEUE, b"1")
        consumption = nodes["S1"].mail.dispatchers.get("cells.out.payments")
        # As often as would have killed a message of any other queue.
        await eventually(lambda: consumption.failed > 12)
        till = await Till.at(nodes["S1"])
        assert await till.until(1) == [b"1"]
        assert await nodes["S1"].dead() == []


async def test_handler_that_fails_twice_has_left_one_row(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 1) as nodes:
        till = await nodes.consumer("C1", failures=2)
        await nodes["S1"].domain.send(QUEUE, b"1")
        assert await till.until(1) == [b"1"]
        assert till.attempts == [b"1"] * 3
        await all_quiet(nodes)
        assert await till.rows() == [b"1"]


async def test_consumer_that_moves_takes_what_waits_with_it(tmp_path: Path) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    async def stuck(message: CellMessage) -> None:
        started.set()
        await gate.wait()

    async with guaranteed_nodes(tmp_path, 1, 3) as nodes:
        nodes["S1"].domain.add_function("till", stuck, consume=[QUEUE])
        await nodes.domains.settled()
        await nodes.declare()
        for number in range(10):
            await nodes["S3"].queues.send(QUEUE, b"%d" % number, key="k")
        await started.wait()
        await until_waiting(nodes["S1"], {"cells.in.payments": 10})
        till = await Till.at(nodes["S2"])
        await nodes["S1"].domain.remove_cell("till", grace=0.0)
        assert await till.until(10) == [b"%d" % number for number in range(10)]
        await all_quiet(nodes)
        assert len(await till.rows()) == 10


async def test_messages_wait_for_a_cell_that_is_replaced(tmp_path: Path) -> None:
    """However long ago the one before it was let in, and its last message came."""
    times = msgspec.structs.replace(QUICK, patience_s=1.5)
    passed: list[object] = []
    async with guaranteed_nodes(tmp_path, 1, 2, times=times) as nodes:
        consumer = nodes["S2"]
        await Till.at(consumer)
        await nodes.domains.settled()
        await nodes.declare()
        await consumer.mail.admin.pause("cells.in.payments")
        await nodes["S1"].domain.send(QUEUE, b"1")
        await until_waiting(consumer, {"cells.in.payments": 1})
        await consumer.domain.remove_cell("till")
        await asyncio.sleep(1.6)  # It is time itself that is tested.
        with faults.arm_fault_point("node.guaranteed.passed", lambda **told: passed.append(told)):
            await consumer.mail.admin.resume("cells.in.payments")
            await asyncio.sleep(0.1)
            till = await Till.at(consumer)
            assert await till.until(1) == [b"1"]
        assert passed == []


async def test_drained_consumer_finishes_and_the_rest_goes_elsewhere(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 2) as nodes:
        first = await nodes.consumer("S1")
        await nodes["C1"].domain.send(QUEUE, b"1")
        assert await first.until(1) == [b"1"]
        second = await Till.at(nodes["S2"])
        await nodes["S1"].mail.admin.pause("cells.in.payments")
        assert await nodes["S1"].domain.drain_cell("till")
        nodes["S1"].domain.consume("till", "another")
        await nodes["S1"].domain.send(QUEUE, b"2")
        assert await second.until(1) == [b"2"]
        await nodes["S1"].mail.admin.resume("cells.in.payments")
        await all_quiet(nodes)
        assert await first.rows() == [b"1"]


async def test_messages_of_a_key_stay_in_order_while_some_fail(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 2) as nodes:
        till = await Till.at(nodes["S2"], failures=2)
        await nodes.domains.settled()
        await nodes.declare(concurrency=4)
        for number in range(40):
            await nodes["S1"].queues.send(QUEUE, b"%d" % number, key=f"{number % 2}")
        numbers = [int(row) for row in await till.until(40)]
        assert [it for it in numbers if it % 2] == list(range(1, 40, 2))
        assert [it for it in numbers if not it % 2] == list(range(0, 40, 2))


async def test_all_messages_of_a_key_go_to_one_consumer(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 0) as nodes:
        tills = [await Till.at(nodes["C1"], cell) for cell in ("a", "b", "c")]
        await nodes.declare()
        for key in "pqrstuvw":
            for _ in range(3):
                await nodes["C1"].queues.send(QUEUE, key, key=key)
        await tills[0].until(24)
        shares = [till.attempts for till in tills]
        assert all(share.count(key) in (0, 3) for share in shares for key in set(share))
        assert sum(map(bool, shares)) > 1


async def test_sending_again_with_the_same_idempotency_key_does_nothing(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 0) as nodes:
        till = await Till.at(nodes["C1"])
        await nodes.declare()
        await nodes.declare("refunds")
        queues = nodes["C1"].queues
        for _ in range(3):
            await queues.send(QUEUE, b"1", key="k", idempotency_key="one")
        # Another queue, another message.
        await queues.send("refunds", b"2", idempotency_key="one")
        with pytest.raises(IdempotencyConflictError):
            await queues.send(QUEUE, b"2", key="k", idempotency_key="one")
        await queues.send(QUEUE, b"3", idempotency_key="")
        assert sorted(await till.until(2)) == [b"1", b"3"]
        await until_waiting(nodes["C1"], {"cells.out.refunds": 1})
        assert sorted(await till.rows()) == [b"1", b"3"]


async def test_what_a_handler_sends_is_sent_with_what_it_writes_or_never(tmp_path: Path) -> None:
    attempts: list[int] = []
    async with guaranteed_nodes(tmp_path, 1, 1) as nodes:
        node = nodes["S1"]

        async def order(message: CellMessage) -> None:
            attempts.append(1)
            await message.transaction.execute("INSERT INTO paid VALUES ('order')")
            await node.queues.send(QUEUE, b"pay", transaction=message.transaction)
            if len(attempts) < 3:
                raise ValueError("as told")

        till = await Till.at(nodes["C1"])
        await Till.at(node, "unused")
        node.domain.stop_consuming("unused", QUEUE)
        node.domain.add_function("orders", order, consume=["orders"])
        await nodes.domains.settled()
        await nodes.declare()
        await nodes.declare("orders")
        await nodes["C1"].domain.send("orders", b"")
        assert await till.until(1) == [b"pay"]
        await all_quiet(nodes)
        assert (await till.rows(), len(attempts)) == ([b"pay"], 3)
        async with node.mail.transaction() as tx:
            assert await tx.execute("SELECT count(*) FROM paid") == [(1,)]


async def test_waiting_for_a_send_in_ones_own_transaction_is_refused(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 0) as nodes:
        node = nodes["C1"]

        async def handle(message: CellMessage) -> None:
            await message.transaction.execute("SELECT 1")
            await node.domain.send("others", b"never")

        node.domain.add_function("till", handle, consume=[QUEUE])
        await nodes.declare()
        await nodes.declare("others")
        await node.domain.send(QUEUE, b"1")
        (dead,) = await until_dead(node, 1)
        assert "pass tx=tx" in dead.detail
        assert await node.waiting() == {}


async def test_message_waits_while_its_cell_is_busy(tmp_path: Path) -> None:
    gate = asyncio.Event()
    handled: list[bytes] = []

    async def slow(message: CellMessage) -> None:
        await gate.wait()
        handled.append(message.payload)

    async with guaranteed_nodes(tmp_path, 1, 0) as nodes:
        domain = nodes["C1"].domain
        domain.config = quick(mailbox_messages_max=1)
        domain._dispatcher.config = domain.config
        domain.add_function("till", slow, consume=[QUEUE])
        await nodes.declare()
        # One is handled, one waits: there is no room for the one that is guaranteed.
        domain.send_nowait("till", b"1")
        domain.send_nowait("till", b"2")
        with pytest.raises(CellBusyError):
            domain.send_nowait("till", b"refused")
        await domain.send(QUEUE, b"3")
        await until_waiting(nodes["C1"], {"cells.in.payments": 1})
        gate.set()
        await all_quiet(nodes)
        assert (handled, await nodes["C1"].dead()) == ([b"1", b"2", b"3"], [])


async def test_what_waited_too_long_for_its_cell_is_not_handled_any_more(tmp_path: Path) -> None:
    gate = asyncio.Event()
    handled: list[bytes] = []

    async def slow(message: CellMessage) -> None:
        await gate.wait()
        handled.append(message.payload)

    config = msgspec.structs.replace(MAIL, handler_timeout_s=0.1)
    async with guaranteed_nodes(tmp_path, 1, 0, mail=config) as nodes:
        domain = nodes["C1"].domain
        domain.add_function("till", slow, consume=[QUEUE])
        await nodes.declare()
        domain.send_nowait("till", b"1")
        await domain.send(QUEUE, b"2")
        (dead,) = await until_dead(nodes["C1"], 1)
        assert (dead.reason, dead.failures) == ("failed", AT_ONCE.max_attempts)
        gate.set()
        assert await domain.call("till", b"3") == b""
        assert handled == [b"1", b"3"]


async def test_mail_for_a_domain_that_cannot_be_reached_waits(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 2) as nodes:
        till = await nodes.consumer("S2")
        nodes["S1"].directory.set("S2", None)
        await nodes["S1"].domain.send(QUEUE, b"1")

        async def waits_in_outbox() -> bool:
            peers = (await nodes["S1"].mail.statistics()).peers
            return "S2" in peers and peers["S2"].depth == 1

        await eventually(waits_in_outbox, "the outbox of S2 has the message")
        nodes["S1"].directory.set("S2", nodes["S2"].domain.service.address)
        assert await till.until(1) == [b"1"]


async def test_what_waits_when_queues_stop_is_handled_by_the_next(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 0) as nodes:
        node = nodes["C1"]
        await nodes.declare()
        await node.domain.send(QUEUE, b"1")
        await node.queues.stop()
        await node.queues.stop()
        with pytest.raises(NotRunningError, match="not running"):
            await node.domain.send(QUEUE, b"2")
        with pytest.raises(NotRunningError):
            await node.queues.declare("others")
        with pytest.raises(UsageError, match="started already"):
            await node.queues.start()
        assert "Guarantees" not in node.domain.cells
        till = await Till.at(node)
        async with GuaranteedQueues(node.domain, node.mail, config=QUICK) as queues:
            await queues.declare(QUEUE, retry=AT_ONCE)
            await node.domain.send(QUEUE, b"3")
            assert sorted(await till.until(2)) == [b"1", b"3"]


async def test_queues_that_stop_leave_nobody_at_work_on_their_messages(tmp_path: Path) -> None:
    async with guaranteed_nodes(tmp_path, 1, 0) as nodes:
        node, gate = nodes["C1"], Gate()
        node.domain.add_function("till", gate, consume=[QUEUE])
        runner = node.domain._runner("till")
        await nodes.declare(concurrency=2)
        for payload in (b"1", b"2"):
            await node.domain.send(QUEUE, payload)
        await eventually(lambda: gate.begun and len(runner.mailbox) == 1)
        await node.queues.stop(0.05)
        assert gate.cancelled == 1
        await runner.wait_idle()
        assert len(gate.begun) == 1
        # Nor does anything of them listen to routes.
        assert not node.domain.dispatcher.registry.listeners
        gate.open()
        async with GuaranteedQueues(node.domain, node.mail, config=QUICK) as queues:
            await queues.declare(QUEUE, retry=AT_ONCE)
            await eventually(lambda: sorted(gate.finished) == [b"1", b"2"])


async def test_plain_queues_and_calls_of_the_same_domains_are_as_before(tmp_path: Path) -> None:
    inbox = Inbox()
    async with guaranteed_nodes(tmp_path, 1, 2) as nodes:
        nodes["S2"].domain.add_function("till", inbox, consume=[QUEUE, "plain"])
        await nodes.domains.settled()
        await nodes.declare()
        domain = nodes["S1"].domain
        await domain.send("plain", b"1")
        assert await domain.call("plain", b"2") == b"2"
        # A call wants an answer, and gets it or an error: it is never mail.
        assert await domain.call(QUEUE, b"3") == b"3"
        with pytest.raises(UsageError, match="guaranteed"):
            domain.send_nowait(QUEUE, b"4")
        assert inbox.payloads == [b"1", b"2", b"3"]
        assert [message.transaction for message in inbox.messages] == [None] * 3
        assert await nodes["S1"].waiting() == {}


async def test_nobody_sends_as_a_cell_of_another_node(tmp_path: Path) -> None:
    """Neither straight to who consumes the queue, nor by the queue of whom it pretends to be."""
    async with guaranteed_nodes(tmp_path, 1, 2) as nodes:
        till = await nodes.consumer("C1")
        forged = Envelope(
            id=bytes(16),
            destination=CellPath.of(QUEUE),
            source=CellPath.of("treasurer@S1"),
            payload=b"forged",
        )
        thief, body = nodes["S2"].mail, encode_envelope(forged)
        await thief.send(f"cells.in.{QUEUE}", body, to="C1")
        await thief.send(f"cells.out.{QUEUE}", body, to="S1")
        await till.until(2)
        senders = sorted(str(it.sender) for it in till.messages)
        assert senders == ["Guarantees@S1", "Guarantees@S2"]
        await nodes["S1"].domain.send(QUEUE, b"honest")
        await till.until(3)
        assert str(till.messages[-1].sender) == "System@S1"
