"""Calls: every way they can end, and which way is tried next when the first one fails."""

import asyncio
import math

import pytest

from postroad import cells
from postroad.cells.delivery.envelope import MessageKind
from postroad.cells.delivery.failure import DeliveryFailure
from postroad.cells.delivery.failure import _encoder as failure_encoder
from postroad.core import errors
from tests.support.cells.nodes import Gate, Inbox
from tests.support.cells.offline_domain import Dock, Workshop
from tests.support.deadlines import DEADLINE_S, eventually


def fail(
    shop: Workshop,
    dock: Dock,
    error: type[cells.NoRouteError] | type[cells.CellBusyError] = cells.NoRouteError,
    at: str = "C1",
) -> None:
    """The core says that the last message did not arrive."""
    failure = DeliveryFailure.of(error, f"said {at}", hop=cells.CellAddress("b", "S2"), at=at)
    shop.answer(dock.envelopes[-1], failure_encoder.encode(failure), kind=MessageKind.ERROR)


async def test_bodies_of_all_kinds_come_back(subtests: pytest.Subtests) -> None:
    for body, reply in [
        (b"raw", b"raw"),
        (b"", b""),
        ("größe", "größe"),
        (None, b""),
        ([1, {"a": None}], [1, {"a": None}]),
        (memoryview(b"view"), b"view"),
        (7, 7),
    ]:
        with subtests.test(body=body):
            shop = Workshop()
            shop.add("echo", lambda message: message.body)
            for _ in range(2):
                assert await shop.call("echo", body) == reply


async def test_second_answer_is_late_and_harmless() -> None:
    shop = Workshop()
    dock = shop.connect("C1")
    call = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    await eventually(lambda: dock.envelopes)
    request = dock.envelopes[0]
    assert (request.payload, request.wants_reply) == (b"ask", True)
    shop.answer(request, b"tell")
    assert await call == b"tell"
    assert shop.pending == 0

    shop = Workshop()
    dock = shop.connect("C1")
    call = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    await eventually(lambda: dock.envelopes)
    for payload in (b"first", b"second"):
        shop.answer(dock.envelopes[0], payload)
    assert await call == b"first"
    shop.answer(dock.envelopes[0], b"third")
    assert shop.dispatcher.statistics.replies_late == 1


async def test_call_to_itself_is_not_taken_for_its_reply() -> None:
    shop, gate = Workshop(), Gate()
    me = shop.add("me", gate)
    call = asyncio.ensure_future(shop.call("me", b"x", sender=me.cell.address))
    await eventually(lambda: gate.begun)
    assert not call.done()
    gate.open()
    assert await call == b"x"


async def test_call_waits_for_a_route_until_its_timeout() -> None:
    shop = Workshop()
    with pytest.raises(cells.NoRouteError, match="no route for nobody@local at S1") as caught:
        await shop.call("nobody", b"", wait=False)
    assert caught.value.outcome is errors.Outcome.REPLIED
    assert caught.value.retryable

    shop = Workshop(cells.CellsConfig(route_retry_s=0.02))
    started = shop.dispatcher.loop.time()
    with pytest.raises(cells.NoRouteError) as caught:
        await shop.call("nobody", b"", timeout=0.1)
    assert shop.dispatcher.loop.time() - started > 0.09
    assert caught.value.timeout_s == 0.1
    assert caught.value.elapsed_s is not None and caught.value.elapsed_s >= 0.09
    assert shop.pending == 0


async def test_a_cell_or_consumer_that_appears_in_time_is_found_at_once() -> None:
    """New routes wake the call; it does not sleep until its next look."""
    shop = Workshop(cells.CellsConfig(route_retry_s=3_000.0))
    call = asyncio.ensure_future(shop.call("late", b"x", timeout=2_000))
    await asyncio.sleep(0.01)
    assert not call.done()
    shop.add("late", Inbox())
    async with asyncio.timeout(DEADLINE_S):
        assert await call == b"x"

    shop = Workshop(cells.CellsConfig(route_retry_s=3_000.0))
    call = asyncio.ensure_future(shop.call("work", b"x", timeout=2_000))
    await asyncio.sleep(0)
    inbox = Inbox()
    shop.add("worker", inbox, consume=["work"])
    async with asyncio.timeout(DEADLINE_S):
        assert await call == b"x"
    assert inbox.messages[0].route_name == "work"


