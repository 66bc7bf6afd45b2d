"""Handlers that fail, in every way there is: the caller is told, and the cell goes on."""

import asyncio
import datetime
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from postroad.cells import Cell, CellMessage, CellPath, HopLimitExceededError, NoRouteError
from postroad.cells.delivery.cell_runner import CellRunner
from postroad.core import errors
from tests.support.cells.nodes import Inbox
from tests.support.cells.offline_domain import UnreliableZone, Workshop


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Unrepresentable(Exception):
    def __repr__(self) -> str:
        raise ValueError("no words")

    __str__ = __repr__


class Strange(BaseException):
    """Neither an Exception nor one of those that end a program."""


FAILURES: list[tuple[Callable[[], BaseException], int, str]] = [
    (lambda: ValueError("wrong"), 0, "wrong"),
    (lambda: KeyError("k"), 0, "'k'"),
    (lambda: RuntimeError(), 0, "RuntimeError"),
    (lambda: errors.UsageError("not so"), errors.UsageError.code, "not so"),
    (lambda: NoRouteError("nowhere"), NoRouteError.code, "nowhere"),
    (lambda: errors.ReplyTimeoutError("inner"), errors.ReplyTimeoutError.code, "inner"),
    (Unprintable, 0, "Unprintable (its __str__ raised)"),
    (Unrepresentable, 0, "Unrepresentable (its __str__ raised)"),
    (lambda: asyncio.CancelledError("stop"), 0, "stop"),
    (lambda: TimeoutError("slow"), 0, "slow"),
    (lambda: StopIteration("over"), 0, "over"),
    (lambda: GeneratorExit("over"), 0, "over"),
    (lambda: Strange("odd"), 0, "odd"),
    (lambda: ValueError("x" * 5_000), 0, "x" * 1_024),
    (lambda: ValueError("\ud800"), 0, "?"),
]
each_failure = pytest.mark.parametrize(
    ("make", "code", "text"),
    FAILURES,
    ids=[type(make()).__name__ + str(n) for n, (make, *_) in enumerate(FAILURES)],
)


def sync_handler(make: Callable[[], BaseException]) -> Callable[[CellMessage], Any]:
    def handler(message: CellMessage) -> bytes:
        if message.payload == b"fail":
            raise make()
        return message.payload

    return handler


def async_handler(make: Callable[[], BaseException]) -> Callable[[CellMessage], Any]:
    async def handler(message: CellMessage) -> bytes:
        await asyncio.sleep(0)
        if message.payload == b"fail":
            raise make()
        return message.payload

    return handler


either_handler = pytest.mark.parametrize("make_handler", [sync_handler, async_handler])


@either_handler
@each_failure
async def test_raising_handler_is_reported_to_the_caller(
    make: Callable[[], BaseException], code: int, text: str, make_handler: Any
) -> None:
    """By the long way at first, then by the short one: it makes no difference."""
    if make_handler is async_handler and isinstance(make(), StopIteration):
        # Python itself makes this of it.
        text = "coroutine raised StopIteration"
    shop = Workshop()
    shop.add("a", make_handler(make))
    for _ in range(2):
        with pytest.raises(errors.RemoteHandlerError) as caught:
            await shop.call("a", b"fail", timeout=2)
        assert (caught.value.remote_code, caught.value.detail) == (code, text)
        assert caught.value.peer is not None
    assert await shop.call("a", b"go on") == b"go on"
    assert shop.dispatcher.statistics.failed == 2
    assert shop.pending == 0


@either_handler
@each_failure
async def test_failure_is_sent_to_a_remote_caller(
    make: Callable[[], BaseException], code: int, text: str, make_handler: Any
) -> None:
    shop = Workshop()
    runner = shop.add("a", make_handler(make))
    dock = shop.connect("C1")
    requests = [shop.arrive("a@S1", payload) for payload in (b"fail", b"go on", b"fail")]
    await runner.wait_idle()
    await asyncio.sleep(0)

    assert [envelope.in_reply_to for envelope in dock.envelopes] == [
        request.id for request in requests
    ]
    assert [failure.is_handler_error for failure in dock.failures()] == [True, True]
    assert {failure.code for failure in dock.failures()} == {code}


