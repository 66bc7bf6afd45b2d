"""What carries packets between nodes: memory, Postroad's own cells, and servers of others."""

from .memory import MemoryHub, MemoryTransporter, memory_hub
from .registry import make_transporter
from .transporter import Listener, Transporter

__all__ = [
    "Listener",
    "MemoryHub",
    "MemoryTransporter",
    "Transporter",
    "make_transporter",
    "memory_hub",
]
