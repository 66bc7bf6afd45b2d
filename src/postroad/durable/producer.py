"""From a call of `send` to a message in the outbox."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypedDict

import msgspec

from postroad.core import tracing, validate_node_name
from postroad.core.errors import ConfigError, MessageTooLargeError, OutboxFullError, UsageError
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.names import validate_key, validate_queue_name
from postroad.durable.store.mutations import Mutation, resolve_future
from postroad.durable.store.tables.outbox import IdempotencyRecord
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.durable.store.writer import GroupCommitWriter
from postroad.durable.stored_messages import PRIORITY_MAX, StoredMessage, encode_stored_message
from postroad.durable.telemetry import start_send_span

# Names that were found valid; forgetting them all at this size keeps the table bounded.
_NAMES_MAX = 4_096


P = ParamSpec("P")

_encode = msgspec.msgpack.Encoder().encode


class EncodedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message on its way into the outbox."""

    peer: str
    id: int
    encoded: bytes
    idempotency: IdempotencyRecord | None = None


class SendOptions(TypedDict, total=False):
    """Options of a message, the same wherever one is sent.

    A delayed message travels at once, and is kept aside in its queue until it is due
    (`QueueTable.defer`); then `QueueLoader` loads it. The `ttl` is checked by the receiver when it
    arrives (`StreamTable`) and before it is handled (`PrefetchBuffer`). Both are times of the
    sender's clock, corrected by its difference to the receiver's.
    """

    key: str | None
    """Messages of equal keys are handled one after the other, in the order they were sent, unless
    their priorities differ."""
    idempotency_key: str | None
    """Sending again with the same key does nothing, for a week."""
    delay: float | None
    """Seconds before it is handled."""
    ttl: float | None
    """Seconds after which it is a dead letter instead of being handled."""
    priority: int
    """Messages of higher priority are handled first, also within a key."""
    headers: Mapping[str, str] | None
    """Travel beside the body."""


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be sent; the fields are the arguments of `DurableQueues.send`."""

    queue: str
    body: bytes
    to: str | None = None
    key: str | None = None
    idempotency_key: str | None = None
    delay: float | None = None
    ttl: float | None = None
    priority: int = 0
    headers: Mapping[str, str] | None = None
    reply_to: str | None = None


class StartableFlow(Protocol[P]):
    """A flow as `@flow` makes it."""

    @property
    def name(self) -> str: ...

    def __call__(self, ctx: Any, *args: P.args, **kwargs: P.kwargs) -> Any: ...

    def encode_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode arguments; raises UsageError if they do not fit."""


