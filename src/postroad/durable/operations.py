"""Looking into a node's mail, and deciding what cannot decide itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from postroad.core import validate_node_name
from postroad.core.errors import ConfigError, DeadLetterNotFoundError, UsageError

from .bridges import BridgeManager
from .consumption import Consumption
from .letters import Letter
from .names import validate_queue_name
from .statistics import MailStatistics, PeerStatistics, QueueStatistics, Totals
from .store import DeadLetter, Store
from .store import queries as query
from .store.database import Database
from .store.ledger import Ledger
from .store.moving import move_letters
from .store.rows import RETRIED_HEADER, DeadGroup, WaitingLetter

# Dead letters that are retried or dropped in one commit.
_DEAD_AT_ONCE = 500
_SEARCHED_MAX = 100_000
# Messages that are moved in one commit.
_MOVED_AT_ONCE = 1_000


class StoreOperations:
    """What people do with the mail of a node, running or not.

    operations = StoreOperations(store)
    print(await operations.statistics())
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.totals = Totals()
        # What a running node adds; see Mail.
        self.consumptions: dict[str, Consumption] = {}
        self.manager: BridgeManager | None = None

    # Queues.

    async def browse(self, queue: str, *, limit: int = 100) -> list[Letter]:
        """The first messages of a queue of this node, without consuming them."""
        return await self.store.read(query.browse_queue, queue, limit)

    async def waiting(self, queue: str, *, limit: int = 100) -> list[WaitingLetter]:
        """Likewise, with what was tried: how often, what came of it, and when it is tried again."""
        return await self.store.read(query.browse_waiting, queue, limit)

    async def find_waiting(self, queue: str, id: int) -> list[WaitingLetter]:
        """The messages of that id in a queue, among the first hundred thousand of it.

        Several senders may have given the same id.
        """

        def find(database: Database) -> list[WaitingLetter]:
            letters = query.browse_waiting(database, queue, _SEARCHED_MAX)
            return [it for it in letters if it.letter.id == id]

        return await self.store.read(find)

    async def find_letters(self, queue: str, id: int) -> list[Letter]:
        """Those messages themselves."""
        return [it.letter for it in await self.find_waiting(queue, id)]

    async def browse_outbox(self, peer: str, *, limit: int = 100) -> list[Letter]:
        """The first messages that wait for a peer."""
        return await self.store.read(query.browse_outbox, peer, limit)

    async def purge(self, queue: str) -> int:
        """Remove all messages of a queue of this node; returns how many."""
        validate_queue_name(queue)
        count = await self.store.write(lambda ledger: ledger.queues.purge(queue))
        if queue in self.consumptions:
            self.consumptions[queue].reload()
        return count

    async def purge_outbox(self, peer: str) -> int:
        """Remove what waits for a peer; returns how many messages that were.

        What is on its way at the moment may still arrive.
        """
        count = await self.store.write(lambda ledger: ledger.outbox.purge(peer))
        self._forget(peer)
        return count

    async def move(self, queue: str, to: str, *, limit: int | None = None) -> int:
        """Put the messages of a queue into another one of this node, as if new; how many.

        They keep their order and what they say, and their failures count no more.

        Raises:
            UsageError: some of them may be handled meanwhile; `pause` the queue first.
        """
        validate_queue_name(queue)
        if validate_queue_name(to) == queue:
            raise ConfigError(f"queue {queue!r} cannot be moved into itself")
        # Those that come meanwhile stay.
        left = await self.store.read(_depth, queue) if limit is None else limit
        count = 0
        while left > count:
            self._check_rests(queue)
            wanted = min(left - count, _MOVED_AT_ONCE)
            moved = await self.store.write(partial(move_letters, queue=queue, to=to, limit=wanted))
            if queue in self.consumptions:
                self.consumptions[queue].reload()
            if moved == 0:
                break
            count += moved
        return count

    def _check_rests(self, queue: str) -> None:
        """Raise UsageError if messages of a queue may be in somebody's hands."""
        consumption = self.consumptions.get(queue)
        if consumption is None:
            is_busy = queue in self.store.claims
        else:
            is_busy = not consumption.is_paused or bool(
                consumption.in_hand or consumption.uncommitted
            )
        if is_busy:
            raise UsageError(
                f"queue {queue!r} is being consumed: pause it, and wait until nothing is in hand"
            )

    async def pause(self, queue: str) -> None:
        """Have nothing of a queue handled until `resume`, also after a restart."""
        await self._set_paused(queue, True)

    async def resume(self, queue: str) -> None:
        """Go on handling a queue."""
        await self._set_paused(queue, False)

    async def _set_paused(self, queue: str, is_paused: bool) -> None:
        validate_queue_name(queue)
        await self.store.write(lambda ledger: ledger.queues.pause(queue, is_paused))
        if (consumption := self.consumptions.get(queue)) is not None:
            consumption.is_paused = is_paused
            consumption.changed.set()

    # Peers.

    async def start_epoch(self, peer: str) -> int:
        """Begin anew with a peer, after one of the two stores was restored from a backup.

        Everything that waits is sent as if the peer had never heard of it, so purge first what it
        may have. Returns how many messages wait.
        """
        count = await self.store.write(lambda ledger: ledger.outbox.start_epoch(peer))
        self._forget(peer)
        return count

    async def pause_bridge(self, peer: str) -> None:
        """Send a peer nothing until `resume_bridge`, also after a restart; its mail waits.

        What is on its way at the moment may still arrive.
        """
        await self._pause_bridge(peer, True)

    async def resume_bridge(self, peer: str) -> None:
        """Go on sending."""
        await self._pause_bridge(peer, False)

    async def _pause_bridge(self, peer: str, is_paused: bool) -> None:
        validate_node_name(peer)
        await self.store.write(lambda ledger: ledger.outbox.pause(peer, is_paused))
        self._forget(peer)

    def _forget(self, peer: str) -> None:
        """What waits for a peer was changed in the store: whoever carries it must know."""
        if self.manager is not None:
            self.manager.forget(peer)

    # Dead letters.

    async def dead_letters(
        self,
        queue: str | None = None,
        *,
        reason: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """Dead letters in the order they died; `after` continues a list."""
        return await self.store.read(query.list_dead, queue, after, limit, reason)

    async def dead_groups(self) -> list[DeadGroup]:
        """Dead letters by queue and by what they died of, those that are many first."""
        return await self.store.read(query.group_dead)

    async def count_dead(self, queue: str | None = None, *, reason: str | None = None) -> int:
        """How many dead letters there are."""
        return await self.store.read(query.count_dead, queue, reason)

    async def dead_letter(self, id: int) -> DeadLetter:
        """One dead letter."""
        dead = await self.store.read(query.find_dead, id)
        if dead is None:
            raise DeadLetterNotFoundError(f"there is no dead letter {id}")
        return dead

    async def find_dead(self, id: int) -> list[DeadLetter]:
        """The dead letter of that number, and those whose message has it as its id.

        Of those, the hundred thousand that died last are looked at.
        """

        def find(database: Database) -> list[DeadLetter]:
            after = query.last_dead(database) - _SEARCHED_MAX
            letters = query.list_dead(database, None, after, _SEARCHED_MAX)
            named = query.find_dead(database, id)
            found = [it for it in letters if it.letter.id == id and it.id != id]
            return found if named is None else [named, *found]

        return await self.store.read(find)

    async def retry_dead(self, id: int) -> None:
        """Have a dead letter delivered or handled once more, as if it were new."""
        await self.store.write(lambda ledger: _revive(ledger, _remove(ledger, id)))

    async def retry_some_dead(self, ids: Iterable[int]) -> int:
        """Do that with those of them that are there, all at once; returns how many."""
        return await self.store.write(partial(_act, ids=[*dict.fromkeys(ids)], action=_revive))

    async def retry_all_dead(
        self, queue: str | None = None, *, reason: str | None = None, limit: int | None = None
    ) -> int:
        """Do that with all of them, or all of one queue or reason; returns how many.

        Args:
            limit: at most so many, those that died first.
        """
        return await self._each_dead(queue, reason, limit, _revive)

    async def drop_dead(self, id: int) -> None:
        """Forget a dead letter."""
        await self.store.write(lambda ledger: _remove(ledger, id))

    async def drop_some_dead(self, ids: Iterable[int]) -> int:
        """Forget those of them that are there, all at once; returns how many."""
        return await self.store.write(partial(_act, ids=[*dict.fromkeys(ids)], action=_leave))

    async def drop_all_dead(
        self, queue: str | None = None, *, reason: str | None = None, limit: int | None = None
    ) -> int:
        """Forget all of them, or all of one queue or reason; returns how many.

        Args:
            limit: at most so many, those that died first.
        """
        return await self._each_dead(queue, reason, limit, _leave)

    async def _each_dead(
        self,
        queue: str | None,
        reason: str | None,
        limit: int | None,
        action: Callable[[Ledger, DeadLetter], None],
    ) -> int:
        # Those that die meanwhile are left for the next time.
        last = await self.store.read(query.last_dead)
        count = after = 0
        while dead := await self.dead_letters(
            queue, reason=reason, after=after, limit=_part(_DEAD_AT_ONCE, limit, count)
        ):
            ids = [it.id for it in dead if it.id <= last]
            count += await self.store.write(partial(_act, ids=ids, action=action))
            after = dead[-1].id
            if after >= last:
                break
        return count

    # Numbers.

    async def statistics(self) -> MailStatistics:
        """How much waits where, since when, and how fast it goes."""
        now_ms = time.time_ns() // 1_000_000
        queues, peers, dead = await self.store.read(_count_all, now_ms)
        health = {} if self.manager is None else {it.peer: it for it in self.manager.health()}
        return MailStatistics(
            queues={
                name: self._queue_statistics(name, depth, oldest_ms, now_ms, is_paused)
                for name, depth, oldest_ms, is_paused in queues
            },
            peers={
                peer.name: PeerStatistics(
                    depth=depth,
                    oldest_s=_age_s(oldest_ms, now_ms),
                    posted=peer.head,
                    epoch=peer.epoch,
                    is_paused=peer.is_paused,
                    bridge=health.get(peer.name),
                )
                for peer, depth, oldest_ms in peers
            },
            dead=dead,
            blocked_senders=self._blocked_senders(),
            commits=self.store.writer.commits,
            unclaimed_replies=self.totals.unclaimed_replies,
            posted_per_s=self.totals.posted.per_s(time.monotonic()),
            handled_per_s=self.totals.handled.per_s(time.monotonic()),
            failed_per_s=self.totals.failed.per_s(time.monotonic()),
        )

    def _blocked_senders(self) -> list[str]:
        """Only a running node takes mail of others, or does not."""
        return []

    def _queue_statistics(
        self, name: str, depth: int, oldest_ms: int | None, now_ms: int, is_paused: bool
    ) -> QueueStatistics:
        consumption = self.consumptions.get(name)
        return QueueStatistics(
            depth=depth,
            in_hand=0 if consumption is None else consumption.in_hand,
            oldest_s=_age_s(oldest_ms, now_ms),
            is_paused=is_paused,
            has_consumer=name in self.store.claims,
            handled=0 if consumption is None else consumption.handled,
            failed=0 if consumption is None else consumption.failed,
        )


def _part(most: int, limit: int | None, done: int) -> int:
    """How many are next, of a limited number."""
    return most if limit is None else min(most, limit - done)


def _age_s(since_ms: int | None, now_ms: int) -> float | None:
    return None if since_ms is None else max((now_ms - since_ms) / 1000, 0.0)


def _count_all(database: Database, now_ms: int) -> tuple[list, list, int]:  # type: ignore[type-arg]
    queues = [
        (name, query.count_pending(database, id), query.oldest_in(database, id, now_ms), is_paused)
        for name, (id, is_paused) in query.list_queues(database).items()
    ]
    peers = [
        (peer, query.count_outbox(database, peer.id), query.oldest_for(database, peer.id))
        for peer in query.list_peers(database)
    ]
    return queues, peers, query.count_dead(database)


def _depth(database: Database, queue: str) -> int:
    id, _ = query.list_queues(database).get(queue, (0, False))
    return query.count_pending(database, id)


def _act(ledger: Ledger, ids: list[int], action: Callable[[Ledger, DeadLetter], None]) -> int:
    # Some may have been retried or dropped meanwhile.
    found = [dead for id in ids if (dead := ledger.dead.remove(id)) is not None]
    for dead in found:
        action(ledger, dead)
    return len(found)


def _leave(ledger: Ledger, dead: DeadLetter) -> None:
    """Do nothing with a dead letter: it is removed already."""


def _remove(ledger: Ledger, id: int) -> DeadLetter:
    dead = ledger.dead.remove(id)
    if dead is None:
        raise DeadLetterNotFoundError(f"there is no dead letter {id}")
    return dead


def _revive(ledger: Ledger, dead: DeadLetter) -> None:
    # Its times are over.
    headers = {**(dead.letter.headers or {}), RETRIED_HEADER: str(dead.retried + 1)}
    letter = msgspec.structs.replace(dead.letter, due_ms=0, expires_ms=0, headers=headers)
    if dead.is_outbound:
        ledger.append_letter(dead.peer, letter)
    else:
        ledger.queues.store_letters(dead.peer, [letter], 0, ledger.now_ms)
