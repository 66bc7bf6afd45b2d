"""What the process with the account of a job knows of a stream of NATS JetStream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from postroad.core.errors import ConfigError
from postroad.pipeline.connectors.connector import Position, Split
from postroad.pipeline.connectors.jetstream.client import (
    NOT_FOUND,
    JetStreamClient,
    JetStreamEndpoint,
    JetStreamError,
    PullRequest,
    StreamInfo,
    StreamMessage,
)
from postroad.pipeline.connectors.stream import PAUSE_S

logger = logging.getLogger("postroad.pipeline")

_SILENCE_S = 2.0
_ACKS_AT_ONCE = 10_000
# Nothing has to be delivered to us again: we read what we need.
_ACK_WAIT_S = 3600

_Range = tuple[int, int, int]
"""When the stream was created, and the first and last sequence."""


class JetStreamSplitPlanner:
    """Cuts a stream into slices, and tells its durable consumer what is done."""

    def __init__(
        self, access: JetStreamEndpoint, durable: str, unsettled: Iterable[Position]
    ) -> None:
        self._access = access
        self._durable = durable
        self._client = JetStreamClient(access)
        self._facts: StreamInfo | None = None
        # Ranges that were admitted and not settled, with the sequences that we know to be in them.
        self._unsettled: dict[_Range, list[int] | None] = dict.fromkeys(map(_range_of, unsettled))
        # Messages above the position that were seen, with their sizes.
        self._known: dict[int, int] = {}
        self._position = 0
        # Up to where slices were cut, whether they were admitted or not.
        self._cut_upto = 0
        # What is to be looked for by ourselves, because it was sent to somebody who is dead.
        self._missed = range(0)
        # Of which connection we know that nothing was lost; connections are counted.
        self._synced = 0
        # What is to be acknowledged.
        self._done: list[tuple[_Range, list[int] | None]] = []
        self._waiting: PullRequest | None = None
        # Where the stream ends for us.
        self._stop: int | None = None

    async def open(self, is_bounded: bool) -> None:
        facts = self._facts = await self._client.stream_info()
        await self._consumer()
        if is_bounded:
            self._stop = facts.last

    async def close(self) -> None:
        try:
            if self._client.is_connected:
                await self._acknowledge()
        finally:
            await self._client.close()

    # Looking for messages.

    async def fetch_ahead(self, after: Position | None, segments: int) -> int:
        """See to it that so many messages above the position are known, if there are."""
        try:
            try:
                await self._look_all(after, segments)
            except (JetStreamError, TimeoutError):
                # The consumer is not there any more, or the stream: see what there is now. Some
                # servers are silent then, 2.9 for one.
                self._synced = 0
                await self._look_all(after, segments)
        except BaseException:
            # What was sent to us may be lost.
            self._synced = 0
            raise
        return self._position

    async def _look_all(self, after: Position | None, segments: int) -> None:
        await self._sync(after)
        self._forget()
        await self._acknowledge()
        while not self._is_enough(segments) and await self._look(segments - len(self._known)):
            continue

    def _is_enough(self, segments: int) -> bool:
        if self._stop is not None and (
            self._position >= self._stop or max(self._known, default=0) >= self._stop
        ):
            return True
        return len(self._known) >= segments

    async def _look(self, segments: int) -> bool:
        """Look for so many more; false if no more are there now."""
        if self._missed:
            return await self._look_for_missed(segments)
        pull = await self._client.pull(self._durable, segments, self._on_found)
        await pull.wait(_SILENCE_S)
        return pull.received >= segments

    async def _look_for_missed(self, segments: int) -> bool:
        first, last = self._missed[0], self._missed[-1]
        found = await self._client.read_range(
            self._known_facts, first, last, limit=segments, headers_only=True
        )
        self._known.update((it.sequence, it.size) for it in found)
        self._missed = range(found[-1].sequence + 1, last + 1) if found else range(0)
        return True

    def _on_found(self, found: StreamMessage) -> None:
        if found.sequence > self._position:
            self._known[found.sequence] = found.size
        elif not self._is_unsettled(found.sequence):
            # That it is done was not heard.
            range_ = (self._known_facts.created, found.sequence, found.sequence)
            self._done.append((range_, [found.sequence]))

    def _is_unsettled(self, sequence: int) -> bool:
        created = self._known_facts.created
        return any(
            it == created and first <= sequence <= last for it, first, last in self._unsettled
        )

    def _forget(self) -> None:
        """What lies behind us, and slices that were cut and never admitted."""
        position, created = self._position, self._known_facts.created
        self._known = {it: size for it, size in self._known.items() if it > position}
        self._missed = range(max(self._missed.start, position + 1), self._missed.stop)
        for range_ in [it for it in self._unsettled if it[0] == created and it[1] > position]:
            del self._unsettled[range_]

    @property
    def _known_facts(self) -> StreamInfo:
        assert self._facts is not None, "open() comes first"
        return self._facts

    # Being sure of how far things are.

    @property
    def _is_synced(self) -> bool:
        return self._client.is_connected and self._client.number == self._synced

    async def _sync(self, after: Position | None) -> None:
        if self._is_synced:
            self._position = _position_in(self._known_facts, after)
            return
        facts = await self._client.stream_info()
        if facts.created != self._known_facts.created:
            self._known.clear()
            self._stop = None if self._stop is None else facts.last
        self._facts, self._waiting = facts, None
        if after is not None and after["created"] != facts.created:
            logger.warning("%s was created anew; it is read from its start", self._access.shown)
        self._position = _position_in(facts, after)
        if facts.last < self._position:
            raise OSError(
                f"{self._access.shown} went back to message {facts.last}, perhaps to a backup;"
                f" up to {self._position} was read, and what comes now cannot be told from that"
            )
        consumer = await self._consumer()
        delivered = consumer["delivered"]["stream_seq"]
        self._missed = range(self._position + 1, delivered + 1)
        if consumer["num_ack_pending"]:
            floor = consumer["ack_floor"]["stream_seq"]
            self._acknowledge_again(floor + 1, min(delivered, self._position))
        self._synced = self._client.number

    def _acknowledge_again(self, first: int, last: int) -> None:
        """What is between these and not unsettled is done, though that was perhaps not heard."""
        created = self._known_facts.created
        for it, start, stop in sorted(self._unsettled):
            if it == created and start <= last:
                if first < start:
                    self._done.append(((created, first, start - 1), None))
                first = max(first, stop + 1)
        if first <= last:
            self._done.append(((created, first, last), None))

    async def _consumer(self) -> dict[str, Any]:
        """What the durable consumer is; made, if there is none."""
        name = f"{self._access.stream}.{self._durable}"
        try:
            consumer = await self._client.request(f"CONSUMER.INFO.{name}")
        except JetStreamError as error:
            if error.status != NOT_FOUND:
                raise
            consumer = await self._create_consumer(name)
        self._check_consumer(consumer["config"])
        return consumer

    async def _create_consumer(self, name: str) -> dict[str, Any]:
        config = {
            "durable_name": self._durable,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": _ACK_WAIT_S * 1_000_000_000,
            "max_ack_pending": -1,
            "headers_only": True,
        }
        if self._access.subject is not None:
            config["filter_subject"] = self._access.subject
        request = {"stream_name": self._access.stream, "config": config}
        try:
            return await self._client.request(f"CONSUMER.DURABLE.CREATE.{name}", request)
        except JetStreamError as error:
            # On a queue, for instance, there may be only one for the same messages.
            raise ConfigError(f"durable {self._durable!r} cannot be made: {error}") from error

    def _check_consumer(self, config: dict[str, Any]) -> None:
        expected = {
            "ack_policy": "explicit",
            "deliver_subject": None,
            "filter_subject": self._access.subject,
        }
        for key, value in expected.items():
            if (config.get(key) or None) != value:
                raise ConfigError(
                    f"durable {self._durable!r} of {self._access.shown} is another's: its {key} is"
                    f" {config.get(key)!r} and not {value!r}"
                )

    # Cutting.

    def plan_splits(
        self, position: int, segments: int, slice_segments: int, slice_bytes: int
    ) -> list[Split]:
        """Slices of what is known. Each begins where the last one ended.

        So there is nothing between them that could be missed.
        """
        slices: list[Split] = []
        sequences: list[int] = []
        size = 0
        stop = self._stop
        known = sorted(it for it in self._known if stop is None or it <= stop)[:segments]
        for sequence in known:
            sequences.append(sequence)
            size += self._known[sequence]
            if len(sequences) >= slice_segments or size >= slice_bytes or sequence == known[-1]:
                slices.append(self._slice(position + 1, sequences))
                position, sequences, size = sequence, [], 0
        self._cut_upto = position
        return slices

    def _slice(self, first: int, sequences: list[int]) -> Split:
        created, last = self._known_facts.created, sequences[-1]
        self._unsettled[created, first, last] = sequences
        place = {"created": created, "first": first, "last": last, "count": len(sequences)}
        return Split(place, len(sequences), {"created": created, "last": last})

    # Waiting.

    async def wait(self, timeout_s: float) -> None:
        if not self._is_synced or self._missed or max(self._known, default=0) > self._cut_upto:
            await asyncio.sleep(min(timeout_s, PAUSE_S))
            return
        try:
            if self._waiting is None or self._waiting.ended.done():
                self._waiting = await self._client.pull(self._durable, 1, self._on_found, timeout_s)
            await asyncio.wait([self._waiting.ended], timeout=timeout_s)
            if self._waiting.ended.done() and self._waiting.ended.result() is not None:
                self._synced = 0
        except OSError:
            # Whoever cuts next will see what is wrong.
            self._synced = 0

    # Acknowledging.

    async def on_settled(self, places: Iterable[Position]) -> None:
        for place in places:
            range_ = _range_of(place)
            self._done.append((range_, self._unsettled.pop(range_, None)))
        await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Tell the consumer what is done, or keep it in mind until that is possible."""
        while self._done:
            done = self._done.pop()
            (created, first, last), sequences = done
            try:
                if created == self._known_facts.created:
                    await self._acknowledge_range(first, last, sequences)
            except BaseException as error:
                self._done.append(done)
                if not isinstance(error, OSError):
                    raise
                logger.warning("what is done cannot be acknowledged now: %s", error)
                return

    async def _acknowledge_range(self, first: int, last: int, sequences: list[int] | None) -> None:
        while sequences is None and first <= last:
            found = await self._client.read_range(
                self._known_facts, first, last, limit=_ACKS_AT_ONCE, headers_only=True
            )
            await self._publish_acks(it.sequence for it in found)
            first = found[-1].sequence + 1 if found else last + 1
        await self._publish_acks(sequences or ())

    async def _publish_acks(self, sequences: Iterable[int]) -> None:
        # The server goes by the sequence in the stream alone. The other numbers would be how often
        # and as which it was delivered, when, and how many follow.
        prefix = f"$JS.ACK.{self._access.stream}.{self._durable}.1"
        await self._client.publish((f"{prefix}.{it}.0.0.0", b"+ACK") for it in sequences)


def _range_of(place: Position) -> _Range:
    return place["created"], place["first"], place["last"]


def _position_in(facts: StreamInfo, after: Position | None) -> int:
    return int(after["last"]) if after is not None and after["created"] == facts.created else 0
