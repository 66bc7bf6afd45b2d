"""A cell at work: order, concurrency, bounds and time."""

import asyncio
from typing import Any

import pytest

from postroad.cells import CellBusyError, CellMessage, CellPath, CellsConfig, MessageExpiredError
from postroad.cells.sender import _CALLS_BEFORE_YIELD
from tests.support.cells.nodes import Gate, Inbox
from tests.support.cells.offline_domain import Workshop, make_request
from tests.support.deadlines import DEADLINE_S, eventually

PAYLOADS = [bytes([n]) for n in range(50)]


class Mixed:
    """Handles every other message as a coroutine, and notes when it begins and ends with each."""

    def __init__(self) -> None:
        self.log: list[tuple[str, bytes]] = []

    def __call__(self, message: CellMessage) -> Any:
        self.log.append(("begin", message.payload))
        if message.payload[0] % 2:
            return self._work(message)
        self.log.append(("end", message.payload))
        return message.payload

    async def _work(self, message: CellMessage) -> bytes:
        for _ in range(message.payload[0] % 5):
            await asyncio.sleep(0)
        self.log.append(("end", message.payload))
        return message.payload


async def test_messages_are_handled_in_order_and_one_at_a_time() -> None:
    shop, inbox = Workshop(), Inbox()
    shop.add("a", inbox)
    for payload in PAYLOADS:
        shop.send_nowait("a", payload)
    assert inbox.payloads == PAYLOADS

    shop, handler = Workshop(), Mixed()
    runner = shop.add("a", handler)
    for payload in PAYLOADS:
        shop.send_nowait("a", payload)
    await runner.wait_idle()
    expected = [(what, payload) for payload in PAYLOADS for what in ("begin", "end")]
    assert handler.log == expected


async def test_calls_and_messages_share_one_order() -> None:
    shop, handler = Workshop(), Mixed()
    shop.add("a", handler)
    # So that some of the calls could go the short way.
    await shop.call("a", PAYLOADS[0])
    handler.log.clear()
    calls = []
    for payload in PAYLOADS:
        if payload[0] % 3:
            calls.append(asyncio.ensure_future(shop.call("a", payload)))
            await asyncio.sleep(0)
        else:
            shop.send_nowait("a", payload)
    answers = await asyncio.gather(*calls)

    assert answers == [payload for payload in PAYLOADS if payload[0] % 3]
    expected = [(what, payload) for payload in PAYLOADS for what in ("begin", "end")]
    assert handler.log == expected


async def test_call_that_yields_the_loop_counts_as_work_at_once() -> None:
    shop, handler = Workshop(), Mixed()
    runner = shop.add("a", handler)
    for _ in range(_CALLS_BEFORE_YIELD - 1):
        await shop.call("a", b"\0")
    handler.log.clear()
    payloads = [b"\3", b"\1"]
    calls = [asyncio.ensure_future(shop.call("a", payload)) for payload in payloads]
    await asyncio.sleep(0)
    assert runner.handled == _CALLS_BEFORE_YIELD
    assert not runner.is_idle
    assert not runner.is_free

    assert await asyncio.gather(*calls) == payloads
    assert handler.log == [(what, payload) for payload in payloads for what in ("begin", "end")]


async def test_a_slow_cell_does_not_hold_up_others_and_uses_its_concurrency() -> None:
    shop, gate, inbox = Workshop(), Gate(), Inbox()
    slow = shop.add("slow", gate)
    shop.add("quick", inbox)
    shop.send_nowait("slow", b"1")
    shop.send_nowait("slow", b"2")
    assert await shop.call("quick", b"3") == b"3"
    assert not gate.finished
    gate.open()
    await slow.wait_idle()

    shop, gate = Workshop(), Gate()
    runner = shop.add("a", gate, concurrency=3)
    for payload in PAYLOADS[:10]:
        shop.send_nowait("a", payload)
    await eventually(lambda: len(gate.begun) == 3)
    await asyncio.sleep(0.01)
    assert gate.begun == PAYLOADS[:3]
    assert len(runner.mailbox) == 7
    gate.open()
    await runner.wait_idle()
    assert sorted(gate.finished) == PAYLOADS[:10]


async def test_many_queued_messages_yield_to_other_tasks() -> None:
    shop, inbox = Workshop(), Inbox()
    turns: list[int] = []

    def busy(message: CellMessage) -> None:
        turns.append(len(inbox.messages))

    def flood(message: CellMessage) -> None:
        for payload in range(500):
            shop.send_nowait("busy", bytes([payload % 256]))

    shop.add("flood", flood)
    runner = shop.add("busy", busy)
    shop.add("other", inbox)
    shop.send_nowait("flood", b"")
    await asyncio.sleep(0)
    shop.send_nowait("other", b"")
    await runner.wait_idle()

    assert len(turns) == 500
    assert turns[0] == 0 and turns[-1] == 1


