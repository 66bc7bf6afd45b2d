"""How streams end before their end: errors, readers that had enough, callers and nodes that go."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import (
    BrokerDisconnectedError,
    MoleculerError,
    RemoteError,
    RequestRejectedError,
    RequestTimeoutError,
    ServiceNotFoundError,
    ValidationError,
)
from postroad.services.incoming_stream import CANCELLED, IncomingStream
from postroad.services.middleware import Handler, Middleware
from postroad.services.schema import ActionInfo
from tests.support.deadlines import eventually
from tests.support.services.stream_nodes import Pair, Tape, joined, pair_of

WHERE = pytest.mark.parametrize("where", ["local", "remote"])
ENDLESS = 1_000_000


# Errors.


async def test_an_error_of_the_caller_arrives_at_the_action(pair: Pair) -> None:
    tape = Tape(2, b"x", ValidationError("too long", data={"field": "name"}))
    with pytest.raises(ValidationError, match="too long") as caught:
        await pair.near.call("files.put", stream=tape.play())
    assert caught.value.data == {"field": "name"}
    assert pair.files.seen == [b"x", b"x"]
    assert isinstance(pair.files.failure, ValidationError)
    assert pair.files.failure.node_id == "near"
    await pair.until_idle()


async def test_an_error_of_the_action_arrives_at_the_caller(pair: Pair) -> None:
    pair.files.tape = Tape(2, b"x", ValueError("broken"))
    stream = await pair.near.call("files.get")
    assert await anext(stream) == b"x"
    assert await anext(stream) == b"x"
    with pytest.raises(RemoteError, match="broken"):
        await anext(stream)
    with pytest.raises(RemoteError, match="broken") as caught:
        await anext(stream)
    assert caught.value.name == "ValueError"
    assert caught.value.node_id == "far"
    await pair.until_idle()


async def test_errors_within_a_node_come_as_they_are(pair: Pair) -> None:
    tape = Tape(1, b"x", ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        await pair.far.call("files.put", stream=tape.play())
    pair.files.tape = Tape(1, b"x", ValueError("yours"))
    stream = await pair.far.call("files.get")
    assert await anext(stream) == b"x"
    for _ in range(2):
        with pytest.raises(ValueError, match="yours"):
            await anext(stream)


async def test_an_error_at_once_and_one_whose_data_cannot_be_sent_arrive(pair: Pair) -> None:
    pair.files.tape = Tape(1, b"x", MoleculerError("broken", 418, "TEAPOT", data=object()))
    stream = await pair.near.call("files.get")
    with pytest.raises(MoleculerError, match="broken") as caught:
        await joined(stream)
    assert (caught.value.status, caught.value.data) == (418, None)
    pair.files.tape = Tape(0, b"", ValueError("at once"))
    stream = await pair.near.call("files.get")
    with pytest.raises(RemoteError, match="at once"):
        await joined(stream)
    with pytest.raises(RemoteError, match="at once"):
        await pair.near.call("files.put", stream=Tape(0, b"", ValueError("at once")).play())
    await pair.until_idle()


class Unreadable:
    """Seems to be a stream."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise ValueError("nobody can read this")


class UnreadableTape(Tape):
    def play(self) -> Any:
        return Unreadable()


@WHERE
async def test_a_stream_that_cannot_be_begun(pair: Pair, where: str) -> None:
    pair.files.tape = UnreadableTape(0)
    with pytest.raises((ValueError, RemoteError), match="nobody can read this"):
        await pair.caller(where).call("files.play")
    with pytest.raises(ValueError, match="nobody can read this"):
        await pair.caller(where).call("files.put", stream=Unreadable())
    await pair.until_idle()


@WHERE
async def test_an_action_that_does_not_read_its_stream_ends_it(pair: Pair, where: str) -> None:
    caller = pair.caller(where)
    tapes = [Tape(ENDLESS), Tape(ENDLESS)]
    with pytest.raises((ValueError, RemoteError), match="not this one"):
        await caller.call("files.refuse", stream=tapes[0].play())
    assert await caller.call("files.ignore", stream=tapes[1].play())
    for tape in tapes:
        await eventually(lambda it=tape: not it.given or it.is_closed, "closed")  # type: ignore[misc]
    await pair.until_idle()


