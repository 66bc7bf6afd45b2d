"""A network in memory with the transports of real sockets, and faults on demand."""

from .conditions import LinkConditions
from .hosts import SimHost
from .network import MemoryNetwork

__all__ = ["LinkConditions", "MemoryNetwork", "SimHost"]