async def test_a_handler_that_sends_to_itself_is_not_called_within_itself() -> None:
    shop = Workshop(CellsConfig(mailbox_messages_max=100_000))
    depth = 0
    depths: list[int] = []

    def again(message: CellMessage) -> None:
        nonlocal depth
        depth += 1
        depths.append(depth)
        if len(depths) < 5_000:
            shop.send_nowait("a", b"")
        depth -= 1

    runner = shop.add("a", again)
    shop.send_nowait("a", b"")
    await runner.wait_idle()
    assert depths == [1] * 5_000


async def test_two_handlers_that_send_to_each_other_are_not_called_within_each_other() -> None:
    shop = Workshop()
    log: list[str] = []

    def make(name: str, other: str) -> Any:
        def handler(message: CellMessage) -> None:
            log.append(f"{name} begins")
            if len(log) < 40:
                shop.send_nowait(other, b"")
            log.append(f"{name} ends")

        return handler

    runners = [shop.add("a", make("a", "b")), shop.add("b", make("b", "a"))]
    shop.send_nowait("a", b"")
    await eventually(lambda: all(runner.is_idle for runner in runners) and len(log) >= 40)
    assert all(log[i].split()[0] == log[i + 1].split()[0] for i in range(0, len(log), 2))


async def test_a_coroutine_that_calls_its_own_cell_gets_an_answer_with_more_concurrency() -> None:
    shop = Workshop()

    async def handler(message: CellMessage) -> bytes:
        if message.payload == b"outer":
            inner: bytes = await shop.call("a", b"inner", timeout=5)
            return b"outer " + inner
        return message.payload

    shop.add("a", handler, concurrency=2)
    assert await shop.call("a", b"outer") == b"outer inner"


async def test_coroutine_calling_its_own_serial_cell_times_out() -> None:
    """It waits for itself; nothing worse comes of it than a time-out."""
    shop = Workshop()

    async def handler(message: CellMessage) -> bytes:
        if message.payload == b"outer":
            return b"%d" % isinstance(await failing(shop, "a"), TimeoutError)
        return message.payload

    async def failing(shop: Workshop, name: str) -> BaseException | None:
        try:
            await shop.call(name, b"inner", timeout=0.05)
        except TimeoutError as error:
            return error
        return None

    runner = shop.add("a", handler)
    assert await shop.call("a", b"outer", timeout=5) == b"1"
    await runner.wait_idle()
    assert shop.pending == 0


async def test_full_mailbox_refuses_and_never_handles_the_refused() -> None:
    shop, gate = Workshop(CellsConfig(mailbox_messages_max=10)), Gate()
    runner = shop.add("a", gate)
    taken, refused = [], []
    for payload in PAYLOADS:
        try:
            shop.send_nowait("a", payload)
            taken.append(payload)
        except CellBusyError:
            refused.append(payload)
    # One is worked on, and one sender gets half of the places.
    assert taken == PAYLOADS[:6]
    assert shop.dispatcher.statistics.refused == len(refused) == 44

    gate.open()
    await runner.wait_idle()
    assert gate.finished == taken
    shop.send_nowait("a", b"again")
    await runner.wait_idle()
    assert gate.finished == [*taken, b"again"]


async def test_bytes_that_wait_are_bounded_and_publications_lost_are_counted() -> None:
    weight = make_request("a", bytes(100), source=CellPath.of("System@S1")).memory_bytes
    shop, gate = Workshop(CellsConfig(mailbox_bytes_max=10 * weight)), Gate()
    runner = shop.add("a", gate)
    shop.send_nowait("a", b"working")
    for _ in range(5):
        shop.send_nowait("a", bytes(100))
    with pytest.raises(CellBusyError, match="mailbox of cell a is full: 5 messages"):
        shop.send_nowait("a", bytes(100))
    assert runner.mailbox.bytes == 5 * weight
    gate.open()
    await runner.wait_idle()

    shop, gate = Workshop(CellsConfig(mailbox_messages_max=2)), Gate()
    shop.add("slow", gate, subscribe=["news"])
    inbox = Inbox()
    shop.add("quick", inbox, subscribe=["news"])
    for payload in PAYLOADS[:5]:
        shop.publish("news", payload)
    assert inbox.payloads == PAYLOADS[:5]
    assert shop.dispatcher.statistics.refused == 3
    gate.open()


