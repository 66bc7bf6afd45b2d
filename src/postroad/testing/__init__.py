"""For tests: a simulator of whole nodes under virtual time, and a broker for unit tests."""

from .broker import RecordedCall, RecordedEvent, Stub, TestBroker
from .clock import ManualClock
from .cluster import PeriodicCheck, SimCluster
from .disk import SimDisk
from .event_log import EventLog
from .failures import (
    CRASH,
    LivenessFailure,
    SafetyFailure,
    SimulationFailure,
    require,
)
from .loop import SimLoop
from .network import MemoryNetwork
from .node import NodeProgram, SimNode
from .runner import RunResult, main, run_seed, shorten
from .simulation import Scenario, Simulation
from .timeline import ScheduledAction, Timeline

__all__ = [
    "CRASH",
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