class FlowRequestEncoder(Protocol):
    """Encodes requests of a transaction to the flows of its node as messages."""

    def start(
        self,
        client_id: str | None,
        definition: StartableFlow[...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[str, OutgoingMessage]:
        """Encode a request to start a flow; return the client id of the flow and the message."""

    def signal(self, flow: str, name: str, value: Any) -> OutgoingMessage:
        """Encode a signal to a flow."""


class MessageEncoder:
    """Validates messages to be sent, gives them ids, and encodes them.

    Args:
        config: limits the size of a message.
        node: the name of this node, which messages without a receiver are for.
    """

    def __init__(self, config: DurableQueuesConfig, node: str) -> None:
        self.node = node
        self._bytes_max = config.message_bytes_max
        # Different from those of any other process, also of this node.
        self._next_id = itertools.count(secrets.randbits(31) << 32).__next__
        self._valid_names: set[tuple[str, str]] = set()
        self._flow_requests: FlowRequestEncoder | None = None

    @property
    def flow_requests(self) -> FlowRequestEncoder:
        """The encoder of requests to the flows of this node; raises UsageError if it runs none."""
        if self._flow_requests is None:
            raise UsageError(f"node {self.node!r} runs no flows that could be started or signaled")
        return self._flow_requests

    @flow_requests.setter
    def flow_requests(self, encoder: FlowRequestEncoder | None) -> None:
        self._flow_requests = encoder

    def encode(self, message: OutgoingMessage, *, in_reply_to: int | None = None) -> EncodedMessage:
        """Encode a message.

        Raises:
            ConfigError: a name, key or option is not valid.
            UsageError: body, header or priority has a wrong type.
            MessageTooLargeError: it exceeds `message_bytes_max`.
        """
        peer = self.node if message.to is None else message.to
        queue, body = message.queue, message.body
        if (peer, queue) not in self._valid_names:
            self._check_names(peer, queue)
        if type(body) is not bytes:
            body = to_bytes(body)
        if message.key is not None:
            validate_key(message.key)
        if message.reply_to is not None:
            validate_queue_name(message.reply_to)
        now_ms = time.time_ns() // 1_000_000
        id = self._next_id()
        stored = StoredMessage(
            id,
            queue,
            body,
            now_ms,
            message.key,
            None if message.headers is None else _check_headers(message.headers),
            _check_priority(message.priority),
            0 if message.delay is None else now_ms + _to_ms("delay", message.delay),
            0 if message.ttl is None else now_ms + _to_ms("ttl", message.ttl),
            message.reply_to,
            in_reply_to,
        )
        try:
            encoded = encode_stored_message(stored)
        except UnicodeEncodeError as error:
            raise UsageError(f"a header cannot be encoded as UTF-8: {error}") from None
        if len(encoded) > self._bytes_max and tracing.tracer is not None:
            encoded = _encode_untraced(stored)
        if len(encoded) > self._bytes_max:
            raise self._too_large(encoded)
        if message.idempotency_key is None:
            return EncodedMessage(peer, id, encoded)
        return EncodedMessage(peer, id, encoded, _identify(message.idempotency_key, stored))

    def encode_fast(self, peer: str, queue: str, body: bytes) -> EncodedMessage:
        """Encode a message without options, as `encode` does, in less time."""
        if (peer, queue) not in self._valid_names:
            self._check_names(peer, queue)
        if type(body) is not bytes:
            body = to_bytes(body)
        id = self._next_id()
        # What is left out has its default.
        encoded = _encode((id, queue, body, time.time_ns() // 1_000_000))
        if len(encoded) > self._bytes_max:
            raise self._too_large(encoded)
        return EncodedMessage(peer, id, encoded)

    def encode_traced(
        self, message: OutgoingMessage, *, in_reply_to: int | None = None
    ) -> EncodedMessage:
        """Encode a message that is sent together with others, in a span of its own."""
        if tracing.tracer is not None:
            span = start_send_span(
                self.node, message.to or self.node, message.queue, message.headers
            )
            span.end()
            headers = tracing.inject_context(message.headers, span.context)
            message = msgspec.structs.replace(message, headers=headers)
        return self.encode(message, in_reply_to=in_reply_to)

    def _too_large(self, encoded: bytes) -> MessageTooLargeError:
        return MessageTooLargeError(
            f"the message takes {len(encoded)} bytes; message_bytes_max is {self._bytes_max}"
        )

    def _check_names(self, peer: str, queue: str) -> None:
        validate_node_name(peer)
        validate_queue_name(queue)
        if len(self._valid_names) >= _NAMES_MAX:
            self._valid_names.clear()
        self._valid_names.add((peer, queue))


def to_bytes(body: object) -> bytes:
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise UsageError(f"a body is bytes, not {type(body).__name__}; encode it first")


def _encode_untraced(message: StoredMessage) -> bytes:
    """A message without its span, as short as can be: nothing is too large for being traced."""
    bare = msgspec.structs.replace(message, headers=tracing.remove_context(message.headers))
    fields = [*msgspec.structs.astuple(bare)]
    for default in reversed(StoredMessage.__struct_defaults__):
        if fields[-1] != default:
            break
        # What is left out has its default.
        fields.pop()
    return _encode(fields)


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    try:
        return msgspec.convert(headers, dict[str, str])
    except msgspec.ValidationError as error:
        raise UsageError(f"headers are texts with names: {error}") from None


def _check_priority(priority: int) -> int:
    if type(priority) is not int:
        raise UsageError(f"a priority is a whole number, not {priority!r}")
    if not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        raise ConfigError(f"priority {priority} is not between -{PRIORITY_MAX} and {PRIORITY_MAX}")
    return priority


def _to_ms(name: str, seconds: float) -> int:
    # A century is longer than any store lives, and any more would not fit its columns.
    if not 0 <= seconds <= 100 * 365 * 86_400:
        raise ConfigError(f"{name}={seconds!r} must be a number of seconds, 0 or more")
    return max(round(seconds * 1000), 1)


def _identify(key: str, message: StoredMessage) -> IdempotencyRecord:
    """Return the key with a digest of the message, which a repeated send must match.

    The digest leaves out the time and the trace, which differ when a message is sent again.
    """
    headers = message.headers and tracing.remove_context(message.headers)
    fixed = (message.queue, message.body, message.key, headers, message.priority)
    digest = hashlib.blake2b(msgspec.msgpack.encode(fixed), digest_size=16).digest()
    return IdempotencyRecord(validate_key(key), digest)


# Inside a commit.


def check_sends(tables: StoreTables, messages: Sequence[EncodedMessage]) -> list[int | None]:
    """Return for each message the id of the earlier one with its idempotency key, or None.

    Raises:
        SendRejectedError: the outbox is full, or a key was used for another message; nothing
            was changed.
    """
    counts: dict[str, int] = {}
    duplicates: list[int | None] = []
    earlier_in_group: dict[tuple[str, str], EncodedMessage] = {}
    for message in messages:
        duplicate_id = (
            None
            if message.idempotency is None
            else _find_duplicate(tables, message, earlier_in_group)
        )
        duplicates.append(duplicate_id)
        if duplicate_id is None and message.peer != tables.owner:
            counts[message.peer] = counts.get(message.peer, 0) + 1
    for peer, count in counts.items():
        tables.outbox.check_capacity(peer, count)
    return duplicates


def _find_duplicate(
    tables: StoreTables,
    message: EncodedMessage,
    earlier_in_group: dict[tuple[str, str], EncodedMessage],
) -> int | None:
    assert message.idempotency is not None
    duplicate_id = tables.outbox.find_sent(message.peer, message.idempotency)
    if duplicate_id is not None:
        return duplicate_id
    first = earlier_in_group.setdefault((message.peer, message.idempotency.key), message)
    if first is message or first.idempotency is None:
        return None
    message.idempotency.check(first.idempotency.digest, message.peer)
    return first.id


def append_sends(
    tables: StoreTables, messages: Sequence[EncodedMessage], duplicates: Iterable[int | None]
) -> list[int]:
    """Append messages to the outbox, except duplicates; returns the ids of all."""
    ids = []
    for message, duplicate_id in zip(messages, duplicates, strict=True):
        if duplicate_id is None:
            tables.enqueue(message.peer, message.encoded)
            if message.idempotency is not None:
                tables.outbox.record_sent(
                    message.peer, message.idempotency, message.id, tables.now_ms
                )
        ids.append(message.id if duplicate_id is None else duplicate_id)
    return ids


class SendMutation(Mutation):
    """Sends several messages, all of them or none, for a caller that waits."""

    __slots__ = ("_messages", "done", "ids")

    def __init__(self, messages: Sequence[EncodedMessage], done: asyncio.Future[None]) -> None:
        super().__init__(sum([len(message.encoded) for message in messages]))
        self._messages = messages
        self.ids: Sequence[int] = ()
        self.done = done

    def apply(self, tables: StoreTables) -> None:
        self.ids = append_sends(tables, self._messages, check_sends(tables, self._messages))

    def on_complete(self, error: Exception | None) -> None:
        resolve_future(self.done, error)


class _PeerSends:
    """Messages to one peer, with the futures of their senders."""

    __slots__ = ("accepted", "encoded", "error", "waiters")

    def __init__(self) -> None:
        self.encoded: list[bytes] = []
        self.waiters: list[asyncio.Future[None]] = []
        # How many messages were stored, and why the others were not.
        self.accepted = 0
        self.error: OutboxFullError | None = None

    def apply(self, peer: str, tables: StoreTables) -> None:
        self.accepted, self.error = len(self.encoded), None
        if peer != tables.owner:
            try:
                tables.outbox.check_capacity(peer, self.accepted)
            except OutboxFullError as error:
                self.accepted, self.error = tables.outbox.capacity_left(peer), error
        tables.enqueue_all(peer, self.encoded[: self.accepted])

    def complete(self) -> None:
        for done in self.waiters[: self.accepted]:
            if not done.done():
                done.set_result(None)
        for done in self.waiters[self.accepted :]:
            resolve_future(done, self.error)


class SendBatchMutation(Mutation):
    """Sends messages without idempotency keys that share a commit, each of which may fail alone.

    Most messages are of this kind, so work is done once per batch where possible.
    """

    __slots__ = ("_batches",)

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._batches: dict[str, _PeerSends] = {}

    def add(self, message: EncodedMessage, done: asyncio.Future[None]) -> None:
        """Add a message before the commit starts."""
        batch = self._batches.get(message.peer)
        if batch is None:
            batch = self._batches[message.peer] = _PeerSends()
        batch.encoded.append(message.encoded)
        batch.waiters.append(done)

    def apply(self, tables: StoreTables) -> None:
        for peer, batch in self._batches.items():
            batch.apply(peer, tables)

    def on_complete(self, error: Exception | None) -> None:
        for batch in self._batches.values():
            if error is None:
                batch.complete()
            else:
                for done in batch.waiters:
                    resolve_future(done, error)


def submit_send(writer: GroupCommitWriter, message: EncodedMessage) -> asyncio.Future[None]:
    """Commit a message without an idempotency key, together with others queued for the commit."""
    done: asyncio.Future[None] = writer.create_future()
    last_mutation = writer.last_queued
    if type(last_mutation) is SendBatchMutation:
        last_mutation.add(message, done)
        writer.add_queued_bytes(len(message.encoded))
    else:
        mutation = SendBatchMutation(len(message.encoded))
        mutation.add(message, done)
        writer.submit(mutation)
    return done
