"""All sizes and times of durable messaging, each with its reason."""

from __future__ import annotations

import math

import msgspec

from postroad.core.errors import ConfigError
from postroad.core.limits import KIB, MIB
from postroad.core.timing import backoff


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often and when a message is handled again whose handler failed."""

    attempts: int = 10
    """After so many failures the message is a dead letter."""
    first_s: float = 0.1
    """Pause before the second attempt; it doubles from then on, with jitter."""
    max_s: float = 60.0
    """Longest pause."""

    def __post_init__(self) -> None:
        check_positive(self)

    def pause_s(self, failures: int, chance: float) -> float:
        """Seconds until the next attempt, after so many failures."""
        return backoff(
            failures, initial_delay_s=self.first_s, max_delay_s=self.max_s, jitter=chance
        )


class MailConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and times of one node's mail. The defaults suit most."""

    message_bytes_max: int = 1 * MIB
    """Largest message, headers included."""
    outbox_messages_max: int = 10_000_000
    """Messages kept for one peer that does not take them; then `post` is refused."""
    inbox_bytes_max: int = 1024 * MIB
    """Letters kept for this node's consumers; then senders keep theirs."""
    sender_bytes_max: int = 512 * MIB
    """The same for what one sender sent."""
    sender_dead_bytes_max: int = 512 * MIB
    """Dead letters of what one sender sent; then it keeps its mail until some are gone."""
    queues_max: int = 1_000
    """Queues that others may open by sending to them."""

    page_letters_max: int = 512
    """Letters stored and sent as one."""
    page_bytes_max: int = 64 * KIB
    """A page is full at that size; one letter alone may be larger."""
    window_bytes: int = 512 * KIB
    """Pages sent in one frame."""
    windows_max: int = 4
    """Frames on their way to one peer."""
    ahead_letters: int = 4_096
    """Letters of one queue kept in memory for its consumer."""
    uncommitted_max: int = 16_384
    """Handled messages of one queue that wait for the disk; then handling pauses."""
    unwritten_bytes_max: int = 64 * MIB
    """What may wait for the disk in all; then posting waits."""

    offer_timeout_s: float = 10.0
    """Time for a peer to answer an offer."""
    window_timeout_s: float = 30.0
    """Time for a peer to accept a window durably."""
    bridge_first_s: float = 0.1
    """First pause of a bridge whose peer cannot be reached; it doubles, with jitter."""
    bridge_max_s: float = 30.0
    """Longest such pause."""
    transaction_s: float = 10.0
    """Time for a transaction from its first statement to its end: others wait meanwhile."""
    lock_timeout_s: float = 1.0
    """Time that a statement of a transaction may wait in PostgreSQL for a lock of another client;
    others wait meanwhile, so it fails then, and may be tried again."""
    handler_s: float = 300.0
    """Time for a handler; a slower one is cancelled and has failed."""
    lease_s: float = 60.0
    """Time to acknowledge a message that was pulled; then it is given out again."""
    idempotency_s: float = 7 * 24 * 3600.0
    """How long idempotency keys are remembered."""

    def __post_init__(self) -> None:
        check_positive(self)
        if self.page_letters_max > 0xFFFF:
            raise ConfigError("page_letters_max cannot exceed 65535, the longest array of a page")


def check_positive(settings: msgspec.Struct) -> None:
    """Raise ConfigError unless every setting is a finite number above 0."""
    for field in settings.__struct_fields__:
        value = getattr(settings, field)
        if not math.isfinite(value) or value <= 0:
            raise ConfigError(f"{field}={value!r} must be a finite number above 0")
