"""Flows: conversations between nodes that survive every crash."""

from postroad.core import RetryPolicy
from postroad.core.injection import INJECTED

from .config import FlowsConfig
from .definition import FlowDefinition, NondeterminismWarning, flow, responder
from .errors import (
    DrainingError,
    FlowError,
    FlowKilledError,
    FlowNotFoundError,
    FlowParkedError,
    FlowTimeoutError,
    HistoryFullError,
    NondeterminismError,
    PeerFlowFailedError,
    ScheduleNotFoundError,
    SerializationError,
    SessionEndedError,
    SessionRejectedError,
    SignalBufferFullError,
    StepFailedError,
    UnrecordedAwaitError,
    WrongSignalError,
)
from .flows import FlowHandle, FlowService
from .handle import FlowContext, FlowSession
from .life import FlowStatus
from .operations import FlowView, StepView
from .schedule import CatchUpPolicy
from .scheduling import ScheduleView
from .session import PeerFlowInfo
from .step_calls import StepCaller
from .step_signature import StepId, StoreConnection
from .sync_context import SyncFlowContext, SyncFlowSession, SyncStepCaller

__all__ = [
    "INJECTED",
    "CatchUpPolicy",
    "DrainingError",
    "FlowContext",
    "FlowDefinition",
    "FlowError",
    "FlowHandle",
    "FlowKilledError",
    "FlowNotFoundError",
    "FlowParkedError",
    "FlowService",
    "FlowSession",
    "FlowStatus",
    "FlowTimeoutError",
    "FlowView",
    "FlowsConfig",
    "HistoryFullError",
    "NondeterminismError",
    "NondeterminismWarning",
    "PeerFlowFailedError",
    "PeerFlowInfo",
    "RetryPolicy",
    "ScheduleNotFoundError",
    "ScheduleView",
    "SerializationError",
    "SessionEndedError",
    "SessionRejectedError",
    "SignalBufferFullError",
    "StepCaller",
    "StepFailedError",
    "StepId",
    "StepView",
    "StoreConnection",
    "SyncFlowContext",
    "SyncFlowSession",
    "SyncStepCaller",
    "UnrecordedAwaitError",
    "WrongSignalError",
    "flow",
    "responder",
]
