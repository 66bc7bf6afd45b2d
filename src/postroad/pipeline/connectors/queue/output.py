"""Sends segments to a durable queue, in the commit of the batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from postroad.core import validate_node_name
from postroad.core.errors import ConfigError
from postroad.durable import DurableQueues, DurableQueuesConfig, Store
from postroad.durable.names import validate_key, validate_queue_name
from postroad.durable.store.tables.queries import find_peer
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.durable.stored_messages import join_batch, split_into_batches
from postroad.pipeline.connectors.connector import (
    Committable,
    OutputConnector,
    OutputWriter,
    UnwritableSegmentsError,
    encode_segment,
)
from postroad.pipeline.connectors.encoding import encode_all
from postroad.pipeline.connectors.options import PAYLOAD, check_codec, check_name
from postroad.pipeline.job import Segment

# What a message has room for; it tells messages apart as well as all 64 do.
_ID_BITS = (1 << 63) - 1


def _unwrap(segment: Segment) -> bytes:
    payload = segment.get(PAYLOAD)
    if isinstance(payload, str):
        return payload.encode()
    if not isinstance(payload, bytes | bytearray):
        raise TypeError(f"{PAYLOAD!r} is {type(payload).__name__}, and must be bytes or text")
    return bytes(payload)


_ENCODERS: Mapping[str, Callable[[Segment], bytes]] = {
    "json": msgspec.json.Encoder().encode,
    "msgpack": encode_segment,
    "raw": _unwrap,
}

# So many letters wait for others of their page: those of many pages, the last of which is not full.
_LETTERS_KEPT = 8192

_encode_letter = msgspec.msgpack.Encoder().encode


class QueueOutput(OutputConnector):
    """Sends segments to a queue of a peer, or of this node itself, each once.

    The progress of the job is in the same store: a message is sent if and only if what it was made
    of is committed. While the outbox of the peer is full, nothing more is read; what was read
    already is sent, so that for a while there is more than `outbox_messages_max`.

    Args:
        queues: of the node that runs the job, or its store.
        peer: the node the messages are for; this node itself by default.
        queue: the queue there.
        codec: how a segment is a message: `json`, `msgpack` or `raw`, which sends the bytes that
            the segment has as `payload`.
        key: the name of what is in a segment and makes the message's key, as a text; messages
            without it have none.
    """

    def __init__(
        self,
        queues: DurableQueues | Store,
        peer: str | None = None,
        queue: str | None = None,
        codec: str = "json",
        key: str | None = None,
    ) -> None:
        # Not in other processes: there is nothing but staging.
        self._store: Store | None = store_of(queues)
        self._config = queues.config
        self._peer = None if peer is None else validate_node_name(check_name("peer", peer))
        self._queue = validate_queue_name(check_name("queue", queue))
        self._codec = check_codec(codec)
        self._key = None if key is None else check_name("key", key)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}

    async def open(self, prefix: str, unpublished: Sequence[Committable]) -> None:
        if self._store is not None:
            self._config = self._store.config

    def create_writer(self, stage: str) -> OutputWriter:
        self.check_capacity()
        return _MessageWriter(self._queue, _ENCODERS[self._codec], self._key, self._config)

    def check_capacity(self) -> None:
        """Raise OSError if as much waits for the peer as this node keeps; blocks a moment.

        Other processes that stage cannot tell: it is for whoever gives them more to do.
        """
        if self._store is None or not self._store.is_open:
            return
        if self._peer is None or self._peer == self._store.owner:
            return
        peer = self._store.read_blocking(find_peer, self._peer)
        waiting = 0 if peer is None else peer.last_seq - peer.acked_seq
        if waiting >= self._config.outbox_messages_max:
            raise OSError(
                f"the outbox of {self._peer!r} is full: it has {waiting} messages, and"
                f" outbox_messages_max is {self._config.outbox_messages_max}"
            )

    def commit_in_transaction(self, ledger: StoreTables, staged: Committable) -> Committable | None:
        check_account(self._store, ledger)
        ledger.enqueue_batches(self._peer or ledger.owner, staged["pages"])
        return None


class _MessageWriter(OutputWriter):
    """Makes messages and binds them to pages, as the outbox keeps them."""

    def __init__(
        self,
        queue: str,
        encode: Callable[[Segment], bytes],
        key: str | None,
        config: DurableQueuesConfig,
    ) -> None:
        self._queue = queue
        self._encode = encode
        self._key = key
        self._config = config
        self._letters: list[bytes] = []
        self._pages: list[tuple[int, bytes]] = []

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        bodies = encode_all(self._encode, ids, segments)
        queue, now_ms = self._queue, time.time_ns() // 1_000_000
        # What is left out has its default.
        if self._key is None:
            letters = [
                _encode_letter((id & _ID_BITS, queue, body, now_ms))
                for id, body in zip(ids, bodies, strict=True)
            ]
        else:
            keys = _keys_of(self._key, ids, segments)
            letters = [
                _encode_letter((id & _ID_BITS, queue, body, now_ms, key))
                for id, body, key in zip(ids, bodies, keys, strict=True)
            ]
        self._check_sizes(ids, letters)
        self._letters += letters
        # Pages are fewer objects to keep than letters.
        if len(self._letters) >= _LETTERS_KEPT:
            self._bind()

    def _bind(self) -> None:
        config, letters = self._config, self._letters
        pages = split_into_batches(letters, config.batch_messages_max, config.batch_bytes_max)
        self._pages += [(len(those), join_batch(those)) for those in pages]
        self._letters = []

    def _check_sizes(self, ids: Sequence[int], letters: Sequence[bytes]) -> None:
        bytes_max = self._config.message_bytes_max
        sizes = list(map(len, letters))
        if max(sizes, default=0) > bytes_max:
            reason = "the message takes {} bytes; message_bytes_max is {}"
            too_large = {
                id: reason.format(size, bytes_max)
                for id, size in zip(ids, sizes, strict=True)
                if size > bytes_max
            }
            raise UnwritableSegmentsError(too_large)

    def prepare_commit(self) -> Committable | None:
        self._bind()
        return {"pages": self._pages} if self._pages else None

    def abort(self) -> None:
        self._letters, self._pages = [], []


def _keys_of(name: str, ids: Sequence[int], segments: Sequence[Segment]) -> list[str | None]:
    """The keys of messages; raises Unwritable if some cannot be keys."""
    keys: list[str | None] = []
    reasons: dict[int, str] = {}
    for id, segment in zip(ids, segments, strict=True):
        value = segment.get(name)
        try:
            keys.append(None if value is None else validate_key(str(value)))
        except ConfigError as error:
            reasons[id] = str(error)
    if reasons:
        raise UnwritableSegmentsError(reasons)
    return keys


def store_of(queues: DurableQueues | Store) -> Store:
    """The store that the mail is in."""
    return queues if isinstance(queues, Store) else queues.store


def check_account(store: Store | None, ledger: StoreTables) -> None:
    """Raise unless a job keeps its account in the store of the mail.

    Not an error of Postroad's own: those may be raised only before anything was changed, and the
    whole commit has to be undone.
    """
    if store is None or not store.owns_tables(ledger):
        raise RuntimeError(
            "a job with queues must use the store of the node's queues; leave out its own store"
        )
