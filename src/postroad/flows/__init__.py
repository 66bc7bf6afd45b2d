"""Flows: conversations between nodes that survive every crash."""

from postroad.durable.config import Retry

from .config import FlowsConfig
from .definition import Definition, NondeterministicFlow, flow, responds_to
from .errors import (
    Draining,
    FlowError,
    FlowKilled,
    FlowMismatch,
    FlowParked,
    FlowTimeout,
    HistoryFull,
    Nondeterminism,
    NoSuchFlow,
    NoSuchSchedule,
    PeerFailed,
    SessionEnded,
    SessionRejected,
    SignalsFull,
    StepFailed,
    Unrecordable,
    WrongSignal,
)
from .flows import FlowHandle, Flows
from .handle import Flow, Session
from .life import Status
from .operations import FlowView, StepView
from .schedule import CatchUp
from .scheduling import ScheduleView
from .session import PeerInfo

__all__ = [
    "CatchUp",
    "Definition",
    "Draining",
    "Flow",
    "FlowError",
    "FlowHandle",
    "FlowKilled",
    "FlowMismatch",
    "FlowParked",
    "FlowTimeout",
    "FlowView",
    "Flows",
    "FlowsConfig",
    "HistoryFull",
    "NoSuchFlow",
    "NoSuchSchedule",
    "Nondeterminism",
    "NondeterministicFlow",
    "PeerFailed",
    "PeerInfo",
    "Retry",
    "ScheduleView",
    "Session",
    "SessionEnded",
    "SessionRejected",
    "SignalsFull",
    "Status",
    "StepFailed",
    "StepView",
    "Unrecordable",
    "WrongSignal",
    "flow",
    "responds_to",
]
