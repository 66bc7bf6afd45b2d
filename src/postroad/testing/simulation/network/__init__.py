"""A network in memory with the transports of real sockets, and injected faults."""

from postroad.testing.simulation.network.hosts import LinkConditions, SimHost
from postroad.testing.simulation.network.network import MemoryNetwork

__all__ = ["LinkConditions", "MemoryNetwork", "SimHost"]