async def test_missing_or_undecodable_reply_raises() -> None:
    shop = Workshop()
    dock = shop.connect("C1")
    with pytest.raises(errors.ReplyTimeoutError) as caught:
        await shop.call("b@S2", b"", timeout=0.02)
    assert caught.value.outcome is errors.Outcome.UNKNOWN
    assert shop.pending == 0
    shop.answer(dock.envelopes[0], b"late")
    assert shop.dispatcher.statistics.replies_late == 1

    shop = Workshop()
    dock = shop.connect("C1")
    call = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    await eventually(lambda: dock.envelopes)
    shop.answer(dock.envelopes[0], b"no failure at all", kind=MessageKind.ERROR)
    with pytest.raises(errors.RemoteDecodeError, match="malformed failure"):
        await call
    assert shop.dispatcher.statistics.malformed == 1


@pytest.mark.parametrize("is_near", [False, True])
async def test_slow_local_cell_times_out(is_near: bool) -> None:
    shop, gate = Workshop(), Gate()
    runner = shop.add("slow", gate)
    if is_near:
        gate.open()
        await shop.call("slow", b"")
        gate = Gate()
        runner._handler = gate
    with pytest.raises(errors.ReplyTimeoutError) as caught:
        await shop.call("slow", b"x", timeout=0.02)
    assert caught.value.timeout_s == 0.02
    gate.open()
    await runner.wait_idle()
    assert gate.finished == [b"x"]


async def test_busy_cell_fails_at_once_without_retry() -> None:
    shop, gate = Workshop(cells.CellsConfig(mailbox_messages_max=2)), Gate()
    runner = shop.add("slow", gate)
    shop.send_nowait("slow", b"1")
    shop.send_nowait("slow", b"2")
    with pytest.raises(cells.CellBusyError, match="mailbox of cell slow is full: 1 messages"):
        await shop.call("slow", b"3", timeout=20)
    gate.open()
    await runner.wait_idle()
    assert gate.finished == [b"1", b"2"]

    shop = Workshop()
    docks = [shop.connect("C1"), shop.connect("C2")]
    call = asyncio.ensure_future(shop.call("b@S2", b""))
    await eventually(lambda: any(dock.envelopes for dock in docks))
    [dock] = [dock for dock in docks if dock.envelopes]
    fail(shop, dock, cells.CellBusyError, at="S2")
    with pytest.raises(cells.CellBusyError, match="said S2"):
        await call
    assert sum(len(dock.envelopes) for dock in docks) == 1


async def test_no_route_of_a_handler_or_alias_loop_fails_at_once() -> None:
    shop = Workshop()
    calls = []

    def handler(message: cells.CellMessage) -> None:
        calls.append(message.id)
        raise cells.NoRouteError("I could not reach the printer")

    shop.add("a", handler)
    for _ in range(2):
        with pytest.raises(errors.RemoteHandlerError, match="printer") as caught:
            await shop.call("a", b"", timeout=5)
        assert caught.value.remote_code == cells.NoRouteError.code
    assert len(calls) == 2

    shop = Workshop()
    shop.dispatcher.registry.change_routes(
        added=[
            cells.Route.alias(cells.CellAddress("x"), cells.CellAddress("y")),
            cells.Route.alias(cells.CellAddress("y"), cells.CellAddress("x")),
        ]
    )
    with pytest.raises(cells.HopLimitExceededError, match="aliases"):
        await shop.call("x", b"", timeout=5)


async def test_invalid_call_options_are_refused(subtests: pytest.Subtests) -> None:
    for timeout in [math.nan, 0, -1]:
        with subtests.test(timeout=timeout):
            shop = Workshop()
            shop.add("a", Inbox())
            for _ in range(2):
                with pytest.raises(errors.ConfigError):
                    await shop.call("a", b"", timeout=timeout)

    shop = Workshop()
    shop.add("a", Inbox())
    with pytest.raises(errors.ConfigError):
        await shop.call("a", b"", headers={"count": 1})  # type: ignore[dict-item]
    with pytest.raises(errors.ConfigError):
        shop.send_nowait("a", b"", session="x" * 2_000)

    for destination in ["", ":", "a@b@c", "a:", "*", "a b", "x" * 300, "a@local@"]:
        with subtests.test(destination=destination):
            shop = Workshop()
            with pytest.raises(errors.ConfigError):
                await shop.call(destination, b"")
            with pytest.raises(errors.ConfigError):
                shop.send_nowait(destination, b"")

    shop = Workshop()
    shop.add("a", Inbox())
    for _ in range(2):
        assert await shop.call("a", b"x", timeout=math.inf) == b"x"
    shop.send_nowait("a", b"", timeout=math.inf)


