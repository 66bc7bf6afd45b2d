"""For tests: a simulator of whole nodes under virtual time, and a broker for unit tests."""

from .broker import RecordedCall, RecordedEvent, Stub, TestBroker
from .clock import ManualClock
from .cluster import Checker, SimCluster
from .disk import SimDisk
from .event_log import EventLog
from .failures import (
    CRASH,
    CorrectnessFailure,
    LivenessFailure,
    SimulationFailure,
    require,
)
from .loop import SimLoop
from .network import MemoryNetwork
from .node import Program, SimNode
from .runner import Outcome, main, run_seed, shorten
from .simulation import Scenario, Simulation
from .timeline import Timeline, Timer

__all__ = [
    "CRASH",
    "Checker",
    "CorrectnessFailure",
    "EventLog",
    "LivenessFailure",
    "ManualClock",
    "MemoryNetwork",
    "Outcome",
    "Program",
    "RecordedCall",
    "RecordedEvent",
    "Scenario",
    "SimCluster",
    "SimDisk",
    "SimLoop",
    "SimNode",
    "Simulation",
    "SimulationFailure",
    "Stub",
    "TestBroker",
    "Timeline",
    "Timer",
    "main",
    "require",
    "run_seed",
    "shorten",
]
