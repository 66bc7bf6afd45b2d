"""Queues of durable messages: what waits in them, and whether it is handed out."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from postroad.admin.bodies import show_body, write_body
from postroad.admin.errors import InvalidRequest, NotFound, nearest
from postroad.core.errors import MalformedPayloadError
from postroad.durable import QueueStatistics, StoredMessage
from postroad.durable.store.tables.rows import PendingMessage
from postroad.node.queues.codec import type_name
from postroad.node.queues.queue import Queue

from .limits import Count, CountView, Limit
from .office import Office, change_mail
from .table import Effect, operation


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of this node."""

    name: str
    depth: int
    """Messages that are not handled."""
    in_flight: int
    """Those of them that are being handled."""
    oldest_age_s: float | None
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
    failures: int
    """How often its handler has failed."""
    error: str | None
    """What came of the last attempt."""
    next_try_at: float | None
    """When it is tried, unless that is when it is its turn; by the clock of the node."""
    is_held: bool
    """Whether it waits for an earlier one of its key, which is tried again."""


class QueueSchemaView(msgspec.Struct, frozen=True, kw_only=True):
    """What the messages of a queue look like."""

    queue: str
    node: str
    """The node that has the queue."""
    type: str | None = None
    """The Python type, if this node declares the queue."""
    schema: dict[str, Any] | None
    """JSON Schema of a message; None if the queue was declared without a type."""


class PostView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that cannot be lost any more."""

    id: str
    queue: str
    peer: str
    """The node it is for."""


@operation("queue.ls")
async def list_queues(office: Office) -> list[QueueView]:
    """Queues of the node: how much waits, since when, and who handles it."""
    statistics = await office.queues.statistics()
    return [_view(name, it) for name, it in sorted(statistics.queues.items())]


@operation("queue.show")
async def show_queue(office: Office, queue: str) -> QueueView:
    """One queue: how much waits, since when, and who handles it."""
    return _view(queue, await _find(office, queue))


@operation("queue.schema")
async def show_schema(office: Office, queue: str, peer: str | None = None) -> QueueSchemaView:
    """The type of a queue's messages: of a queue of this node, or as a peer announces it."""
    node, types = peer or office.name, office.node.queue_types
    if node != office.name:
        return QueueSchemaView(queue=queue, node=node, schema=types.schema_at(node, queue))
    declared = types.queues.get(queue)
    type_ = None if declared is None else type_name(declared.codec.kind)
    return QueueSchemaView(queue=queue, node=node, type=type_, schema=types.schemas.get(queue))


@operation("queue.peek")
async def peek_queue(
    office: Office, queue: str, limit: Limit = 20, id: str | None = None
) -> list[LetterView]:
    """Messages that wait in a queue, the first ones first; they stay there.

    With an id only the one that is called so, wherever it waits.
    """
    await _find(office, queue)
    if id is not None:
        return [view_waiting(it) for it in await office.queues.find_pending(queue, to_number(id))]
    return [view_waiting(it) for it in await office.queues.peek_pending(queue, limit=limit)]


@operation("queue.pause", Effect.CHANGE)
async def pause_queue(office: Office, queue: str) -> QueueView:
    """Hand out no more messages of a queue; they are taken in and wait."""
    await change_mail(office, _find, queue, office.queues.pause)
    return await show_queue(office, queue)


@operation("queue.resume", Effect.CHANGE)
async def resume_queue(office: Office, queue: str) -> QueueView:
    """Hand out the messages of a queue again."""
    await change_mail(office, _find, queue, office.queues.resume)
    return await show_queue(office, queue)


@operation("queue.purge", Effect.DANGER, scope="queue.show")
async def purge_queue(office: Office, queue: str) -> CountView:
    """Throw away all messages of a queue."""
    return CountView(count=await change_mail(office, _find, queue, office.queues.purge))


@operation("queue.move", Effect.DANGER, scope="queue.show")
async def move_queue(office: Office, queue: str, to: str, limit: Count | None = None) -> CountView:
    """Put the messages of a queue into another one, as if they were new.

    A queue that is being consumed has to be paused before.
    """
    await _find(office, queue)
    move = partial(office.queues.move, queue, limit=limit)
    return CountView(count=await change_mail(office, _find, to, move))


@operation("queue.post", Effect.CHANGE)
async def post(
    office: Office,
    queue: str,
    body: Any,
    peer: str | None = None,
    key: str | None = None,
    headers: dict[str, str] = {},  # noqa: B006
    idempotency_key: str | None = None,
    delay_s: float | None = None,
    ttl_s: float | None = None,
    priority: int = 0,
    encoded: bytes | None = None,
) -> PostView:
    """Post a message, to a queue of this node or of a peer.

    A text is sent as it is, everything else as JSON; `encoded`, instead, as the bytes that it is.
    """
    node_queues = office.node.queues
    target = peer or office.name
    payload = write_body(body) if encoded is None else encoded
    declared = office.node.queue_types.queues.get(queue)
    if declared is not None and target == office.name:
        _validate(declared, payload)
    id = await node_queues.send(
        queue,
        payload,
        to=target,
        key=key,
        idempotency_key=idempotency_key,
        delay=delay_s,
        ttl=ttl_s,
        priority=priority,
        headers=headers or None,
    )
    return PostView(id=str(id), queue=queue, peer=target)


def _validate(queue: Queue[Any], body: bytes) -> None:
    """Refuse what the consumer of a queue could not read."""
    try:
        queue.codec.decode(body)
    except MalformedPayloadError as error:
        raise InvalidRequest(f"queue {queue.name} does not take this: {error}") from None


async def _find(office: Office, queue: str) -> QueueStatistics:
    queues = (await office.queues.statistics()).queues
    found = queues.get(queue)
    if found is None:
        raise NotFound(f"node {office.name} has no queue {queue!r}{nearest(queue, queues)}")
    return found


def _view(name: str, it: QueueStatistics) -> QueueView:
    return QueueView(name=name, **msgspec.structs.asdict(it))


def view_letter(letter: StoredMessage) -> LetterView:
    """A message that nobody has tried to handle, as people see it."""
    return view_waiting(PendingMessage(message=letter))


def view_waiting(waiting: PendingMessage) -> LetterView:
    """A message, as people see it."""
    letter = waiting.message
    body = show_body(letter.body)
    return LetterView(
        id=str(letter.id),
        queue=letter.queue,
        key=letter.key,
        headers=letter.headers or {},
        posted_at=letter.sent_ms / 1000,
        due_at=letter.deliver_at_ms / 1000 if letter.deliver_at_ms else None,
        expires_at=letter.expires_ms / 1000 if letter.expires_ms else None,
        priority=letter.priority,
        size=len(letter.body),
        body=body.text,
        encoding=body.encoding,
        failures=waiting.failures,
        error=waiting.error,
        next_try_at=waiting.due_ms / 1000 if waiting.due_ms else None,
        is_held=waiting.is_blocked,
    )


def to_number(id: str) -> int:
    """The number of a message; raises NotFound if none is ever called so."""
    if not (id.isascii() and id.isdecimal() and len(id) < 20):
        raise NotFound(f"{id!r} is no id of a message: those are numbers")
    return int(id)
