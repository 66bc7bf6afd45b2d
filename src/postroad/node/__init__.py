"""Where what a node has is put together: messages to cells, and events, that are mail."""

from .config import GuaranteedConfig
from .content import ID_HEADER, KEY_HEADER
from .durable_events import DurableEvents
from .guaranteed import GuaranteedQueues

__all__ = [
    "ID_HEADER",
    "KEY_HEADER",
    "DurableEvents",
    "GuaranteedConfig",
    "GuaranteedQueues",
]
