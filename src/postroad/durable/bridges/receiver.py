"""Receives the streams of other stores: identifies senders, stores new batches, then acks.

A window goes into one commit (`WindowMutation`, `StreamTable.accept`); duplicates are dropped by
`protocol.new_batches`, which skips what is not after the watermark.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from postroad.core import fault_points as faults
from postroad.core.errors import ConfigError, MalformedPayloadError, UsageError
from postroad.core.log_throttle import ThrottledLogger
from postroad.durable.bridges.protocol import (
    CHAIN_BYTES,
    StreamAck,
    StreamOpen,
    StreamWindow,
    WindowStatus,
    agree,
    check_version,
    decode_stream_message,
    encode,
    initial_chain,
)
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.names import DELIVER, OFFER, node_of_bridge
from postroad.durable.store import Store
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.mutations import Mutation, resolve_future
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.rows import InboxBatch
from postroad.durable.store.tables.store_tables import CommitEvent, StoreTables
from postroad.durable.store.tables.streams import WindowResult
from postroad.net import MessagingService, RawMessage

logger = logging.getLogger("postroad.durable")

BEFORE_ACCEPT = faults.declare_fault_point("durable.receiver.before_accept")
AFTER_ACCEPT = faults.declare_fault_point("durable.receiver.after_accept")

# Stores whose newest token is remembered; dropping them only weakens an extra check.
_TOKENS_MAX = 4_096
# The shortest message: an array of an id, a queue name of one character, no body and a time.
_MESSAGE_BYTES_MIN = 7
_UNCHECKED_MESSAGES_MAX = 512
_WARN_INTERVAL_S = 60.0


class WindowMutation(Mutation):
    """A window to be stored; its sender waits for the ack."""

    __slots__ = ("_credit", "_own_name", "_prepared", "_sender", "_window", "done", "result")

    def __init__(
        self, sender: str, window: StreamWindow, own_name: str, credit: int, size: int
    ) -> None:
        super().__init__(size)
        self._sender = sender
        self._window = window
        self._own_name = own_name
        self._credit = credit
        self._prepared: InboxBatch | None = None
        self.result: WindowResult
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def prepare(self, tables: StoreTables) -> InboxBatch | None:
        now_ms = time.time_ns() // 1_000_000
        self._prepared = tables.streams.prepare(self._sender, self._window, self._credit, now_ms)
        return self._prepared

    def apply(self, tables: StoreTables) -> None:
        # If it is applied again, the batch was withdrawn.
        prepared, self._prepared = self._prepared, None
        self.result = tables.streams.accept(
            self._sender, self._window, self._own_name, self._credit, tables.now_ms, prepared
        )

    def on_complete(self, error: Exception | None) -> None:
        resolve_future(self.done, error)


class StreamReceiver:
    """The receiving end of all bridges to this node."""

    def __init__(
        self, service: MessagingService, store: Store, config: DurableQueuesConfig
    ) -> None:
        self._service = service
        self._store = store
        self._config = config
        self._tokens: dict[tuple[str, bytes, int], int] = {}
        # Bytes that are stored, or about to be.
        self._stored_bytes: dict[str, int] = {}
        self._stored_bytes_total = 0
        # Bytes of dead letters.
        self._dead_bytes: dict[str, int] = {}
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        self._is_listening = False

    async def start(self) -> None:
        """Count stored bytes, and subscribe to the messages of bridges."""
        self._stored_bytes = await self._store.read(query.sizes_by_sender)
        self._stored_bytes_total = sum(self._stored_bytes.values())
        self._dead_bytes = await self._store.read(query.dead_letter_bytes_by_sender)
        try:
            self._service.serve(OFFER, self._on_open)
        except ConfigError:
            raise UsageError(f"service {self._service.name!r} has durable queues already") from None
        self._is_listening = True
        self._service.serve(DELIVER, self._on_window)

    def stop(self) -> None:
        """Unsubscribe."""
        if self._is_listening:
            self._is_listening = False
            self._service.unsubscribe(OFFER)
            self._service.unsubscribe(DELIVER)

    def on_commit(self, event: CommitEvent) -> None:
        """Update the stored bytes of senders."""
        for sender, size in event.bytes_by_sender.items():
            self._count(sender, size)
        for sender, size in event.dead_letter_bytes_by_sender.items():
            self._dead_bytes[sender] = self._dead_bytes.get(sender, 0) + size

    def blocked_senders(self) -> list[str]:
        """Return the senders that get no credit because they have too many dead letters here."""
        return sorted(sender for sender in self._dead_bytes if self._is_blocked(sender))

    def _is_blocked(self, sender: str) -> bool:
        return self._dead_bytes.get(sender, 0) >= self._config.sender_dead_bytes_max

    def _count(self, sender: str, size: int) -> None:
        stored_bytes = self._stored_bytes.get(sender, 0) + size
        self._stored_bytes_total += size
        if stored_bytes:
            self._stored_bytes[sender] = stored_bytes
        else:
            self._stored_bytes.pop(sender, None)

    def _credit(self, sender: str) -> int:
        """Return the bytes that this node accepts from a sender now."""
        if self._is_blocked(sender):
            self._log.log(
                sender,
                time.monotonic(),
                "no credit for %s: its dead letters have %d bytes, and sender_dead_bytes_max is "
                "%d; its messages wait at the sender until some dead letters are retried or "
                "dropped (postroad dlq)",
                sender,
                self._dead_bytes[sender],
                self._config.sender_dead_bytes_max,
            )
            return 0
        of_sender = self._config.sender_bytes_max - self._stored_bytes.get(sender, 0)
        return max(min(of_sender, self._config.inbox_bytes_max - self._stored_bytes_total), 0)

    # Messages of bridges.

    async def _on_open(self, message: RawMessage) -> bytes:
        sender = self._sender_of(message)
        offer = decode_stream_message(StreamOpen, message.payload)
        version = agree(offer)
        is_newest = self._is_current_token(sender, offer.store, offer.epoch, offer.token)
        reply = await self._store.read(self._build_ack, sender, offer, is_newest)
        return encode(msgspec.structs.replace(reply, version=version))

    def _build_ack(
        self, database: StoreConnection, sender: str, offer: StreamOpen, is_newest: bool
    ) -> StreamAck:
        status = WindowStatus.ACCEPTED if is_newest else WindowStatus.FENCED
        credit = self._credit(sender)
        stream = query.find_stream(database, sender, offer.store, offer.epoch)
        if stream is None:
            chain = initial_chain(offer.store, offer.epoch, self._service.name)
            return StreamAck(status, 0, chain, credit, [])
        rejections = query.list_rejections(database, stream.id, offer.acked)
        return StreamAck(status, stream.watermark, stream.chain, credit, rejections)

    async def _on_window(self, message: RawMessage) -> bytes:
        sender = self._sender_of(message)
        window = decode_stream_message(StreamWindow, message.payload)
        check_version(window.version)
        if not self._is_current_token(sender, window.store, window.epoch, window.token):
            return encode(StreamAck(WindowStatus.FENCED, 0, bytes(CHAIN_BYTES), 0, []))
        _check_counts(window)
        BEFORE_ACCEPT.hit(sender=sender, first=window.first)
        size = len(message.payload)
        mutation = WindowMutation(sender, window, self._service.name, self._credit(sender), size)
        self._store.submit(mutation)
        # Windows that are being stored use credit already.
        self._count(sender, size)
        try:
            await mutation.done
        finally:
            self._count(sender, -size)
        AFTER_ACCEPT.hit(sender=sender, first=window.first)
        arrival = mutation.result
        if arrival.detail:
            logger.debug("window of %s rejected: %s", sender, arrival.detail)
        return encode(
            StreamAck(
                arrival.status,
                arrival.watermark,
                arrival.chain,
                self._credit(sender),
                arrival.rejections,
            )
        )

    def _sender_of(self, message: RawMessage) -> str:
        """Return the node that sent a message, as authenticated by its connection."""
        if message.peer is None:
            raise UsageError(
                "durable messages need a protocol version that authenticates the sender"
            )
        return node_of_bridge(message.peer)

    def _is_current_token(self, sender: str, store: bytes, epoch: int, token: int) -> bool:
        """Whether no later bridge of that store has connected since its epoch started."""
        key = (sender, store, epoch)
        newest = self._tokens.get(key, 0)
        if token > newest:
            if len(self._tokens) >= _TOKENS_MAX:
                self._tokens.clear()
            self._tokens[key] = token
        return token >= newest


def _check_counts(window: StreamWindow) -> None:
    """Reject a window that announces more messages than its bytes can contain."""
    for batch in window.batches:
        # Small counts are harmless: invalid messages are rejected one by one.
        if batch.data is None or batch.count <= _UNCHECKED_MESSAGES_MAX:
            continue
        if batch.count * _MESSAGE_BYTES_MIN > len(batch.data):
            raise MalformedPayloadError(f"{batch.count} messages in {len(batch.data)} bytes")