async def test_a_peer_that_floods_leaves_room_for_others() -> None:
    shop, gate = Workshop(CellsConfig(mailbox_messages_max=100)), Gate()
    runner = shop.add("a", gate)
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    shop.send_nowait("a", b"working")
    flood = [shop.arrive("a@S1", b"flood", peer="C1") for _ in range(200)]
    quiet = [shop.arrive("a@S1", b"quiet", peer="C2") for _ in range(5)]
    shop.send_nowait("a", b"own")

    failures = [failure for dock in docks.values() for failure in dock.failures()]
    assert [failure.code for failure in failures] == [CellBusyError.code] * 166
    refused = {envelope.in_reply_to for dock in docks.values() for envelope in dock.envelopes}
    assert refused == {envelope.id for envelope in flood[34:]}
    gate.open()
    await runner.wait_idle()
    assert gate.finished == [b"working", *[b"flood"] * 34, *[b"quiet"] * 5, b"own"]
    replies = {
        envelope.in_reply_to for dock in docks.values() for envelope in dock.envelopes
    } - refused
    assert replies == {envelope.id for envelope in [*flood[:34], *quiet]}


async def test_expired_message_is_answered_without_handling() -> None:
    shop, gate = Workshop(), Gate()
    runner = shop.add("a", gate)
    dock = shop.connect("C1")
    shop.send_nowait("a", b"working")
    late = shop.arrive("a@S1", b"late", ttl_ms=1)
    patient = shop.arrive("a@S1", b"patient", ttl_ms=60_000)
    for_ever = shop.arrive("a@S1", b"for ever")
    await asyncio.sleep(0.005)
    gate.open()
    await runner.wait_idle()
    assert gate.finished == [b"working", b"patient", b"for ever"]
    by_answer = {envelope.in_reply_to: envelope for envelope in dock.envelopes}
    assert by_answer.keys() == {late.id, patient.id, for_ever.id}
    [failure] = dock.failures()
    assert failure.code == MessageExpiredError.code
    assert "expired in the mailbox of cell a" in failure.text
    assert shop.dispatcher.statistics.expired == 1

    shop, gate = Workshop(), Gate()
    runner = shop.add("a", gate)
    dock = shop.connect("C1")
    shop.send_nowait("a", b"working")
    shop.arrive("a@S1", b"late", ttl_ms=0, wants_reply=False)
    shop.arrive("a@S1", b"later", ttl_ms=1, wants_reply=False)
    await asyncio.sleep(0.005)
    gate.open()
    await runner.wait_idle()
    assert gate.finished == [b"working"]
    assert [failure.code for failure in dock.failures()] == [MessageExpiredError.code] * 2


async def test_time_for_the_reply_is_reserved() -> None:
    """A tenth of the time is kept: an answer that comes too late is of no use."""
    shop, gate = Workshop(), Gate()
    runner = shop.add("a", gate)
    dock = shop.connect("C1")
    shop.send_nowait("a", b"working")
    now = shop.dispatcher.loop.time()
    for age_s, payload in ((8.5, b"in time"), (9.1, b"too late")):
        envelope = make_request("a@S1", payload, ttl_ms=10_000)
        [delivery] = shop.dispatcher.registry.decision_cache.decide(envelope).deliveries
        assert runner.deliver(delivery, now - age_s, "C1")
    gate.open()
    await runner.wait_idle()

    assert gate.finished == [b"working", b"in time"]
    assert [failure.code for failure in dock.failures()] == [MessageExpiredError.code]


async def test_stop_refuses_queued_messages_and_cancels_running_handlers() -> None:
    shop, gate = Workshop(), Gate()
    runner = shop.add("a", gate)
    dock = shop.connect("C1")
    requests = [shop.arrive("a@S1", payload) for payload in PAYLOADS[:3]]
    await eventually(lambda: gate.begun)
    shop.dispatcher.registry.remove_cell("a")
    await runner.stop()

    assert gate.begun == PAYLOADS[:1]
    assert (gate.finished, gate.cancelled) == ([], 1)
    assert {envelope.in_reply_to for envelope in dock.envelopes} == {
        request.id for request in requests
    }
    assert sorted("stopped" in failure.text for failure in dock.failures()) == [False, True, True]


async def test_every_waiter_for_idle_is_woken() -> None:
    shop, gate = Workshop(), Gate()
    runner = shop.add("a", gate)
    shop.send_nowait("a", b"1")
    shop.send_nowait("a", b"2")
    waiting = [asyncio.ensure_future(runner.wait_idle()) for _ in range(3)]
    await eventually(lambda: gate.begun)
    waiting[0].cancel()
    await asyncio.sleep(0)
    assert not any(call.done() for call in waiting[1:])

    gate.open()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*waiting[1:])
    assert runner.is_idle
    assert repr(runner) == "<CellRunner a: 0 waiting, 0 running>"
