"""Dead letters: messages that nobody could deliver or handle, and what becomes of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import msgspec

from postroad.admin.bodies import show_body
from postroad.admin.vitals import vitals_of
from postroad.core.errors import DeadLetterNotFoundError
from postroad.durable import DeadLetter
from postroad.durable import DeadLetterGroup as Group
from postroad.durable.store.tables.rows import RETRIED_HEADER

from .limits import Count, CountView, Limit
from .office import Office, mail_changed
from .queues import to_number
from .table import Effect, operation


class DeadView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that nobody could deliver or handle."""

    id: str
    message: str
    """The id it was posted with."""
    queue: str
    peer: str
    """Whom it was for, or whom it came from."""
    is_outbound: bool
    """Whether this node wanted to send it; otherwise it was received."""
    reason: str
    detail: str
    failures: int
    """How often its handler failed."""
    died_at: float
    retried: int
    """How often it had died before, and was tried again."""
    body: str
    encoding: str
    size: int
    headers: dict[str, str]
    key: str | None


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one queue that died of the same."""

    queue: str
    reason: str
    detail: str
    count: int
    oldest_at: float
    newest_at: float


@operation("dlq.ls")
async def list_dead(
    office: Office,
    queue: str | None = None,
    reason: str | None = None,
    after: int = 0,
    limit: Limit = 100,
) -> list[DeadView]:
    """Dead letters in the order they died; `after` is the id of the last one seen."""
    found = await office.queues.dead_letters.list(queue, reason=reason, after=after, limit=limit)
    return [_view(it) for it in found]


@operation("dlq.groups")
async def group_dead(office: Office) -> list[DeadGroup]:
    """Dead letters by queue and by what they died of, those that are many first."""
    return [
        DeadGroup(
            queue=it.queue,
            reason=it.reason,
            detail=it.detail,
            count=it.count,
            oldest_at=it.oldest_ms / 1000,
            newest_at=it.newest_ms / 1000,
        )
        for it in await _groups(office)
    ]


async def _groups(office: Office) -> list[Group]:
    if office.is_running:
        return await vitals_of(office.node).dead.take()
    return await office.queues.dead_letters.groups()


@operation("dlq.show")
async def show_dead(office: Office, id: str) -> DeadView:
    """One dead letter, and what it died of."""
    return _view(await office.queues.dead_letters.get(to_number(id)))


@operation("dlq.count")
async def count_dead(
    office: Office,
    ids: list[str] | None = None,
    queue: str | None = None,
    reason: str | None = None,
) -> CountView:
    """How many dead letters there are, or would be retried or dropped."""
    if ids is None:
        return CountView(count=await office.queues.dead_letters.count(queue, reason=reason))
    count = 0
    for id in _numbers(ids):
        with suppress(DeadLetterNotFoundError):
            await office.queues.dead_letters.get(id)
            count += 1
    return CountView(count=count)


@operation("dlq.retry", Effect.CHANGE, scope="dlq.count")
async def retry_dead(
    office: Office,
    ids: list[str] | None = None,
    queue: str | None = None,
    reason: str | None = None,
    limit: Count | None = None,
) -> CountView:
    """Have dead letters delivered or handled once more, as if they were new.

    Those of the ids, or all of a queue, of a reason, or all there are; those that died first if
    there is a limit.
    """
    dead_letters = office.queues.dead_letters
    of_all = partial(dead_letters.retry_many, queue=queue, reason=reason, limit=limit)
    return await _change(office, ids, dead_letters.retry_many, of_all)


@operation("dlq.drop", Effect.DANGER, scope="dlq.count")
async def drop_dead(
    office: Office,
    ids: list[str] | None = None,
    queue: str | None = None,
    reason: str | None = None,
    limit: Count | None = None,
) -> CountView:
    """Forget dead letters: those of the ids, or all of a queue, of a reason, or all there are.

    Those that died first if there is a limit.
    """
    dead_letters = office.queues.dead_letters
    of_all = partial(dead_letters.drop_many, queue=queue, reason=reason, limit=limit)
    return await _change(office, ids, dead_letters.drop_many, of_all)


async def _change(
    office: Office,
    ids: list[str] | None,
    of_ids: Callable[[list[int]], Awaitable[int]],
    of_all: Callable[[], Awaitable[int]],
) -> CountView:
    """Do something with the dead letters of some ids, or with all that are meant without."""
    count = await (of_all() if ids is None else of_ids(_numbers(ids)))
    if ids and not count:
        raise DeadLetterNotFoundError(f"there is no dead letter {' or '.join(ids[:5])}")
    mail_changed(office)
    return CountView(count=count)


def _numbers(ids: list[str]) -> list[int]:
    return [*dict.fromkeys(map(to_number, ids))]


def _view(dead: DeadLetter) -> DeadView:
    letter = dead.message
    body = show_body(letter.body)
    headers = {name: it for name, it in (letter.headers or {}).items() if name != RETRIED_HEADER}
    return DeadView(
        id=str(dead.id),
        message=str(letter.id),
        queue=dead.queue,
        peer=dead.peer,
        is_outbound=dead.is_outbound,
        reason=dead.reason,
        detail=dead.detail,
        failures=dead.failures,
        died_at=dead.dead_at_ms / 1000,
        retried=dead.retried,
        body=body.text,
        encoding=body.encoding,
        size=len(letter.body),
        headers=headers,
        key=letter.key,
    )
