"""Test tools: a simulator of whole nodes in virtual time, and a broker for unit tests."""

from postroad.testing.broker import RecordedCall, RecordedEvent, Stub, TestBroker
from postroad.testing.simulation.cluster import PeriodicCheck, SimCluster
from postroad.testing.simulation.loop import SimLoop
from postroad.testing.simulation.network import MemoryNetwork
from postroad.testing.simulation.node import NodeProgram, SimDisk, SimNode
from postroad.testing.simulation.runner import RunResult, main, run_seed, shorten
from postroad.testing.simulation.simulation import (
    CRASH_EXIT_CODE,
    EventLog,
    LivenessFailure,
    ManualClock,
    SafetyFailure,
    Scenario,
    ScheduledAction,
    Simulation,
    SimulationFailure,
    Timeline,
    require,
)

__all__ = [
    "CRASH_EXIT_CODE",
    "EventLog",
    "LivenessFailure",
    "ManualClock",
    "MemoryNetwork",
    "NodeProgram",
    "PeriodicCheck",
    "RecordedCall",
    "RecordedEvent",
    "RunResult",
    "SafetyFailure",
    "Scenario",
    "ScheduledAction",
    "SimCluster",
    "SimDisk",
    "SimLoop",
    "SimNode",
    "Simulation",
    "SimulationFailure",
    "Stub",
    "TestBroker",
    "Timeline",
    "main",
    "require",
    "run_seed",
    "shorten",
]