async def test_oversized_message_is_refused_every_time() -> None:
    shop, inbox = Workshop(), Inbox()
    shop.add("a", inbox)
    large = bytes(4 << 20)
    for _ in range(3):
        with pytest.raises(errors.MessageTooLargeError):
            await shop.call("a", large)
    with pytest.raises(errors.MessageTooLargeError):
        shop.send_nowait("a", large)
    assert not inbox.messages

    shop, inbox = Workshop(frame_bytes_max=16_384), Inbox()
    shop.add("a", inbox)
    for _ in range(2):
        assert await shop.call("a", b"x" * 1_000) == b"x" * 1_000
        with pytest.raises(errors.MessageTooLargeError):
            await shop.call("a", bytes(20_000))


async def test_cancelled_calls_leave_nothing_behind() -> None:
    shop, gate = Workshop(cells.CellsConfig(route_retry_s=30.0)), Gate()
    shop.connect("C1")
    runner = shop.add("slow", gate, concurrency=10)
    calls = [
        asyncio.ensure_future(shop.call(name, b"", timeout=60))
        for name in ("b@S2", "slow", "slow", "nobody@S1")
    ]
    await eventually(lambda: len(gate.begun) == 2)
    near = asyncio.ensure_future(shop.call("slow", b"", timeout=60))
    await eventually(lambda: len(gate.begun) == 3)
    for call in (*calls, near):
        call.cancel()
    results = await asyncio.gather(*calls, near, return_exceptions=True)

    assert [type(result) for result in results] == [asyncio.CancelledError] * 5
    assert shop.pending == 0
    assert not shop._calls._route_waiters
    # Who was called is not to blame, and finishes.
    gate.open()
    await runner.wait_idle()
    assert len(gate.finished) == 3


async def test_calls_in_flight_fail_on_stop() -> None:
    shop = Workshop(cells.CellsConfig(route_retry_s=30.0))
    dock = shop.connect("C1")
    call = asyncio.ensure_future(shop.call("b@S2", b""))
    await eventually(lambda: dock.envelopes)
    shop._calls.close()
    with pytest.raises(errors.NotRunningError) as caught:
        await call
    assert caught.value.outcome is errors.Outcome.UNKNOWN
    assert shop.pending == 0


async def next_asked(docks: dict[str, Dock], gateways: list[str]) -> str:
    """The core that is asked after those that were; remembers it."""
    await eventually(lambda: any(docks[name].envelopes for name in docks if name not in gateways))
    [name] = [each for each in docks if docks[each].envelopes and each not in gateways]
    gateways.append(name)
    return name


async def test_no_route_from_a_core_tries_the_next() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2", "C3")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    gateways: list[str] = []
    for _ in range(2):
        name = await next_asked(docks, gateways)
        fail(shop, docks[name], at=name)
    shop.answer(docks[await next_asked(docks, gateways)].envelopes[0], b"found")

    assert await call == b"found"
    assert [len(dock.envelopes) for dock in docks.values()] == [1, 1, 1]
    # Each attempt is a message of its own: an answer to one is no answer to another.
    assert len({dock.envelopes[0].id for dock in docks.values()}) == 3


async def test_no_route_from_all_cores_quotes_the_last() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask", wait=False))
    gateways: list[str] = []
    for _ in docks:
        name = await next_asked(docks, gateways)
        fail(shop, docks[name], at=name)
    with pytest.raises(cells.NoRouteError, match=f"said {gateways[-1]}"):
        await call
    assert shop.pending == 0


async def test_no_route_from_all_cores_retries_after_a_route_change() -> None:
    shop = Workshop(cells.CellsConfig(route_retry_s=30.0))
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask", timeout=20))
    gateways: list[str] = []
    for _ in docks:
        name = await next_asked(docks, gateways)
        fail(shop, docks[name], at=name)
    await asyncio.sleep(0.01)
    assert sum(len(dock.envelopes) for dock in docks.values()) == 2
    shop.connect("C3", is_default=False)
    await eventually(lambda: sum(len(dock.envelopes) for dock in docks.values()) == 3)
    [again] = [dock for dock in docks.values() if len(dock.envelopes) == 2]
    shop.answer(again.envelopes[-1], b"found")
    assert await call == b"found"