class NoStreams(Middleware):
    """Refuses calls of other nodes with a stream."""

    def remote_action(self, next: Handler, action: ActionInfo) -> Handler:
        async def refused(ctx: Context) -> Any:
            raise ValidationError("no streams today")

        return refused


async def test_a_call_that_cannot_be_made_closes_its_stream() -> None:
    async with pair_of() as pair, pair_of(middlewares=[NoStreams()]) as other:
        cases: list[tuple[Broker, str, Any, type[Exception]]] = [
            (pair.far, "files.nothing", {}, ServiceNotFoundError),
            (pair.near, "files.nothing", {}, ServiceNotFoundError),
            (pair.near, "files.put", {"x": object()}, TypeError),
            (other.near, "files.put", {}, ValidationError),
        ]
        for caller, action, params, error in cases:
            chunks = Tape(1).play()
            with pytest.raises(error):
                await caller.call(action, params, stream=chunks)
            with pytest.raises(StopAsyncIteration):
                await anext(chunks)
        await pair.until_idle()


# Readers.


@WHERE
async def test_a_reader_that_has_enough_closes_what_is_read(pair: Pair, where: str) -> None:
    """Closing an answer also closes what the action reads."""
    tape = pair.files.tape = Tape(ENDLESS)
    async with await pair.caller(where).call("files.get") as stream:
        assert len(await anext(stream)) > 0
    await tape.until_closed()
    assert [chunk async for chunk in stream] == []
    await stream.aclose()
    tape = Tape(ENDLESS)
    async with await pair.caller(where).call("files.echo", stream=tape.play()) as stream:
        assert len(await anext(stream)) > 0
    await tape.until_closed()
    await pair.until_idle()


@WHERE
async def test_a_stream_that_nobody_can_read_any_more(pair: Pair, where: str) -> None:
    tape = pair.files.tape = Tape(ENDLESS)
    stream: IncomingStream | None = await pair.caller(where).call("files.get")
    assert stream is not None
    assert len(await anext(stream)) > 0
    stream = None
    gc.collect()
    await tape.until_closed()
    await pair.until_idle()


async def test_closing_wakes_the_reader(pair: Pair) -> None:
    tape = pair.files.tape = Tape(1)
    tape.gate.clear()
    stream = await pair.near.call("files.get")
    reading = asyncio.ensure_future(joined(stream))
    await asyncio.sleep(0)
    await stream.aclose()
    assert await reading == b""
    await tape.until_closed()


# Callers.


async def test_a_caller_that_gives_up_ends_its_stream(pair: Pair) -> None:
    tape = Tape(ENDLESS, b"x")
    call = asyncio.ensure_future(pair.near.call("files.put", stream=tape.play()))
    await eventually(lambda: pair.files.seen, "the action reads")
    call.cancel()
    await tape.until_closed()
    await eventually(lambda: pair.files.failure, "the action was told")
    assert isinstance(pair.files.failure, MoleculerError)
    assert pair.files.failure.type == CANCELLED
    await pair.until_idle()


async def test_a_local_caller_that_gives_up(pair: Pair) -> None:
    tape = Tape(2, b"x")
    call = asyncio.ensure_future(pair.far.call("files.hold", stream=tape.play()))
    await eventually(lambda: pair.files.seen, "the action reads")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert tape.is_closed


@WHERE
async def test_a_call_that_takes_too_long_ends_its_stream(pair: Pair, where: str) -> None:
    tape = Tape(2, b"x")
    call = pair.caller(where).call("files.hold", stream=tape.play(), timeout_s=0.05)
    with pytest.raises(RequestTimeoutError):
        await call
    await tape.until_closed()
    await pair.until_idle()


# Nodes.


def lose(broker: Broker, node_id: str) -> None:
    assert broker._engine is not None
    broker._engine._lost(node_id, True)


