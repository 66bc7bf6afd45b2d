"""Changes handed to listeners and to readers."""

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


async def test_a_reader_gets_changes_in_their_order_and_then_the_end() -> None:
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


async def test_a_reader_that_waits_is_woken_or_cancelled() -> None:
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


async def test_a_reader_learns_why_it_ended_after_what_is_unread() -> None:
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


async def test_a_reader_that_falls_too_far_behind_is_told_so() -> None:
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


def test_listeners_are_called_until_they_are_removed() -> None:
    audience = MembershipListeners()
    heard: list[MembershipEvent] = []
    change = make_change("a")
    audience.add(heard.append)
    audience.publish(change)
    audience.remove(heard.append)
    audience.remove(heard.append)
    audience.publish(change)
    assert heard == [change]

    audience = MembershipListeners()
    kept, forgotten = audience.open_stream(), weakref.ref(audience.open_stream())
    gc.collect()
    assert forgotten() is None
    audience.publish(make_change("a"))
    assert [ref() for ref in audience._streams] == [kept]


def test_a_listener_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    audience = MembershipListeners()
    heard: list[MembershipEvent] = []

    def fail(change: MembershipEvent) -> None:
        raise ValueError(change)

    audience.add(fail)
    audience.add(heard.append)
    with caplog.at_level(logging.ERROR, logger="postroad.cluster"):
        audience.publish(make_change("a"))
    assert len(heard) == 1
    assert "a listener of membership events failed" in caplog.text


def test_a_listener_may_remove_itself_while_it_is_called() -> None:
    audience = MembershipListeners()
    heard: list[str] = []

    def once(change: MembershipEvent) -> None:
        heard.append("once")
        audience.remove(once)

    audience.add(once)
    audience.add(lambda change: heard.append("always"))
    for _ in range(2):
        audience.publish(make_change("a"))
    assert heard == ["once", "always", "always"]


async def test_readers_that_stopped_reading_leave_nothing_behind() -> None:
    audience = MembershipListeners()

    async def read_one() -> str:
        async for change in audience.open_stream():
            return change.member.name
        raise AssertionError("it ended")

    async def read_and_go_away() -> None:
        reading = asyncio.create_task(read_one())
        await asyncio.sleep(0)
        audience.publish(make_change("a"))
        assert await reading == "a"

    for _ in range(20):
        await read_and_go_away()
    gc.collect()
    audience.publish(make_change("b"))
    assert audience._streams == []


async def test_a_reader_that_waits_is_not_forgotten_though_nobody_else_holds_its_task() -> None:
    audience = MembershipListeners()
    heard: list[str] = []

    async def read() -> None:
        heard.append((await anext(audience.open_stream())).member.name)

    # Nobody but what it waits for holds it.
    watched = weakref.ref(asyncio.ensure_future(read()))
    await asyncio.sleep(0)
    gc.collect()
    assert watched() is not None
    audience.publish(make_change("a"))
    await asyncio.sleep(0)
    assert heard == ["a"]
    assert audience._waiting == {}