async def test_no_route_from_the_domain_of_the_cell_is_final() -> None:
    """If the cell is not in its own domain, no other core can know better."""
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask", wait=False))
    fail(shop, docks[await next_asked(docks, [])], at="S2")
    with pytest.raises(cells.NoRouteError, match="said S2"):
        await call
    assert sum(len(dock.envelopes) for dock in docks.values()) == 1

    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    shop.send_nowait("b@S2", b"say")
    fail(shop, docks[await next_asked(docks, [])], cells.CellBusyError, at="S2")
    assert sum(len(dock.envelopes) for dock in docks.values()) == 1


async def test_a_full_gateway_is_passed_over_until_all_are_full() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    first = await next_asked(docks, [])
    docks[first].is_full = True
    other = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    second = await next_asked(docks, [first])
    for name, task in ((first, call), (second, other)):
        shop.answer(docks[name].envelopes[0], name.encode())
        assert await task == name.encode()

    shop = Workshop()
    for name in ("C1", "C2"):
        shop.connect(name).is_full = True
    with pytest.raises(cells.CellBusyError):
        await shop.call("b@S2", b"ask", timeout=20)
    with pytest.raises(cells.CellBusyError):
        shop.send_nowait("b@S2", b"ask")
    assert shop.dispatcher.statistics.refused == 2
    assert shop.pending == 0


@pytest.mark.parametrize("cores", [1, 2])
async def test_one_way_message_without_route_tries_the_next_core(
    cores: int, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Workshop()
    docks = {f"C{n + 1}": shop.connect(f"C{n + 1}") for n in range(cores)}
    shop.send_nowait("b@S2", b"say")
    gateways: list[str] = []
    for _ in range(cores):
        name = await next_asked(docks, gateways)
        fail(shop, docks[name], at=name)

    assert [envelope.payload for dock in docks.values() for envelope in dock.envelopes] == [
        b"say"
    ] * cores
    assert "message to b@S2 not delivered: said C" in caplog.text
    assert shop.dispatcher.statistics.resent == cores


async def test_lost_gateway_hands_its_messages_to_another() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    call = asyncio.ensure_future(shop.call("b@S2", b"ask"))
    gateways: list[str] = []
    lost = await next_asked(docks, gateways)
    [forwarded] = docks[lost].forwarded_messages
    shop.disconnect(lost)
    shop.dispatcher.reroute_or_fail(forwarded)
    shop.answer(docks[await next_asked(docks, gateways)].envelopes[0], b"found")
    assert await call == b"found"

    shop = Workshop()
    dock = shop.connect("C1")
    call = asyncio.ensure_future(shop.call("b@S2", b"ask", wait=False))
    await eventually(lambda: dock.forwarded_messages)
    shop.disconnect("C1")
    shop.dispatcher.reroute_or_fail(dock.forwarded_messages[0])
    with pytest.raises(cells.NoRouteError):
        await call


async def test_resent_message_has_the_remaining_time() -> None:
    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2", "C3")}
    gateways: list[str] = []
    shop.send_nowait("b@S2", b"told", timeout=10.0)
    began = shop.dispatcher.loop.time()
    for _ in range(2):
        name = await next_asked(docks, gateways)
        await asyncio.sleep(0.03)
        fail(shop, docks[name], at=name)
    await next_asked(docks, gateways)
    lain_ms = (shop.dispatcher.loop.time() - began) * 1000
    left_ms = [docks[name].envelopes[0].ttl_ms or 0 for name in gateways]
    assert left_ms[0] == 10_000
    assert left_ms[0] - 28 >= left_ms[1] >= left_ms[2] + 28
    assert left_ms[2] >= 10_000 - lain_ms - 1

    shop = Workshop()
    docks = {name: shop.connect(name) for name in ("C1", "C2")}
    gateways = []
    shop.send_nowait("b@S2", b"told", timeout=0.01)
    name = await next_asked(docks, gateways)
    await asyncio.sleep(0.02)
    fail(shop, docks[name], at=name)
    assert sum(len(dock.envelopes) for dock in docks.values()) == 1
