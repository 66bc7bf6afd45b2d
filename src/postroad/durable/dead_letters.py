"""Dead letters of a store: list, find, retry and drop them.

What makes a message a dead letter is decided elsewhere: `QueueDispatcher.is_final_failure`
(consumers/dispatcher.py) for messages in queues, `StreamTable` (store/tables/streams.py) for those
that arrive, `Bridge` for those that cannot be sent, and `arrivals` for those of other programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

import msgspec

from postroad.core.errors import DeadLetterNotFoundError
from postroad.durable.store import DeadLetter, Store
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.rows import RETRIED_HEADER, DeadLetterGroup
from postroad.durable.store.tables.store_tables import StoreTables

# Dead letters that are retried or dropped in one commit.
_BATCH = 500
_SEARCHED_MAX = 100_000

# The class has a method `list`.
_DeadLetterList: TypeAlias = list[DeadLetter]
_GroupList: TypeAlias = list[DeadLetterGroup]
_Action: TypeAlias = Callable[[StoreTables, DeadLetter], None]


class DeadLetters:
    """The dead letters of a node, running or not."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(
        self,
        queue: str | None = None,
        *,
        reason: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> _DeadLetterList:
        """Return dead letters, oldest first; `after` is the last id of the batch before."""
        return await self._store.read(query.list_dead_letters, queue, after, limit, reason)

    async def groups(self) -> _GroupList:
        """Return dead letters counted by queue, reason and detail, the largest group first."""
        return await self._store.read(query.group_dead_letters)

    async def count(self, queue: str | None = None, *, reason: str | None = None) -> int:
        """Return the number of dead letters, of one queue or reason if given."""
        return await self._store.read(query.count_dead_letters, queue, reason)

    async def get(self, id: int) -> DeadLetter:
        """Return one dead letter.

        Raises:
            DeadLetterNotFoundError: there is none with this id.
        """
        dead = await self._store.read(query.find_dead_letter, id)
        if dead is None:
            raise _not_found(id)
        return dead

    async def find(self, id: int) -> _DeadLetterList:
        """Return the dead letter with this id, and those whose message has it as its id.

        Messages are searched among the newest hundred thousand dead letters.
        """

        def find(database: StoreConnection) -> _DeadLetterList:
            after = query.last_dead_letter_id(database) - _SEARCHED_MAX
            newest = query.list_dead_letters(database, None, after, _SEARCHED_MAX)
            named = query.find_dead_letter(database, id)
            others = [dead for dead in newest if dead.message.id == id and dead.id != id]
            return others if named is None else [named, *others]

        return await self._store.read(find)

    async def retry(self, id: int) -> None:
        """Deliver or handle a dead letter once more, as a new message.

        Raises:
            DeadLetterNotFoundError: there is none with this id.
        """
        await self._store.write(lambda tables: _redeliver(tables, _remove(tables, id)))

    async def retry_many(
        self,
        ids: Iterable[int] | None = None,
        *,
        queue: str | None = None,
        reason: str | None = None,
        limit: int | None = None,
    ) -> int:
        """Retry dead letters and return how many.

        Args:
            ids: those of these that exist, in one commit; by default all.
            queue: without ids, only those of this queue.
            reason: without ids, only those with this reason.
            limit: without ids, at most so many, oldest first.
        """
        return await self._apply_to(ids, queue, reason, limit, _redeliver)

    async def drop(self, id: int) -> None:
        """Delete a dead letter.

        Raises:
            DeadLetterNotFoundError: there is none with this id.
        """
        await self._store.write(lambda tables: _remove(tables, id))

    async def drop_many(
        self,
        ids: Iterable[int] | None = None,
        *,
        queue: str | None = None,
        reason: str | None = None,
        limit: int | None = None,
    ) -> int:
        """Delete dead letters and return how many; the arguments are those of `retry_many`."""
        return await self._apply_to(ids, queue, reason, limit, None)

    async def _apply_to(
        self,
        ids: Iterable[int] | None,
        queue: str | None,
        reason: str | None,
        limit: int | None,
        action: _Action | None,
    ) -> int:
        if ids is not None:
            unique = [*dict.fromkeys(ids)]
            return await self._store.write(partial(_remove_all, ids=unique, action=action))
        # Those added meanwhile are left for the next call.
        last = await self._store.read(query.last_dead_letter_id)
        count = after = 0
        while batch := await self.list(
            queue,
            reason=reason,
            after=after,
            limit=_BATCH if limit is None else min(_BATCH, limit - count),
        ):
            old = [dead.id for dead in batch if dead.id <= last]
            count += await self._store.write(partial(_remove_all, ids=old, action=action))
            after = batch[-1].id
            if after >= last:
                break
        return count


def _not_found(id: int) -> DeadLetterNotFoundError:
    return DeadLetterNotFoundError(f"there is no dead letter {id}")


def _remove(tables: StoreTables, id: int) -> DeadLetter:
    dead = tables.dead_letters.remove(id)
    if dead is None:
        raise _not_found(id)
    return dead


def _remove_all(tables: StoreTables, ids: list[int], action: _Action | None) -> int:
    # Some may have been retried or dropped meanwhile.
    removed = [dead for id in ids if (dead := tables.dead_letters.remove(id)) is not None]
    if action is not None:
        for dead in removed:
            action(tables, dead)
    return len(removed)


def _redeliver(tables: StoreTables, dead: DeadLetter) -> None:
    headers = {**(dead.message.headers or {}), RETRIED_HEADER: str(dead.retried + 1)}
    # Its delay is over, and its expiry must not kill it again.
    message = msgspec.structs.replace(dead.message, deliver_at_ms=0, expires_ms=0, headers=headers)
    if dead.is_outbound:
        tables.enqueue_message(dead.peer, message)
    else:
        tables.queues.store_messages(dead.peer, [message], 0, tables.now_ms)
