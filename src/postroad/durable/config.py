"""All sizes and times of durable messaging, each with its reason."""

from __future__ import annotations

import math

import msgspec

from postroad.core.errors import ConfigError
from postroad.core.limits import KIB, MIB


class DurableQueuesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and times of the durable queues of a node. The defaults suit most."""

    message_bytes_max: int = 1 * MIB
    """Largest message, headers included."""
    outbox_messages_max: int = 10_000_000
    """Messages stored for one peer; more are rejected with OutboxFullError."""
    inbox_bytes_max: int = 1024 * MIB
    """Size of all messages stored for consumers of this node; then senders must wait."""
    sender_bytes_max: int = 512 * MIB
    """Size of the messages stored of one sender."""
    sender_dead_bytes_max: int = 512 * MIB
    """Size of the dead letters of one sender; then it must wait until some are gone."""
    queues_max: int = 1_000
    """Queues that other nodes may create by sending to them."""

    batch_messages_max: int = 512
    """Messages stored and sent as one batch."""
    batch_bytes_max: int = 64 * KIB
    """Size of a batch; one message alone may be larger."""
    window_bytes: int = 512 * KIB
    """Size of the batches sent in one frame."""
    windows_max: int = 4
    """Frames sent to one peer and not acknowledged."""
    prefetch_messages: int = 4_096
    """Messages of one queue that are loaded ahead of its consumer."""
    uncommitted_acks_max: int = 16_384
    """Acknowledged messages of one queue that are not committed; then handling pauses."""
    write_queue_bytes_max: int = 64 * MIB
    """Size of all changes that wait for a commit; then sending waits."""

    open_timeout_s: float = 10.0
    """Time for a peer to accept a stream."""
    window_timeout_s: float = 30.0
    """Time for a peer to store and acknowledge a window."""
    bridge_initial_delay_s: float = 0.1
    """First delay of a bridge after a failure; it doubles, with jitter."""
    bridge_max_delay_s: float = 30.0
    """Longest such delay."""
    transaction_timeout_s: float = 10.0
    """Time for a transaction from its first statement to its end; other commits wait meanwhile."""
    lock_timeout_s: float = 1.0
    """Time that a statement of a transaction may wait in PostgreSQL for a lock of another client;
    other commits wait meanwhile; then it fails and may be retried."""
    handler_timeout_s: float = 300.0
    """Handler timeout. A handler that exceeds it is cancelled and counts as failed."""
    ack_timeout_s: float = 60.0
    """Time to acknowledge a pulled message; then it is delivered again."""
    idempotency_ttl_s: float = 7 * 24 * 3600.0
    """Retention of idempotency keys."""
    arrivals_poll_s: float = 0.1
    """Delay between two looks for messages that were sent within transactions of others."""

    def __post_init__(self) -> None:
        check_positive(self)
        if self.batch_messages_max > 0xFFFF:
            raise ConfigError(
                f"batch_messages_max={self.batch_messages_max} cannot exceed 65535, the longest "
                "array of MessagePack in a batch"
            )


FORMER_NAMES: dict[str, str] = {
    "page_letters_max": "batch_messages_max",
    "page_bytes_max": "batch_bytes_max",
    "ahead_letters": "prefetch_messages",
    "uncommitted_max": "uncommitted_acks_max",
    "unwritten_bytes_max": "write_queue_bytes_max",
    "offer_timeout_s": "open_timeout_s",
    "bridge_first_s": "bridge_initial_delay_s",
    "bridge_max_s": "bridge_max_delay_s",
    "transaction_s": "transaction_timeout_s",
    "handler_s": "handler_timeout_s",
    "lease_s": "ack_timeout_s",
    "idempotency_s": "idempotency_ttl_s",
}
"""Former name -> name, of fields in stores and files of earlier versions."""


def decode_config(text: str) -> DurableQueuesConfig:
    """Decode a configuration that is kept in a store, also of an earlier version.

    Raises:
        ConfigError: a value is not valid.
        msgspec.DecodeError: it is not JSON, or a value has a wrong type.
    """
    fields = msgspec.json.decode(text, type=dict[str, int | float])
    current = {FORMER_NAMES.get(name, name): value for name, value in fields.items()}
    return msgspec.convert(current, DurableQueuesConfig)


def check_positive(settings: msgspec.Struct) -> None:
    """Raise ConfigError unless every setting is a finite number above 0."""
    for field in settings.__struct_fields__:
        value = getattr(settings, field)
        if not math.isfinite(value) or value <= 0:
            raise ConfigError(f"{field}={value!r} must be a finite number above 0")
