"""A network in memory with the transports of real sockets, and faults on demand."""

from .conditions import Conditions
from .hosts import Host
from .network import MemoryNetwork

__all__ = ["Conditions", "Host", "MemoryNetwork"]
