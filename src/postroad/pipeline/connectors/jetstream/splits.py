"""Plans splits of a stream of NATS JetStream and acknowledges the committed ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
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
from postroad.pipeline.connectors.stream import Range, StreamSplitPlanner

logger = logging.getLogger("postroad.pipeline")

_SILENCE_S = 2.0
_ACKS_AT_ONCE = 10_000
# Nothing has to be redelivered: ranges are read by their sequences.
_ACK_WAIT_S = 3600


class JetStreamSplitPlanner(StreamSplitPlanner[int]):
    """Plans splits by the sequences that a durable consumer delivers."""

    # Some servers do not answer when a consumer is gone, 2.9 for one.
    stale_errors = (JetStreamError, TimeoutError)

    def __init__(
        self, access: JetStreamEndpoint, durable: str, uncommitted: Iterable[Position]
    ) -> None:
        super().__init__(0, uncommitted)
        self._access = access
        self._durable = durable
        self._client = JetStreamClient(access)
        self._info: StreamInfo
        # Sequences that were delivered to a process that is dead.
        self._missed = range(0)
        # The number of the connection on which nothing was lost.
        self._synced = 0
        self._waiting: PullRequest | None = None

    async def open(self, is_bounded: bool) -> None:
        info = await self._client.stream_info()
        self._set_info(info)
        await self._consumer()
        if is_bounded:
            self._stop = info.last

    async def close(self) -> None:
        try:
            if self._client.is_connected:
                await self._acknowledge()
        finally:
            await self._client.close()

    def _set_info(self, info: StreamInfo) -> None:
        self._info, self._epoch = info, info.created

    # Synchronizing.

    @property
    def _is_synced(self) -> bool:
        return self._client.is_connected and self._client.number == self._synced

    @property
    def _has_missed(self) -> bool:
        return bool(self._missed)

    def _lose_sync(self) -> None:
        self._synced = 0

    async def _sync(self, after: Position | None) -> None:
        if not self._is_synced:
            await self._ask_how_far(after)
        self._move_to(self._sequence_of(after))
        self._missed = range(max(self._missed.start, self._position + 1), self._missed.stop)

    def _sequence_of(self, after: Position | None) -> int:
        return 0 if after is None or after["created"] != self._epoch else int(after["last"])

    async def _ask_how_far(self, after: Position | None) -> None:
        info = await self._client.stream_info()
        if info.created != self._epoch:
            self._known.clear()
            self._stop = None if self._stop is None else info.last
        self._set_info(info)
        self._waiting = None
        if after is not None and after["created"] != info.created:
            logger.warning(
                "%s was deleted and created again; it is read from its start", self._access.shown
            )
        position = self._sequence_of(after)
        if info.last < position:
            raise OSError(
                f"{self._access.shown} went back to message {info.last}, perhaps to a backup;"
                f" up to {position} was read, and new messages cannot be distinguished from those"
            )
        consumer = await self._consumer()
        delivered = consumer["delivered"]["stream_seq"]
        self._missed = range(position + 1, delivered + 1)
        if consumer["num_ack_pending"]:
            floor = consumer["ack_floor"]["stream_seq"]
            self._acknowledge_again(floor + 1, min(delivered, position))
        self._synced = self._client.number

    def _acknowledge_again(self, first: int, last: int) -> None:
        """What is between two sequences and not uncommitted is done."""
        for epoch, start, stop in sorted(self._uncommitted):
            if epoch == self._epoch and start <= last:
                if first < start:
                    self._done.append(((epoch, first, start - 1), None))
                first = max(first, stop + 1)
        if first <= last:
            self._done.append(((self._epoch, first, last), None))

    async def _consumer(self) -> dict[str, Any]:
        """What the server says of the durable consumer, created if there is none."""
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
            # A work queue, for instance, allows only one for the same messages.
            raise ConfigError(f"durable {self._durable!r} cannot be created: {error}") from error

    def _check_consumer(self, config: dict[str, Any]) -> None:
        expected = {
            "ack_policy": "explicit",
            "deliver_subject": None,
            "filter_subject": self._access.subject,
        }
        for key, value in expected.items():
            if (config.get(key) or None) != value:
                raise ConfigError(
                    f"durable {self._durable!r} of {self._access.shown} belongs to another program:"
                    f" its {key} is {config.get(key)!r}, expected {value!r}; choose another durable"
                )

    # Fetching.

    async def _fetch(self, segments: int) -> bool:
        if not self._missed:
            pull = await self._client.pull(self._durable, segments, self._on_delivered)
            await pull.wait(_SILENCE_S)
            return pull.received >= segments
        first, last = self._missed[0], self._missed[-1]
        messages = await self._client.read_range(
            self._info, first, last, limit=segments, headers_only=True
        )
        self._known.update((message.sequence, message.size) for message in messages)
        self._missed = range(messages[-1].sequence + 1, last + 1) if messages else range(0)
        return True

    def _on_delivered(self, message: StreamMessage) -> None:
        self._on_message(message.sequence, message.size)

    async def _wait_for_message(self, timeout_s: float) -> None:
        if self._waiting is None or self._waiting.ended.done():
            self._waiting = await self._client.pull(self._durable, 1, self._on_delivered, timeout_s)
        await asyncio.wait([self._waiting.ended], timeout=timeout_s)
        if self._waiting.ended.done() and self._waiting.ended.result() is not None:
            self._lose_sync()

    # Splits.

    def _next_id(self, id: int) -> int:
        return id + 1

    def _range_of(self, place: Position) -> Range[int]:
        return place["created"], place["first"], place["last"]

    def _make_split(self, first: int, ids: Sequence[int]) -> Split:
        created, last, count = self._epoch, ids[-1], len(ids)
        place = {"created": created, "first": first, "last": last, "count": count}
        return Split(place, count, {"created": created, "last": last})

    # Acknowledging.

    async def _acknowledge_range(self, first: int, last: int, ids: list[int] | None) -> None:
        while ids is None and first <= last:
            messages = await self._client.read_range(
                self._info, first, last, limit=_ACKS_AT_ONCE, headers_only=True
            )
            await self._publish_acks(message.sequence for message in messages)
            first = messages[-1].sequence + 1 if messages else last + 1
        await self._publish_acks(ids or ())

    async def _publish_acks(self, sequences: Iterable[int]) -> None:
        # The server goes by the sequence in the stream alone. The other numbers would be how often
        # and as which it was delivered, when, and how many follow.
        prefix = f"$JS.ACK.{self._access.stream}.{self._durable}.1"
        acks = ((f"{prefix}.{sequence}.0.0.0", b"+ACK") for sequence in sequences)
        await self._client.publish(acks)
