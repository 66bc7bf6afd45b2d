"""What the sender of a failed message knows about its delivery."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """Delivery state of a failed message, as known to its sender."""

    NOT_SENT = "not sent"
    """The message was never written: a retry cannot cause a duplicate."""
    UNKNOWN = "unknown"
    """The message was written; the peer may have processed it."""
    REPLIED = "replied"
    """The peer replied with an error."""
