"""Flows: conversations between nodes that survive every crash."""

from postroad.core import RetryPolicy
from postroad.durable.injection import INJECTED
from postroad.flows.admin import FlowView, StepView
from postroad.flows.config import FlowsConfig
from postroad.flows.context import ChildFlow, FlowContext, FlowSession
from postroad.flows.definition import FlowDefinition, NondeterminismWarning, flow, responder
from postroad.flows.errors import (
    DrainingError,
    FlowCancelledError,
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
from postroad.flows.machine.commands import StepLimit
from postroad.flows.machine.status import FlowStatus
from postroad.flows.schedules.schedule import CatchUpPolicy
from postroad.flows.schedules.scheduler import ScheduleView
from postroad.flows.service import FlowHandle, FlowService
from postroad.flows.sessions.session import PeerFlowInfo
from postroad.flows.steps import StepCaller, StepId, StoreConnection
from postroad.flows.sync_context import (
    SyncChildFlow,
    SyncFlowContext,
    SyncFlowSession,
    SyncStepCaller,
)

__all__ = [
    "INJECTED",
    "CatchUpPolicy",
    "ChildFlow",
    "DrainingError",
    "FlowCancelledError",
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
    "StepLimit",
    "StepView",
    "StoreConnection",
    "SyncChildFlow",
    "SyncFlowContext",
    "SyncFlowSession",
    "SyncStepCaller",
    "UnrecordedAwaitError",
    "WrongSignalError",
    "flow",
    "responder",
]
