"""Where what a node has is put together: cells whose messages are mail."""

from .config import GuaranteedConfig
from .content import ID_HEADER, KEY_HEADER
from .guaranteed import GuaranteedQueues

__all__ = [
    "ID_HEADER",
    "KEY_HEADER",
    "GuaranteedConfig",
    "GuaranteedQueues",
]
