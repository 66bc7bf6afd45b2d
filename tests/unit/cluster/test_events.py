"""Membership events for listeners and for readers."""

import asyncio
import gc
import logging
import weakref

import pytest

from postroad.cluster.events import _UNREAD_MAX, MembershipEventStream, MembershipListeners
from postroad.cluster.membership import MembershipEvent, MembershipEventType
from postroad.cluster.membership.members import to_member
from postroad.core.errors import NameConflictError, SlowConsumerError
from tests.support.cluster.membership import make_record


def make_change(name: str) -> MembershipEvent:
    return MembershipEvent(MembershipEventType.ADDED, to_member(make_record(name)))


async def read_all(stream: MembershipEventStream) -> list[str]:
    return [change.member.name async for change in stream]


async def test_event_stream_yields_events_in_order_then_ends() -> None:
    audience = MembershipListeners()
    audience.publish(make_change("before"))
    stream = audience.open_stream()
    for name in "abc":
        audience.publish(make_change(name))
    audience.close(None)
    assert await read_all(stream) == ["a", "b", "c"]

    audience = MembershipListeners()
    streams = [audience.open_stream() for _ in range(3)]
    audience.publish(make_change("a"))
    audience.close(None)
    assert [await read_all(stream) for stream in streams] == [["a"]] * 3


async def test_waiting_reader_is_woken_or_cancelled() -> None:
    audience = MembershipListeners()
    reading = asyncio.create_task(read_all(audience.open_stream()))
    for name in "ab":
        await asyncio.sleep(0)
        audience.publish(make_change(name))
        audience.publish(make_change(name + name))
    await asyncio.sleep(0)
    audience.close(None)
    assert await reading == ["a", "aa", "b", "bb"]

    audience = MembershipListeners()
    reading = asyncio.create_task(read_all(audience.open_stream()))
    await asyncio.sleep(0)
    assert len(audience._waiting) == 1
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert audience._waiting == {}


async def test_event_stream_raises_its_error_after_unread_events() -> None:
    audience = MembershipListeners()
    stream = audience.open_stream()
    audience.publish(make_change("a"))
    audience.close(NameConflictError("self", "elsewhere:1"))
    assert (await anext(stream)).member.name == "a"
    for _ in range(2):
        with pytest.raises(NameConflictError):
            await anext(stream)

    audience = MembershipListeners()
    audience.close(NameConflictError("self", "elsewhere:1"))
    with pytest.raises(NameConflictError):
        await anext(audience.open_stream())

    audience = MembershipListeners()
    stream = audience.open_stream()
    stream.close()
    audience.publish(make_change("a"))
    stream.close(NameConflictError("self", "elsewhere:1"))
    assert await read_all(stream) == []


async def test_slow_reader_gets_slow_consumer_error() -> None:
    audience = MembershipListeners()
    slow, fast = audience.open_stream(), audience.open_stream()
    change = make_change("a")
    for _ in range(_UNREAD_MAX):
        audience.publish(change)
        await anext(fast)
    audience.publish(change)
    with pytest.raises(SlowConsumerError, match="10000"):
        await anext(slow)
    assert await anext(fast) == change


def test_listener_is_called_until_removed() -> None:
    audience = MembershipListeners()
    received: list[MembershipEvent] = []
    change = make_change("a")
    audience.add(received.append)
    audience.publish(change)
    audience.remove(received.append)
    audience.remove(received.append)
    audience.publish(change)
    assert received == [change]

    audience = MembershipListeners()
    stream, forgotten = audience.open_stream(), weakref.ref(audience.open_stream())
    gc.collect()
    assert forgotten() is None
    audience.publish(make_change("a"))
    assert [ref() for ref in audience._streams] == [stream]


def test_failing_listener_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    audience = MembershipListeners()
    received: list[MembershipEvent] = []

    def fail(change: MembershipEvent) -> None:
        raise ValueError(change)

    audience.add(fail)
    audience.add(received.append)
    with caplog.at_level(logging.ERROR, logger="postroad.cluster"):
        audience.publish(make_change("a"))
    assert len(received) == 1
    assert "a listener of membership events failed" in caplog.text


def test_listener_can_remove_itself_during_its_call() -> None:
    audience = MembershipListeners()
    received: list[str] = []

    def once(change: MembershipEvent) -> None:
        received.append("once")
        audience.remove(once)

    audience.add(once)
    audience.add(lambda change: received.append("always"))
    for _ in range(2):
        audience.publish(make_change("a"))
    assert received == ["once", "always", "always"]


async def test_abandoned_event_stream_is_released() -> None:
    audience = MembershipListeners()

    async def read_one() -> str:
        async for change in audience.open_stream():
            return change.member.name
        raise AssertionError("it ended")

    async def read_and_stop() -> None:
        reading = asyncio.create_task(read_one())
        await asyncio.sleep(0)
        audience.publish(make_change("a"))
        assert await reading == "a"

    for _ in range(20):
        await read_and_stop()
    gc.collect()
    audience.publish(make_change("b"))
    assert audience._streams == []


async def test_waiting_event_stream_is_not_garbage_collected() -> None:
    audience = MembershipListeners()
    received: list[str] = []

    async def read() -> None:
        received.append((await anext(audience.open_stream())).member.name)

    # Nobody but what it waits for holds it.
    watched = weakref.ref(asyncio.ensure_future(read()))
    await asyncio.sleep(0)
    gc.collect()
    assert watched() is not None
    audience.publish(make_change("a"))
    await asyncio.sleep(0)
    assert received == ["a"]
    assert audience._waiting == {}
