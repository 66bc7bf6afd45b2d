"""What the process with the account of a job knows of a Redis stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from postroad.pipeline.connectors.connector import Position, Split
from postroad.pipeline.connectors.redis.client import (
    REQUEST_S,
    START,
    ConsumerGroupNotFoundError,
    EntryId,
    RedisStreamEndpoint,
    StreamEntry,
    id_after,
    mapped_errors,
    need_redis,
    parse_entries,
    parse_id,
    show_id,
)
from postroad.pipeline.connectors.stream import PAUSE_S

logger = logging.getLogger("postroad.pipeline")

_CONSUMER = "postroad"
_ACKS_AT_ONCE = 1_000
# How many entries are asked for before it is known how long they are.
_FIRST_COUNT = 100
_REPLY_BYTES = 1024 * 1024

_Range = tuple[EntryId, EntryId]


class _RedisStreamInfo(NamedTuple):
    """What a stream has."""

    first: EntryId | None
    """None if it is empty."""
    last: EntryId
    """The last id that it ever gave."""
    length: int
    added: int | None
    """How many entries it ever had; before version 7 no server knows."""


class RedisSplitPlanner:
    """Cuts a stream into slices, and tells its group of consumers what is done.

    Args:
        access: the stream.
        group: name of the group.
        unsettled: slices that were admitted and not settled.
        ignore_trimmed: whether to go on when entries are gone that were never read.
    """

    def __init__(
        self,
        access: RedisStreamEndpoint,
        group: str,
        unsettled: Iterable[Position],
        ignore_trimmed: bool,
    ) -> None:
        self._access = access
        self._group = group
        self._ignore_trimmed = ignore_trimmed
        self._client: Any = None
        self._unsettled: set[_Range] = {range_of(it) for it in unsettled}
        # Entries above the position that were seen, with their sizes.
        self._known: dict[EntryId, int] = {}
        self._position = START
        # How many entries there ever were up to the position.
        self._number: int | None = None
        # Up to where slices were cut, whether they were admitted or not.
        self._cut_upto = START
        # Between the position and this, entries went to somebody who is dead.
        self._missed_upto = START
        self._is_synced = False
        # What is to be acknowledged.
        self._done: list[_Range] = []
        self._asking: set[asyncio.Task[Any]] = set()
        # Where the stream ends for us.
        self._stop: EntryId | None = None
        self._entry_bytes = _REPLY_BYTES // _FIRST_COUNT

    async def open(self, is_bounded: bool) -> None:
        need_redis()
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        # Who lost the connection must first ask how far things are.
        retry = Retry(NoBackoff(), 0)
        self._client = Redis.from_url(self._access.url, **self._access.options(), retry=retry)
        stream = await self._look_at_stream()
        await self._delivered()
        if is_bounded:
            self._stop = stream.last

    async def close(self) -> None:
        if self._client is None:
            return
        try:
            if self._is_synced:
                await self._acknowledge()
        finally:
            await self._client.aclose()
            if self._asking:
                await asyncio.wait(self._asking, timeout=REQUEST_S)

    async def _ask(self, command: str, *args: object, **parsing: object) -> Any:
        # In a task of its own, because there are moments in which redis-py takes a cancellation for
        # something else: we end at once, and the question when it is answered.
        asking = asyncio.create_task(self._client.execute_command(command, *args, **parsing))
        self._asking.add(asking)
        asking.add_done_callback(self._on_answered)
        try:
            # Over its connections redis-py has time limits, but not over waiting for one.
            await asyncio.wait([asking], timeout=2 * REQUEST_S)
        finally:
            asking.cancel()
        with mapped_errors(self._access):
            if not asking.done():
                raise TimeoutError
            return asking.result()

    def _on_answered(self, asked: asyncio.Task[Any]) -> None:
        self._asking.discard(asked)
        if not asked.cancelled():
            # Whoever still waits for it looks at it too.
            asked.exception()

    # Looking for entries.

    async def fetch_ahead(self, after: Position | None, segments: int) -> None:
        """See to it that so many entries above the position are known, if there are."""
        try:
            try:
                await self._look_all(after, segments)
            except ConsumerGroupNotFoundError:
                # Somebody did away with it, perhaps with the stream.
                self._is_synced = False
                await self._look_all(after, segments)
        except BaseException:
            # What was sent to us may be lost.
            self._is_synced = False
            raise

    async def _look_all(self, after: Position | None, segments: int) -> None:
        self._position = START if after is None else parse_id(after["id"])
        self._known = {it: size for it, size in self._known.items() if it > self._position}
        # Those that were cut and never admitted.
        self._unsettled = {it for it in self._unsettled if it[0] <= self._position}
        self._check_for_lost(await self._look_at_stream(), after)
        if not self._is_synced:
            await self._sync()
        await self._acknowledge()
        while not self._is_enough(segments) and await self._look(segments - len(self._known)):
            continue

    def _is_enough(self, segments: int) -> bool:
        if self._stop is not None and (
            self._position >= self._stop or max(self._known, default=START) >= self._stop
        ):
            return True
        return len(self._known) >= segments

    async def _look(self, segments: int) -> bool:
        """Look for so many more, or as many as fit into a reply; false if none are there now."""
        count = min(segments, max(_REPLY_BYTES // max(self._entry_bytes, 1), 1))
        reached = max(self._known, default=self._position)
        if reached < self._missed_upto:
            entries = await self._range(id_after(reached), self._missed_upto, count)
            if not entries:
                self._missed_upto = START
        else:
            entries = await self._take(count)
        for entry in entries:
            self._on_found(entry)
        if entries:
            self._entry_bytes = max(sum(it.size for it in entries) // len(entries), 1)
        return bool(entries) or reached < self._missed_upto

    async def _range(self, first: EntryId, last: EntryId, count: int) -> list[StreamEntry]:
        stream = self._access.stream
        found = await self._ask("XRANGE", stream, show_id(first), show_id(last), "COUNT", count)
        return parse_entries(found)

    async def _take(self, count: int) -> list[StreamEntry]:
        """Entries that went to nobody of the group."""
        group, stream = (self._group, _CONSUMER), self._access.stream
        found = await self._ask(
            "XREADGROUP", "GROUP", *group, "COUNT", count, "STREAMS", stream, ">"
        )
        return parse_entries(found[0][1]) if found else []

    def _on_found(self, entry: StreamEntry) -> None:
        if entry.id > self._position:
            self._known[entry.id] = entry.size
        elif not any(first <= entry.id <= last for first, last in self._unsettled):
            # It was delivered before, and is done.
            self._done.append((entry.id, entry.id))

    # Being sure of how far things are.

    async def _look_at_stream(self) -> _RedisStreamInfo:
        facts = await self._ask("XINFO STREAM", self._access.stream)
        first = facts["first-entry"]
        return _RedisStreamInfo(
            parse_id(first[0]) if first else None,
            parse_id(facts["last-generated-id"]),
            facts["length"],
            facts.get("entries-added"),
        )

    def _check_for_lost(self, stream: _RedisStreamInfo, after: Position | None) -> None:
        """Whether entries are gone that nobody has read: then their numbers do not add up."""
        self._number = None if after is None else after["number"]
        is_above = stream.first is None or stream.first > self._position
        if stream.added is None or not is_above:
            return
        before = stream.added - stream.length
        if self._number is not None and self._number < before:
            lost = (
                f"{before - self._number} entries after {show_id(self._position)} are lost: they"
                f" were trimmed or deleted before they were read; {self._access.shown}"
            )
            if not self._ignore_trimmed:
                raise OSError(lost)
            logger.error("%s", lost)
        self._number = before

    async def _sync(self) -> None:
        delivered, pending = await self._delivered()
        if delivered < self._position:
            position = show_id(self._position)
            await self._ask("XGROUP SETID", self._access.stream, self._group, position)
        self._missed_upto = delivered
        if pending:
            await self._acknowledge_again()
        self._is_synced = True

    async def _delivered(self) -> tuple[EntryId, int]:
        """The last entry that the group gave to somebody, and how many it knows not to be done."""
        for group in await self._ask("XINFO GROUPS", self._access.stream):
            if group["name"] == self._group.encode():
                return parse_id(group["last-delivered-id"]), group["pending"]
        start = show_id(self._position)
        await self._ask("XGROUP CREATE", self._access.stream, self._group, start)
        return self._position, 0

    async def _acknowledge_again(self) -> None:
        """What is not unsettled is done, though that was perhaps not heard."""
        first = START
        while ids := await self._pending(first, self._position):
            done = [
                it for it in ids if not any(first <= it <= last for first, last in self._unsettled)
            ]
            await self._acknowledge_ids(done)
            first = id_after(ids[-1])

    # Cutting.

    def plan_splits(self, segments: int, slice_segments: int, slice_bytes: int) -> list[Split]:
        """Slices of what is known. Each begins where the last one ended.

        So there is nothing between them that could be missed.
        """
        slices: list[Split] = []
        position, number, stop = self._position, self._number, self._stop
        known = sorted(it for it in self._known if stop is None or it <= stop)[:segments]
        count = size = 0
        for id in known:
            count += 1
            size += self._known[id]
            if count >= slice_segments or size >= slice_bytes or id == known[-1]:
                number = None if number is None else number + count
                slices.append(self._slice(id_after(position), id, count, number))
                position, count, size = id, 0, 0
        self._cut_upto = position
        return slices

    def _slice(self, first: EntryId, last: EntryId, count: int, number: int | None) -> Split:
        self._unsettled.add((first, last))
        place = {"first": show_id(first), "last": show_id(last), "count": count}
        return Split(place, count, {"id": show_id(last), "number": number})

    # Waiting.

    async def wait(self, timeout_s: float) -> None:
        is_more_known = max(self._known, default=START) > self._cut_upto
        if not self._is_synced or is_more_known or self._cut_upto < self._missed_upto:
            await asyncio.sleep(min(timeout_s, PAUSE_S))
            return
        block_ms = max(round(min(timeout_s, REQUEST_S / 2) * 1000), 1)
        stream, newest = self._access.stream, show_id(self._cut_upto)
        try:
            await self._ask("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", stream, newest)
        except OSError:
            # Whoever cuts next will see what is wrong.
            self._is_synced = False
            await asyncio.sleep(min(timeout_s, PAUSE_S))

    # Acknowledging.

    async def on_settled(self, places: Iterable[Position]) -> None:
        ranges = [range_of(it) for it in places]
        self._unsettled.difference_update(ranges)
        self._done += ranges
        await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Tell the group what is done, or keep it in mind until that is possible."""
        while self._done:
            done = self._done.pop()
            try:
                await self._acknowledge_range(*done)
            except BaseException as error:
                self._done.append(done)
                if not isinstance(error, OSError):
                    raise
                logger.warning("what is done cannot be acknowledged now: %s", error)
                return

    async def _acknowledge_range(self, first: EntryId, last: EntryId) -> None:
        while ids := await self._pending(first, last):
            await self._acknowledge_ids(ids)
            first = id_after(ids[-1])

    async def _pending(self, first: EntryId, last: EntryId) -> list[EntryId]:
        """Some of what the group knows not to be done, in order."""
        args = self._group, show_id(first), show_id(last), _ACKS_AT_ONCE
        rows = await self._ask("XPENDING", self._access.stream, *args, parse_detail=True)
        return [parse_id(row["message_id"]) for row in rows]

    async def _acknowledge_ids(self, ids: Iterable[EntryId]) -> None:
        if shown := [show_id(it) for it in ids]:
            await self._ask("XACK", self._access.stream, self._group, *shown)


def range_of(place: Position) -> _Range:
    """The first and last id of a slice."""
    return parse_id(place["first"]), parse_id(place["last"])
