"""Queues of durable messages: what waits in them, and whether it is handed out."""

from __future__ import annotations

from typing import Annotated

import msgspec

from postroad.admin.errors import NotFound, nearest
from postroad.durable import QueueStatistics

from .office import Office
from .table import Effect, operation

Limit = Annotated[int, msgspec.Meta(ge=1, le=1_000)]


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of this node."""

    name: str
    depth: int
    """Messages that are not handled."""
    in_hand: int
    """Those of them that are being handled."""
    oldest_s: float | None
    is_paused: bool
    has_consumer: bool
    handled: int
    """Since the node was started."""
    failed: int
    """Likewise."""


class LetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits."""

    id: str
    queue: str
    key: str | None
    headers: dict[str, str]
    posted_at: float
    """Seconds since 1970, by the clock of the sender."""
    due_at: float | None
    expires_at: float | None
    priority: int
    size: int
    body: str
    """As text if it is text or JSON or MsgPack, else in hexadecimal; cut off after 16 KiB."""
    encoding: str
    """`json`, `text`, `msgpack` or `hex`."""


@operation("queue.ls")
async def list_queues(office: Office) -> list[QueueView]:
    """Queues of the node: how much waits, since when, and who handles it."""
    statistics = await office.mail.statistics()
    return [_view(name, it) for name, it in sorted(statistics.queues.items())]


@operation("queue.show")
async def show_queue(office: Office, queue: str) -> QueueView:
    """One queue."""
    return _view(queue, await _find(office, queue))


@operation("queue.pause", Effect.CHANGE)
async def pause_queue(office: Office, queue: str) -> QueueView:
    """Hand out no more messages of a queue; they are taken in and wait."""
    await _find(office, queue)
    await office.mail.pause(queue)
    return await show_queue(office, queue)


async def _find(office: Office, queue: str) -> QueueStatistics:
    queues = (await office.mail.statistics()).queues
    found = queues.get(queue)
    if found is None:
        raise NotFound(f"node {office.name} has no queue {queue!r}{nearest(queue, queues)}")
    return found


def _view(name: str, it: QueueStatistics) -> QueueView:
    return QueueView(name=name, **msgspec.structs.asdict(it))
