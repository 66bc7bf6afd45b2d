"""Arrivals: sends that programs outside of the node wrote into its database with their own commits.

A program that commits to the database of a node can send as that node: one row in
`postroad_arrivals`, which conflicts with nothing. The node reads the rows in order, each once, and
sends their messages in the commit that deletes them.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from postroad.core import validate_node_name
from postroad.core.errors import (
    IdempotencyConflictError,
    MessageTooLargeError,
    OutboxFullError,
    PostroadError,
    StoreError,
)
from postroad.core.timing import backoff
from postroad.durable.bridges.protocol import DeadLetterReason
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.names import validate_queue_name
from postroad.durable.producer import EncodedMessage, append_sends, check_sends
from postroad.durable.store import Store
from postroad.durable.store.backends.backend import DatabaseRow, StoreConnection
from postroad.durable.store.tables.outbox import UNREADABLE_QUEUE, IdempotencyRecord
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.durable.stored_messages import StoredMessage, decode_stored_message

logger = logging.getLogger("postroad.durable")

_ROWS_MAX = 2_000
_RETRY_MAX_S = 30.0
_REASONS = {
    IdempotencyConflictError: DeadLetterReason.REJECTED,
    MessageTooLargeError: DeadLetterReason.TOO_LARGE,
}


class ExternalMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The content of a row besides the peer that it is for."""

    message: bytes
    """As `encode_stored_message` wrote it."""
    idempotency_key: str | None = None
    digest: bytes = b""
    """Digest of the message, to detect another message under the same key."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ExternalMessage)


def encode_arrival(message: EncodedMessage) -> bytes:
    """Encode a message for its row."""
    idempotency = message.idempotency
    if idempotency is None:
        return _encoder.encode(ExternalMessage(message.encoded))
    return _encoder.encode(ExternalMessage(message.encoded, idempotency.key, idempotency.digest))


def decode_arrival(body: bytes) -> ExternalMessage:
    """Decode what `encode_arrival` encoded; raises msgspec.DecodeError."""
    return _decoder.decode(body)


class ArrivalReader:
    """Polls the table of arrivals, and sends its messages as this node."""

    def __init__(self, store: Store, config: DurableQueuesConfig) -> None:
        self._store = store
        self._config = config
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to poll, if other programs can write to the database at all."""
        if self._store.is_shared:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name="postroad durable queues: arrivals")

    async def stop(self) -> None:
        """Read no more rows; the rest is sent after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        while True:
            pause_s = self._config.arrivals_poll_s
            try:
                while await self._store.read(has_arrivals):
                    if not await self._store.write(self._drain):
                        break
                failures = 0
            except PostroadError as error:
                failures += 1
                pause_s = backoff(
                    failures, initial_delay_s=pause_s, max_delay_s=_RETRY_MAX_S, jitter=0.5
                )
                logger.debug("arrivals cannot be read, next look in %.1f s: %s", pause_s, error)
            except Exception:
                pause_s = _RETRY_MAX_S
                logger.exception("arrivals cannot be sent, next look in %.0f s", pause_s)
            await asyncio.sleep(pause_s)

    def _drain(self, tables: StoreTables) -> int:
        return drain_arrivals(tables, self._config)


def has_arrivals(database: StoreConnection) -> bool:
    """Whether any message waits to be sent."""
    return bool(database.execute("SELECT id FROM postroad_arrivals ORDER BY id LIMIT 1"))


def drain_arrivals(tables: StoreTables, config: DurableQueuesConfig) -> int:
    """Send the messages of rows, as part of a commit; returns the number of these rows.

    Rows of a peer whose outbox is full stay, and others are sent past them.
    """
    full_peers: set[str] = set()
    while True:
        full = len(full_peers)
        # One statement, so that all rows are of one moment: a transaction's rows become visible
        # together, and a second look could see later ones without those before them.
        rows = tables.database.execute(
            "SELECT id, peer, body FROM postroad_arrivals"
            f" WHERE peer IS NULL OR peer NOT IN (''{', ?' * full})"
            " ORDER BY id LIMIT ?",
            (*full_peers, _ROWS_MAX),
        )
        done = _send_rows(tables, config, rows, full_peers)
        if done or len(full_peers) == full:
            break
    tables.database.execute_many("DELETE FROM postroad_arrivals WHERE id = ?", done)
    return len(done)


def _send_rows(
    tables: StoreTables,
    config: DurableQueuesConfig,
    rows: list[DatabaseRow],
    full_peers: set[str],
) -> list[tuple[int]]:
    """Send rows, as many as fit into a commit; returns the ids of those to be deleted."""
    done: list[tuple[int]] = []
    size = 0
    for id, peer, body in rows:
        if peer in full_peers:
            continue
        try:
            _send(tables, config, tables.owner if peer is None else peer, bytes(body))
        except OutboxFullError:
            full_peers.add(peer)
            continue
        done.append((id,))
        size += len(body)
        if size >= config.write_queue_bytes_max // 4:
            break
    return done


def _send(tables: StoreTables, config: DurableQueuesConfig, peer: str, body: bytes) -> None:
    """Send the message of a row, or dead-letter it; raises OutboxFullError."""
    message = StoredMessage(0, UNREADABLE_QUEUE, body, tables.now_ms)
    try:
        arrival = decode_arrival(body)
        message = decode_stored_message(arrival.message)
        validate_node_name(peer)
        validate_queue_name(message.queue)
        if (size := len(arrival.message)) > config.message_bytes_max:
            raise MessageTooLargeError(
                f"the message takes {size} bytes; message_bytes_max is {config.message_bytes_max}"
            )
        key = arrival.idempotency_key
        record = None if key is None else IdempotencyRecord(key, arrival.digest)
        sends = (EncodedMessage(peer, message.id, arrival.message, record),)
        append_sends(tables, sends, check_sends(tables, sends))
    except (OutboxFullError, StoreError):
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, PostroadError) as error:
        _dead_letter(tables, peer, message, error)


def _dead_letter(tables: StoreTables, peer: str, message: StoredMessage, error: Exception) -> None:
    reason = _REASONS.get(type(error), DeadLetterReason.UNREADABLE)
    if peer == tables.owner:
        tables.dead_letters.add_inbound(peer, message, reason, str(error), 0, tables.now_ms)
    else:
        tables.dead_letters.add_outbound(peer, message, reason, str(error), tables.now_ms)
