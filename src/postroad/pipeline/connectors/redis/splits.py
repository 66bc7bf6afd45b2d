"""Plans splits of a Redis stream and acknowledges the committed ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

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
from postroad.pipeline.connectors.stream import Range, StreamSplitPlanner

logger = logging.getLogger("postroad.pipeline")

_CONSUMER = "postroad"
_ACKS_AT_ONCE = 1_000
# How many entries are asked for before it is known how long they are.
_FIRST_COUNT = 100
_REPLY_BYTES = 1024 * 1024


class RedisSplitPlanner(StreamSplitPlanner[EntryId]):
    """Plans splits by the entries that a consumer group delivers."""

    stale_errors = (ConsumerGroupNotFoundError,)

    def __init__(
        self,
        access: RedisStreamEndpoint,
        group: str,
        uncommitted: Iterable[Position],
        ignore_trimmed: bool,
    ) -> None:
        super().__init__(START, uncommitted)
        self._access = access
        self._group = group
        self._ignore_trimmed = ignore_trimmed
        self._client: Any = None
        # How many entries there ever were up to the position, and to the last planned split.
        # Servers before version 7 do not know.
        self._number: int | None = None
        # Up to this id, entries were delivered to a process that is dead.
        self._missed_upto = START
        self._synced = False
        self._requests: set[asyncio.Task[Any]] = set()
        self._entry_bytes = _REPLY_BYTES // _FIRST_COUNT

    async def open(self, is_bounded: bool) -> None:
        need_redis()
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        # After a lost connection the server is asked first how far it is.
        retry = Retry(NoBackoff(), 0)
        self._client = Redis.from_url(self._access.url, **self._access.options(), retry=retry)
        info = await self._request("XINFO STREAM", self._access.stream)
        await self._delivered()
        if is_bounded:
            self._stop = parse_id(info["last-generated-id"])

    async def close(self) -> None:
        if self._client is None:
            return
        try:
            if self._synced:
                await self._acknowledge()
        finally:
            await self._client.aclose()
            if self._requests:
                await asyncio.wait(self._requests, timeout=REQUEST_S)

    async def _request(self, command: str, *args: object, **parsing: object) -> Any:
        # In a task of its own, because there are moments in which redis-py takes a cancellation for
        # something else: the caller ends at once, and the request when it is answered.
        request = asyncio.create_task(self._client.execute_command(command, *args, **parsing))
        self._requests.add(request)
        request.add_done_callback(self._on_answered)
        try:
            # redis-py limits the time of its connections, but not of waiting for one.
            await asyncio.wait([request], timeout=2 * REQUEST_S)
        finally:
            request.cancel()
        with mapped_errors(self._access):
            if not request.done():
                raise TimeoutError
            return request.result()

    def _on_answered(self, request: asyncio.Task[Any]) -> None:
        self._requests.discard(request)
        if not request.cancelled():
            # Retrieved here too, in case nobody waits for it any more.
            request.exception()

    # Synchronizing.

    @property
    def _is_synced(self) -> bool:
        return self._synced

    @property
    def _has_missed(self) -> bool:
        return self._planned_upto < self._missed_upto

    def _lose_sync(self) -> None:
        self._synced = False

    async def _sync(self, after: Position | None) -> None:
        self._move_to(START if after is None else parse_id(after["id"]))
        self._number = None if after is None else after["number"]
        self._check_trimmed(await self._request("XINFO STREAM", self._access.stream))
        if self._synced:
            return
        delivered, pending = await self._delivered()
        if delivered < self._position:
            position = show_id(self._position)
            await self._request("XGROUP SETID", self._access.stream, self._group, position)
        self._missed_upto = delivered
        if pending:
            await self._acknowledge_again()
        self._synced = True

    def _check_trimmed(self, info: Any) -> None:
        """Whether entries are gone that were never read: then their numbers do not add up."""
        first, added = info["first-entry"], info.get("entries-added")
        if added is None or (first and parse_id(first[0]) <= self._position):
            return
        before = added - info["length"]
        if self._number is not None and self._number < before:
            lost = (
                f"{before - self._number} entries after {show_id(self._position)} are lost: they"
                f" were trimmed or deleted before they were read; {self._access.shown}"
            )
            if not self._ignore_trimmed:
                raise OSError(lost)
            logger.error("%s", lost)
        self._number = before

    async def _delivered(self) -> tuple[EntryId, int]:
        """The last entry that the group delivered, and how many wait for acknowledgement."""
        for group in await self._request("XINFO GROUPS", self._access.stream):
            if group["name"] == self._group.encode():
                return parse_id(group["last-delivered-id"]), group["pending"]
        start = show_id(self._position)
        await self._request("XGROUP CREATE", self._access.stream, self._group, start)
        return self._position, 0

    async def _acknowledge_again(self) -> None:
        """What waits for acknowledgement and is not uncommitted is done."""
        first = START
        while ids := await self._pending(first, self._position):
            await self._publish_acks([id for id in ids if not self._is_uncommitted(id)])
            first = id_after(ids[-1])

    # Fetching.

    async def _fetch(self, segments: int) -> bool:
        """Ask for so many more entries, or as many as fit into a reply."""
        count = min(segments, max(_REPLY_BYTES // max(self._entry_bytes, 1), 1))
        reached = max(self._known, default=self._position)
        if reached < self._missed_upto:
            bounds = show_id(id_after(reached)), show_id(self._missed_upto)
            reply = await self._request("XRANGE", self._access.stream, *bounds, "COUNT", count)
            entries = parse_entries(reply)
            if not entries:
                self._missed_upto = START
        else:
            entries = await self._take_new(count)
        for entry in entries:
            self._on_message(entry.id, entry.size)
        if entries:
            self._entry_bytes = max(sum(entry.size for entry in entries) // len(entries), 1)
        return bool(entries) or reached < self._missed_upto

    async def _take_new(self, count: int) -> list[StreamEntry]:
        """Entries that the group delivered to nobody."""
        group, stream = (self._group, _CONSUMER), self._access.stream
        reply = await self._request(
            "XREADGROUP", "GROUP", *group, "COUNT", count, "STREAMS", stream, ">"
        )
        return parse_entries(reply[0][1]) if reply else []

    async def _wait_for_message(self, timeout_s: float) -> None:
        block_ms = max(round(min(timeout_s, REQUEST_S / 2) * 1000), 1)
        newest = show_id(self._planned_upto)
        stream = self._access.stream
        await self._request("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", stream, newest)

    # Splits.

    def _next_id(self, id: EntryId) -> EntryId:
        return id_after(id)

    def _range_of(self, place: Position) -> Range[EntryId]:
        return 0, parse_id(place["first"]), parse_id(place["last"])

    def _make_split(self, first: EntryId, ids: Sequence[EntryId]) -> Split:
        last, count = show_id(ids[-1]), len(ids)
        if self._number is not None:
            self._number += count
        place = {"first": show_id(first), "last": last, "count": count}
        return Split(place, count, {"id": last, "number": self._number})

    # Acknowledging.

    async def _acknowledge_range(
        self, first: EntryId, last: EntryId, ids: list[EntryId] | None
    ) -> None:
        # Not by the ids that are known: entries that were delivered twice may be pending too.
        while pending := await self._pending(first, last):
            await self._publish_acks(pending)
            first = id_after(pending[-1])

    async def _pending(self, first: EntryId, last: EntryId) -> list[EntryId]:
        """Some of what waits for acknowledgement, in order."""
        args = self._group, show_id(first), show_id(last), _ACKS_AT_ONCE
        rows = await self._request("XPENDING", self._access.stream, *args, parse_detail=True)
        return [parse_id(row["message_id"]) for row in rows]

    async def _publish_acks(self, ids: Sequence[EntryId]) -> None:
        if ids:
            await self._request("XACK", self._access.stream, self._group, *map(show_id, ids))
