"""Requests that wait, and handlers at work, whatever ids a peer gives them."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from postroad.net.connections.handler_tasks import Backlog, HandlerTask, HandlerTasks
from postroad.net.dispatch import Subscription
from postroad.wire import RequestFrame

# The smallest and largest ids of all versions, and those next to where own keys begin.
IDS = [0, 1, -1, -2, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1]


class CountingRequest:
    """Counts how often it is looked at."""

    looks = 0

    def __init__(self, id: int) -> None:
        self._id = id

    @property
    def id(self) -> int:
        CountingRequest.looks += 1
        return self._id

    def __eq__(self, other: object) -> bool:
        CountingRequest.looks += 1
        return self is other

    def __hash__(self) -> int:
        return self._id


def test_cancelling_looks_at_no_other_request() -> None:
    backlog, count = Backlog(), 2_000
    for id in range(count):
        backlog.add(cast("RequestFrame", CountingRequest(id)), 0.0)
    CountingRequest.looks = 0
    assert all(backlog.cancel(id) for id in reversed(range(count)))
    assert CountingRequest.looks <= count
    assert not backlog


def test_backlog_keeps_order_with_duplicate_ids() -> None:
    backlog = Backlog()
    requests = [RequestFrame(id, "a", bytes([index])) for index, id in enumerate([5, 5, *IDS, 5])]
    for index, request in enumerate(requests):
        backlog.add(request, float(index))
    assert len(backlog) == len(requests)
    assert [backlog.pop_first() for _ in requests] == [
        (request, float(index)) for index, request in enumerate(requests)
    ]


def test_backlog_retain_keeps_order_and_returns_others() -> None:
    backlog = Backlog()
    requests = [RequestFrame(7, subject, b"") for subject in "abab"]
    for request in requests:
        backlog.add(request, 1.0)
    assert backlog.retain(lambda request: request.subject == "b") == requests[::2]
    assert [backlog.pop_first()[0] for _ in range(2)] == requests[1::2]
    assert not backlog.cancel(7)


class Owner:
    def __init__(self, runs: HandlerTasks) -> None:
        self._runs = runs

    def on_handled(self, run: HandlerTask) -> None:
        self._runs.finish(run)


@pytest.mark.parametrize("ending", ["expire", "cancel_requests", "cancel_all"])
async def test_handlers_with_hostile_ids_are_all_tracked(ending: str) -> None:
    """A peer may reuse an id, and guess what key another handler of that id has."""
    loop = asyncio.get_running_loop()
    runs = HandlerTasks(100)
    owner = Owner(runs)
    subscription = Subscription("a", lambda _: b"", one_way=False)
    futures = []
    for id in [5, 5, 5, *IDS, *IDS, 5]:
        future: asyncio.Future[bytes | bytearray | memoryview | None] = loop.create_future()
        futures.append(future)
        run = HandlerTask(future, RequestFrame(id, "a", b""), subscription, owner, False)
        runs.add(run, 1.0)
        future.add_done_callback(run)
    assert len(runs) == len(futures)
    if ending == "expire":
        assert len(runs.expire(2.0)) == len(futures)
    else:
        getattr(runs, ending)()
    assert all(future.cancelled() for future in futures)
    await asyncio.sleep(0)
    assert len(runs) == 0
