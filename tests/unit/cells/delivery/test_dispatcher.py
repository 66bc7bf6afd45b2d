"""Messages in an exchange: their ids, whom they count for, and what they weigh."""

from itertools import pairwise

import pytest

from postroad.cells import CellBusyError, CellPath, CellsConfig, Role
from postroad.cells.delivery.envelope import ID_BYTES
from postroad.cells.routing.decision import LOCAL_ORIGIN, MessageOrigin
from tests.support.cells.nodes import Gate, Inbox
from tests.support.cells.offline_domain import Workshop, make_request
from tests.support.deadlines import eventually

COUNT = 2_000


async def test_new_id_repeated_is_unique_and_random() -> None:
    exchanges = [Workshop().dispatcher for _ in range(2)]
    ids = [dispatcher.new_id() for dispatcher in exchanges for _ in range(COUNT)]
    assert len(set(ids)) == 2 * COUNT
    assert {len(id) for id in ids} == {ID_BYTES}

    dispatcher = Workshop().dispatcher
    ids = [dispatcher.new_id() for _ in range(COUNT)]
    for half in (slice(8), slice(8, 16)):
        numbers = [int.from_bytes(id[half]) for id in ids]
        assert len(set(numbers)) == COUNT
        steps = [after - before for before, after in pairwise(numbers)]
        assert len(set(steps)) == len(steps)
        assert min(abs(step) for step in steps) > 1 << 32


async def test_dispatcher_each_message_gets_new_id() -> None:
    shop, inbox = Workshop(), Inbox()
    shop.add("a", inbox)
    for _ in range(3):
        shop.send_nowait("a")
        await shop.call("a")
    await eventually(lambda: len(inbox.messages) == 6)
    assert len({message.id for message in inbox.messages}) == 6


CORE = MessageOrigin.from_peer("C1", Role.CORE)


SATELLITE = MessageOrigin.from_peer("S2", Role.SATELLITE)


async def test_fairness_key_of_forwarded_message_is_source_domain(
    subtests: pytest.Subtests,
) -> None:
    for source, origin, share in [
        ("p@S1", LOCAL_ORIGIN, ("S1", None)),
        ("p@S3:*@S3", LOCAL_ORIGIN, ("S1", None)),
        ("p@C1:*@C1", CORE, ("C1", "C1")),
        ("p@S3:*@S3:*@C1", CORE, ("S3", "C1")),
        ("p@S3:*@S3:*@C2:*@C1", CORE, ("C2", "C1")),
        ("p@S2:*@S2", SATELLITE, ("S2", None)),
        # A satellite can write what it likes before its own name.
        ("p@S3:*@S3:*@S2", SATELLITE, ("S2", None)),
        ("*@C1", CORE, ("C1", "C1")),
    ]:
        with subtests.test(source=source):
            envelope = make_request("a@S1", source=CellPath.parse(source))
            assert Workshop().dispatcher.fairness_key(envelope, origin) == share


async def test_mailbox_flood_through_core_leaves_capacity() -> None:
    shop, gate = Workshop(CellsConfig(mailbox_messages_max=100)), Gate()
    runner = shop.add("a", gate)
    dock = shop.connect("C1")
    shop.send_nowait("a", b"working")
    for _ in range(200):
        shop.arrive("a@S1", b"flood", source=CellPath.parse("p@S2:*@S2:*@C1"))
    # Half of the places are the core's, and a part of them is left to others behind it.
    assert [failure.code for failure in dock.failures()] == [CellBusyError.code] * 166
    for _ in range(10):
        shop.arrive("a@S1", b"quiet", source=CellPath.parse("p@S3:*@S3:*@C1"))
    shop.arrive("a@S1", b"own", source=CellPath.parse("p@C1:*@C1"))
    assert len(dock.failures()) == 166

    gate.open()
    await runner.wait_idle()
    assert gate.finished == [b"working", *[b"flood"] * 34, *[b"quiet"] * 10, b"own"]


async def test_mailbox_empty_payloads_count_as_memory() -> None:
    weight = make_request("a@S1").memory_bytes
    shop, gate = Workshop(CellsConfig(mailbox_bytes_max=10 * weight)), Gate()
    runner = shop.add("a", gate)
    dock = shop.connect("C1")
    shop.send_nowait("a", b"working")
    for _ in range(20):
        shop.arrive("a@S1")
    assert runner.mailbox.bytes == 4 * weight
    assert [failure.code for failure in dock.failures()] == [CellBusyError.code] * 16
    gate.open()
    await runner.wait_idle()


async def test_dispatcher_reply_with_full_queue_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    shop, inbox = Workshop(), Inbox()
    dock = shop.connect("C1")
    shop.add("a", inbox)
    dock.is_full = True
    shop.arrive("a@S1", b"x", source=CellPath.parse("p@C1:*@C1"))
    assert inbox.payloads == [b"x"]
    assert "message to p@C1 not delivered: queue of to-C1 is full" in caplog.text
    assert shop.dispatcher.statistics.refused == 1