@pytest.mark.parametrize("make", [make for make, *_ in FAILURES])
async def test_failure_of_a_one_way_message_is_counted(
    make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    shop = Workshop()
    inbox = Inbox()
    runner = shop.add("a", sync_handler(make))
    shop.add("b", inbox)
    with caplog.at_level(logging.WARNING, "postroad.cells"):
        shop.send_nowait("a", b"fail")
        shop.send_nowait("b", b"next")
    await runner.wait_idle()

    assert shop.dispatcher.statistics.failed == 1
    assert "cell a: handler raised" in caplog.text
    assert inbox.payloads == [b"next"]


async def test_a_payload_that_cannot_be_read_is_the_callers_fault() -> None:
    shop = Workshop()
    shop.add("a", lambda message: message.body)
    dock = shop.connect("C1")
    shop.arrive("a@S1", b"\xff", content_type="text")
    shop.arrive("a@S1", b"", content_type="pickle")
    assert [failure.code for failure in dock.failures()] == [errors.MalformedPayloadError.code] * 2
    assert all(type(failure.to_error()) is errors.RemoteDecodeError for failure in dock.failures())

    shop = Workshop()
    shop.add("a", sync_handler(lambda: errors.MalformedPayloadError("no number")))
    for _ in range(2):
        with pytest.raises(errors.RemoteDecodeError, match="no number"):
            await shop.call("a", b"fail")


UNSENDABLE = [object(), "\ud800", datetime.datetime(2020, 1, 1, tzinfo=UnreliableZone())]


@pytest.mark.parametrize("result", UNSENDABLE, ids=["object", "surrogate", "raising"])
async def test_unencodable_reply_is_an_error(result: object) -> None:
    shop = Workshop()
    shop.add("a", lambda message: result)
    dock = shop.connect("C1")
    for _ in range(2):
        with pytest.raises(errors.RemoteHandlerError, match="cannot encode a body") as caught:
            await shop.call("a", b"")
        assert caught.value.remote_code == errors.ConfigError.code
    shop.arrive("a@S1")
    assert [failure.code for failure in dock.failures()] == [errors.ConfigError.code]


async def test_failure_after_the_caller_left_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    shop = Workshop()
    let_go = asyncio.Event()

    async def late(message: CellMessage) -> bytes:
        await let_go.wait()
        raise ValueError("too late")

    runner = shop.add("a", late)
    for _ in range(2):
        let_go.clear()
        with pytest.raises(errors.ReplyTimeoutError):
            await shop.call("a", b"", timeout=0.01)
        let_go.set()
        await runner.wait_idle()
    await asyncio.sleep(0)
    gc.collect()

    assert "never retrieved" not in caplog.text
    assert shop.dispatcher.statistics.failed == 2
    assert shop.pending == 0


class Relay(Cell):
    def __init__(self, answer: bool | BaseException) -> None:
        super().__init__("relay")
        self._answer = answer

    def handle(self, message: CellMessage) -> bytes:
        return b"received"

    def should_forward(self, message: CellMessage) -> bool:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


def add_relay(shop: Workshop, answer: bool | BaseException) -> CellRunner:
    cell = Relay(answer)
    cell.attach(shop)  # type: ignore[arg-type]  # It needs no more than a sender has.
    runner = CellRunner(cell, shop.dispatcher)
    shop.dispatcher.registry.add_cell(runner, [])
    return runner


async def test_failed_forward_is_answered_with_its_reason() -> None:
    shop = Workshop()
    add_relay(shop, False)
    shop.add("a", Inbox())
    with pytest.raises(NoRouteError, match="cell relay does not forward messages"):
        await shop.call("relay@S1:a@S1", b"", wait=False)

    shop, inbox = Workshop(), Inbox()
    add_relay(shop, True)
    shop.add("a", inbox)
    dock = shop.connect("C1")
    full = CellPath.of(*["p@S2"] * 63, "*@C1")
    shop.arrive("relay@S1:a@S1", b"", source=full)
    assert [failure.code for failure in dock.failures()] == [HopLimitExceededError.code]
    assert not inbox.messages
    assert await shop.call("relay@S1", b"") == b"received"


@pytest.mark.parametrize("error", [RuntimeError("broken"), asyncio.CancelledError("broken")])
async def test_a_relay_that_raises_is_a_handler_that_fails(error: BaseException) -> None:
    shop, inbox = Workshop(), Inbox()
    add_relay(shop, error)
    shop.add("a", inbox)
    dock = shop.connect("C1")
    with pytest.raises(errors.RemoteHandlerError, match="broken"):
        await shop.call("relay@S1:a@S1", b"", timeout=2)
    shop.arrive("relay@S1:a@S1", b"")

    assert [failure.text for failure in dock.failures()] == ["broken"]
    assert not inbox.messages
