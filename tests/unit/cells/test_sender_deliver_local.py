"""Messages handed over with a transaction: whoever brought one may give it up."""

import asyncio

import pytest

from postroad.cells import CellMessage, NoRouteError
from postroad.core.errors import RemoteHandlerError, ReplyTimeoutError
from tests.support.cells.nodes import Gate
from tests.support.cells.offline_domain import Workshop, make_request
from tests.support.deadlines import DEADLINE_S, eventually

TRANSACTION = object()


def hand_over(shop: Workshop, payload: bytes, timeout: float = 10.0) -> asyncio.Task[None]:
    """Have the cell `a` handle what somebody elsewhere sent and waits for an answer to."""
    message = make_request("orders", payload)
    return asyncio.ensure_future(
        shop.deliver_local("a", message, name="orders", timeout=timeout, transaction=TRANSACTION)
    )


async def give_up(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_message_that_is_handed_over_is_handled_once_and_answers_nobody() -> None:
    shop, messages = Workshop(), list[CellMessage]()
    dock = shop.connect("C1")
    shop.add("a", messages.append)
    await hand_over(shop, b"1")
    [message] = messages
    assert (message.payload, message.route_name) == (b"1", "orders")
    assert message.transaction is TRANSACTION
    assert not dock.envelopes
    assert shop.pending == 0

    shop, gate = Workshop(), Gate()
    dock = shop.connect("C1")
    runner = shop.add("a", gate)
    with pytest.raises(ReplyTimeoutError):
        await hand_over(shop, b"1", timeout=0.02)
    async with asyncio.timeout(DEADLINE_S):
        await runner.wait_idle()
    assert (gate.cancelled, gate.finished) == (1, [])
    assert not dock.envelopes


async def test_handler_exception_is_raised_to_the_caller() -> None:
    shop = Workshop()
    dock = shop.connect("C1")

    async def later(message: CellMessage) -> None:
        raise ValueError("later")

    def at_once(message: CellMessage) -> object:
        if message.payload == b"later":
            return later(message)
        raise ValueError("at once")

    shop.add("a", at_once)
    for when in ("later", "at once"):
        with pytest.raises(RemoteHandlerError, match=when):
            await hand_over(shop, when.encode())
    assert shop.dispatcher.statistics.failed == 2
    assert not dock.envelopes

    shop = Workshop()
    with pytest.raises(NoRouteError, match="no cell 'a' in domain S1"):
        await hand_over(shop, b"1")


async def test_abandoned_queued_message_is_not_handled() -> None:
    shop, gate = Workshop(), Gate()
    dock = shop.connect("C1")
    runner = shop.add("a", gate)
    tasks = [hand_over(shop, payload) for payload in (b"1", b"2", b"3")]
    await eventually(lambda: len(runner.mailbox) == 2)
    await give_up(tasks[1])
    gate.open()
    await asyncio.gather(tasks[0], tasks[2])
    await runner.wait_idle()
    assert gate.begun == [b"1", b"3"]
    assert not dock.envelopes


async def test_a_handler_whose_message_was_given_up_is_cancelled() -> None:
    shop, gate = Workshop(), Gate()
    dock = shop.connect("C1")
    runner = shop.add("a", gate)
    tasks = [hand_over(shop, payload) for payload in (b"1", b"2")]
    await eventually(lambda: gate.begun and runner.mailbox)
    await give_up(tasks[0])
    # The next one is begun when it has ended.
    await eventually(lambda: gate.begun == [b"1", b"2"])
    assert gate.cancelled == 1
    gate.open()
    await tasks[1]
    assert gate.finished == [b"2"]
    assert not dock.envelopes
    assert shop.pending == 0


async def test_a_plain_message_is_handled_although_its_caller_gave_up() -> None:
    """Nothing of it hangs on anybody else's transaction."""
    shop, gate = Workshop(), Gate()
    runner = shop.add("a", gate)
    calls = [asyncio.ensure_future(shop.call("a", payload)) for payload in (b"1", b"2")]
    await eventually(lambda: gate.begun and runner.mailbox)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    gate.open()
    await runner.wait_idle()
    assert gate.finished == [b"1", b"2"]
