"""Replays exported histories against the code of this process: would these flows go on with it?

A flow is loaded as by a node, but by its state machine alone: its steps are not called, nothing is
sent or stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context
from enum import StrEnum

import msgspec

from postroad.flows.config import FlowsConfig
from postroad.flows.definition import FlowRegistry
from postroad.flows.engine.loaded_flow import LoadedFlow
from postroad.flows.engine.machine_factory import MachineFactory, run_sandboxed
from postroad.flows.errors import NondeterminismError, UnrecordedAwaitError
from postroad.flows.history_files import ExportedFlow
from postroad.flows.machine.events import FlowLoaded
from postroad.flows.machine.history import HistoryEntry, decode_history_entry
from postroad.flows.machine.state import FlowState
from postroad.flows.machine.status import FlowStatus

_PAYLOAD_MAX = 1 << 30
_MISMATCHES = {
    f"{error.__module__}:{error.__qualname__}"
    for error in (NondeterminismError, UnrecordedAwaitError)
}


class ReplayResult(StrEnum):
    """Whether a flow can go on with today's code."""

    OK = "ok"
    CHANGED = "changed"
    """The code requests something else than was recorded."""
    NO_CODE = "no code"
    ARGUMENTS = "arguments"
    """The recorded arguments do not fit the parameters of the code."""
    UNREADABLE = "unreadable"


class FlowReport(msgspec.Struct, frozen=True):
    """What became of one replay."""

    result: ReplayResult
    detail: str = ""
    file: str = ""
    id: str = ""
    """Empty for a file of which no more could be read."""
    name: str = ""
    version: int = 0
    """That of the code it was started with."""
    status: str = ""
    """As it was exported."""
    steps: int = 0
    replayed: int = 0
    """Recorded steps that the code has followed."""

    @property
    def label(self) -> str:
        """Which flow it was, for people."""
        if not self.id:
            return self.file
        return f"{self.name} {self.id} ({self.status}, {self.steps} steps) in {self.file}"


class FlowVerifier:
    """Replays exported flows; to be used in an event loop, as flows are.

    Args:
        registry: the flows of today's code.
    """

    def __init__(self, registry: FlowRegistry) -> None:
        self._registry = registry
        # Limits are a matter of the node; `FlowsConfig` of the one that exported may be higher.
        config = FlowsConfig(history_steps_max=1 << 60, history_bytes_max=1 << 60)
        self._machines = MachineFactory(registry, config, _PAYLOAD_MAX)

    def verify(self, flow: ExportedFlow) -> FlowReport:
        """Replay a flow."""
        try:
            state = flow.header.decode_state()
            entries = [decode_history_entry(step.entry) for step in flow.steps]
            return self._find_obstacle(flow, state) or self._replay(flow, state, entries)
        except Exception as error:
            text = f"this version of Postroad cannot read it, or it is damaged: {error!r}"
            return _report(flow, ReplayResult.UNREADABLE, text)

    def _find_obstacle(self, flow: ExportedFlow, state: FlowState) -> FlowReport | None:
        """Return why its code cannot be started, or None."""
        definition = self._machines.definition_of(state)
        if definition is None:
            origin = state.initiated_by
            what = f"flow {state.name!r}" if origin is None else f"responder to {origin.flow!r}"
            names = ", ".join(sorted(each.name for each in self._registry)) or "none"
            text = (
                f"the program has no {what}; its flows are: {names}. Keep the code, or its name, "
                "until no such flow is left"
            )
            return _report(flow, ReplayResult.NO_CODE, text)
        if state.initiated_by is None:
            try:
                definition.decode_arguments(state.arguments)
            except Exception as error:
                text = (
                    f"the recorded arguments do not fit flow {definition.name!r}: {error}. Give "
                    "new parameters a default, and let types read what was given before"
                )
                return _report(flow, ReplayResult.ARGUMENTS, text)
        return None

    def _replay(
        self, flow: ExportedFlow, state: FlowState, entries: Sequence[HistoryEntry]
    ) -> FlowReport:
        # Whatever happened to it: here it runs.
        state.status, state.failure = FlowStatus.RUNNING, None
        machine = self._machines.create_machine(LoadedFlow(0), state, entries=entries)
        run_sandboxed(machine, FlowLoaded(), Context())
        replayed, failure = machine.count_steps(), machine.state.failure
        machine.stop_code()
        if failure is None or failure.error.kind not in _MISMATCHES:
            # What the code does after its history is no matter of the past, failing included.
            return _report(flow, ReplayResult.OK, replayed=len(flow.steps))
        return _report(flow, ReplayResult.CHANGED, failure.detail, replayed)


def _report(
    flow: ExportedFlow, result: ReplayResult, detail: str = "", replayed: int = 0
) -> FlowReport:
    header = flow.header
    return FlowReport(
        result,
        detail,
        id=header.id,
        name=header.name,
        version=header.version,
        status=header.status,
        steps=len(flow.steps),
        replayed=replayed,
    )