async def test_the_node_that_sends_is_lost() -> None:
    async with pair_of(stream_idle_s=0.8) as pair:
        tape = pair.files.tape = Tape(ENDLESS, b"x")
        stream = await pair.near.call("files.get")
        assert await anext(stream) == b"x"
        lose(pair.near, "far")
        with pytest.raises(RequestRejectedError, match="Stream closed by far"):
            await joined(stream)
        await tape.until_closed()


async def test_the_node_that_reads_is_lost(pair: Pair) -> None:
    tape = pair.files.tape = Tape(ENDLESS)
    stream = await pair.near.call("files.get")
    assert await anext(stream)
    lose(pair.far, "near")
    await tape.until_closed()
    assert pair.streams_of(pair.far) == (0, 0)


async def test_the_node_of_a_caller_is_lost(pair: Pair) -> None:
    tape = Tape(ENDLESS, b"x")
    call = asyncio.ensure_future(pair.near.call("files.put", stream=tape.play()))
    await eventually(lambda: pair.files.seen, "the action reads")
    lose(pair.far, "near")
    await eventually(lambda: pair.files.failure, "the action was told")
    assert isinstance(pair.files.failure, RequestRejectedError)
    assert str(pair.files.failure.detail) == "Stream closed by near"
    call.cancel()
    await tape.until_closed()


async def test_the_node_of_an_action_is_lost(pair: Pair) -> None:
    tape = Tape(ENDLESS, b"x")
    call = asyncio.ensure_future(pair.near.call("files.hold", stream=tape.play()))
    await eventually(lambda: pair.files.seen, "the action reads")
    lose(pair.near, "far")
    with pytest.raises(RequestRejectedError):
        await call
    await tape.until_closed()
    pair.files.gate.set()


async def test_a_node_that_stops_lets_its_streams_finish() -> None:
    async with pair_of(stop_timeout_s=10.0) as pair:
        tape = pair.files.tape = Tape(3, b"x")
        stream = await pair.near.call("files.get")
        assert await anext(stream) == b"x"
        tape.gate.clear()
        stopping = asyncio.ensure_future(pair.far.stop())
        await asyncio.sleep(0.05)
        tape.gate.set()
        assert await joined(stream) == b"xx"
        await stopping


async def test_a_caller_that_stops_lets_its_streams_finish() -> None:
    async with pair_of(stop_timeout_s=10.0) as pair:
        tape = Tape(3, b"x")
        tape.gate.clear()
        call = asyncio.ensure_future(pair.near.call("files.put", stream=tape.play()))
        await asyncio.sleep(0.05)
        stopping = asyncio.ensure_future(pair.near.stop())
        await asyncio.sleep(0.05)
        tape.gate.set()
        await stopping
        # The answer may come before it is gone, and after its last part has left.
        with suppress(BrokerDisconnectedError):
            await call
        await eventually(lambda: len(pair.files.seen) == 3, "all of it came")
        assert pair.files.failure is None


async def test_a_node_that_stops_cuts_streams_that_take_too_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pair_of(stop_timeout_s=0.1) as pair:
        tape = pair.files.tape = Tape(ENDLESS, b"x")
        stream = await pair.near.call("files.get")
        assert await anext(stream) == b"x"
        with caplog.at_level(logging.CRITICAL, "postroad.services"):
            await pair.far.stop()
        with pytest.raises(MoleculerError, match="far stops") as caught:
            await joined(stream)
        assert caught.value.type == CANCELLED
        assert tape.is_closed


async def test_a_reader_whose_own_node_stops(caplog: pytest.LogCaptureFixture) -> None:
    async with pair_of(stop_timeout_s=0.1) as pair:
        tape = pair.files.tape = Tape(ENDLESS, b"x")
        stream = await pair.near.call("files.get")
        assert await anext(stream) == b"x"
        with caplog.at_level(logging.CRITICAL, "postroad.services"):
            await pair.near.stop()
        with pytest.raises(BrokerDisconnectedError):
            await joined(stream)
        await tape.until_closed()
