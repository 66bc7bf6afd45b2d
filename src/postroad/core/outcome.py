"""What a sender knows of a message that failed."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """What is known of a message whose sending failed."""

    NOT_SENT = "not sent"
    """It never left this node: sending it again cannot double anything."""
    UNKNOWN = "unknown"
    """It was written; the peer may or may not have acted on it."""
    REPLIED = "known"
    """The peer answered: it failed there, and the error says how."""
