"""The status of a flow: it ends, is retried, or waits for an operator. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from postroad.flows.errors import FlowError, FlowTimeoutError, HistoryFullError, NondeterminismError
from postroad.flows.machine import commands, values
from postroad.flows.machine.commands import CommandResult, ContinueAsNew
from postroad.flows.machine.coroutine import (
    FlowCoroutine,
    has_local_work,
    next_deadline_ms,
    pending_commands,
)
from postroad.flows.machine.events import FlowTransition
from postroad.flows.machine.failure_policy import (
    TRIGGER_OF_ACTION,
    build_flow_failure,
    classify_failure,
    format_traceback,
)
from postroad.flows.machine.history import CommandKind, HistoryEntry, Position
from postroad.flows.machine.replay import ReplayMismatch
from postroad.flows.machine.requests import (
    CancelRequest,
    ChildEnded,
    ChildOutcome,
    update_children,
)
from postroad.flows.machine.state import FlowFailure, FlowState, format_flow_id
from postroad.flows.machine.status import FlowEffect, FlowStatus, FlowTrigger, apply_trigger
from postroad.flows.sessions.flow_sessions import FlowSessions


class FlowLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a flow."""

    max_attempts: int = 10
    """Attempts without any progress, the first one included."""
    retry_delay_ms: Callable[[int], int] = lambda attempts: 1000 * attempts
    """How long to wait after so many attempts."""
    max_steps: int = 100_000
    """Steps in its history; beyond that it is parked."""
    max_bytes: int = 1 << 28
    """Size of the results of these steps."""


DEFAULT_LIMITS = FlowLimits()
# Commands that are executed again when the flow is retried after they failed.
_RETRIED_KINDS = (CommandKind.STEP,)


class FlowLifecycle(ABC):
    """The status of a flow, and what follows when it changes.

    Args:
        state: its state, as stored.
        sessions: its sessions.
        entries: its history.

    Attributes:
        limits: of its history and its retries.
    """

    __slots__ = (
        "_attributes", "_bytes", "_deferred", "_new_commands",
        "_progress",
        "_transition",
        "_wall_ms",
        "children",
        "code",
        "due_ms",
        "is_unloaded",
        "limits",
        "now_ms",
        "sessions",
        "state",
        "steps",
    )  # fmt: skip

    def __init__(
        self, state: FlowState, sessions: FlowSessions, entries: Sequence[HistoryEntry]
    ) -> None:
        self.state = state
        self.sessions = sessions
        self.code: FlowCoroutine | None = None
        # Whether its code has run and was stopped.
        self.is_unloaded = False
        self.steps = len(entries)
        # Children whose end was not waited for: their client ids, by the signal that tells of it.
        self.children: dict[str, str] = {}
        for entry in entries:
            update_children(self.children, entry)
        self._bytes = sum([len(entry.value) for entry in entries if entry.value]) if entries else 0
        # Time as the code sees it: that of the last command that completed.
        self.now_ms = state.run_started_ms or state.started_ms
        # When something is due, in this process or another.
        self.due_ms = state.wake_ms or None
        # Positions of commands that the code has just started to wait for.
        self._new_commands: list[Position] = []
        self._wall_ms = self.now_ms
        self._progress, self._attributes = state.progress, state.attributes
        # Entries of reads, which wait for the next commit.
        self._deferred: list[HistoryEntry] = []
        self._transition = FlowTransition(self.steps)
        self.limits = DEFAULT_LIMITS

    payload_max: int

    @abstractmethod
    def _run_code(self) -> None:
        """Create the code, and replay it to the end of its history."""

    def park(self, error: Exception, now_ms: int) -> FlowTransition:
        """Park the flow for a reason that is not an error of its code."""
        transition = self._transition = self._new_transition()
        self._wall_ms = now_ms
        self._park(error)
        self._update_state()
        self._deferred = []
        return transition

    @property
    def has_deferred(self) -> bool:
        """Whether the code has results of reads that are in no commit yet."""
        return bool(self._deferred)

    def record_deferred(self) -> FlowTransition:
        """Return a transition that records the deferred reads."""
        transition = self._new_transition()
        self._deferred = []
        return transition

    def _new_transition(self) -> FlowTransition:
        transition = FlowTransition(self.steps - len(self._deferred))
        transition.entries += self._deferred
        return transition

    def _on_timer_fired(self) -> None:
        deadline_ms = self.state.deadline_ms
        if self.state.status is FlowStatus.RETRYING:
            if self.due_ms is None or self.due_ms <= self._wall_ms:
                self._apply_trigger(FlowTrigger.RETRY)
        elif self.code is not None and deadline_ms is not None and deadline_ms <= self._wall_ms:
            error = FlowTimeoutError(f"flow {self.state.name} took too long")
            self._apply_trigger(FlowTrigger.FAIL, self._build_failure(error, str(error)))

    def _on_trial_passed(self) -> None:
        """Clear the suspicion: the process survived the trial."""
        if self.state.is_suspect and self.state.status is FlowStatus.RUNNING:
            self.state.is_suspect = False
            self._transition.is_state_changed = True

    def _on_history_full(self) -> None:
        """Park the flow: its history has reached its limits."""
        limits = self.limits
        text = (
            f"the history of flow {self.state.name} has {self.steps} steps with {self._bytes} "
            f"bytes of results; the limits are {limits.max_steps} and {limits.max_bytes}: have its "
            "code call ctx.continue_as_new(...) from time to time, or raise history_steps_max and "
            "history_bytes_max; then retry it"
        )
        self._park(HistoryFullError(text))

    # Ends.

    def _on_result(self, end: CommandResult) -> None:
        error = end.error
        if error is None:
            try:
                self.state.result = values.encode_value(
                    end.value, f"the result of {self.state.name}"
                )
            except Exception as unrecordable:
                self._park(unrecordable)
            else:
                self._apply_trigger(FlowTrigger.FINISH)
        elif isinstance(error, ContinueAsNew):
            self._continue_as_new(error)
        elif isinstance(error, ReplayMismatch):
            self._park(error.error)
        else:
            self._on_error(error)

    def _on_error(self, error: BaseException) -> None:
        state = self.state
        if not isinstance(error, FlowError):
            self._drop_failed_steps()
        if self._transition.entries:
            state.attempts = 0
        attempts = state.attempts + 1
        trigger = TRIGGER_OF_ACTION[classify_failure(error, attempts, self.limits.max_attempts)]
        state.attempts = attempts if trigger is FlowTrigger.RETRYABLE_ERROR else 0
        self._apply_trigger(trigger, self._build_failure(error, format_traceback(error)))

    def _drop_failed_steps(self) -> None:
        """Drop the failed steps at the end, so that a retry of the flow runs them again."""
        entries = self._transition.entries
        while entries and entries[-1].kind in _RETRIED_KINDS and entries[-1].error is not None:
            self._transition.failed_step = entries.pop().label
            self.steps -= 1

    def _park(self, error: Exception) -> None:
        self._drop_failed_steps()
        is_known = isinstance(error, NondeterminismError | HistoryFullError)
        detail = str(error) if is_known else format_traceback(error)
        self._apply_trigger(FlowTrigger.PARK, self._build_failure(error, detail))

    def _continue_as_new(self, command: ContinueAsNew) -> None:
        state = self.state
        self._apply_trigger(FlowTrigger.CONTINUE)
        state.start_next_run(command.arguments, self.now_ms)
        state.sessions_opened = self.sessions.opened

    def _build_failure(self, error: BaseException, detail: str) -> FlowFailure:
        return build_flow_failure(error, detail, self.state, self.steps, self._wall_ms)

    def _apply_trigger(self, trigger: FlowTrigger, failure: FlowFailure | None = None) -> None:
        state = self.state
        transition = apply_trigger(state.status, trigger)
        was, state.status = state.status, transition.status
        self._transition.is_state_changed = True
        self._transition.is_parked = transition.status is FlowStatus.PARKED
        state.failure = failure or state.failure
        if trigger in (FlowTrigger.FINISH, FlowTrigger.CONTINUE):
            state.failure = None
            state.reset_attempts()
        elif was in (FlowStatus.PARKED, FlowStatus.PAUSED):
            state.clear_suspicion()
        for effect in transition.effects:
            self._apply_effect(effect, was)

    def _apply_effect(self, effect: FlowEffect, was: FlowStatus) -> None:
        transition, state = self._transition, self.state
        if effect is FlowEffect.RUN_CODE:
            self.sessions.send_confirm(transition)
            if state.is_suspect:
                # That it runs must be durable first: it may crash the process.
                state.trials += 1
                self.is_unloaded = True
            elif was is not FlowStatus.RUNNING:
                # A flow that continues as new is loaded again, so that no old state is left.
                self._run_code()
        elif effect is FlowEffect.STOP_CODE:
            self.stop_code()
        elif effect is FlowEffect.END_SESSIONS:
            self.sessions.close_all(transition)
        elif effect is FlowEffect.FAIL_SESSIONS:
            assert state.failure is not None
            self.sessions.fail_all(state.failure, was, transition)
        elif effect is FlowEffect.CLEAR_HISTORY:
            transition.clears_history = True
            transition.entries.clear()
            transition.buffered.clear()
            self.children.clear()
            self.steps = self._bytes = transition.first = 0
        elif effect is FlowEffect.RESOLVE_RESULT:
            state.ended_ms = self._wall_ms
            transition.is_ended = True
            self._notify_relatives()
            self.stop_code()
        else:
            assert effect is FlowEffect.SCHEDULE_RETRY
            state.wake_ms = self._wall_ms + self.limits.retry_delay_ms(state.attempts)

    def _notify_relatives(self) -> None:
        """Tell the parent of the end, and cancel the children of a flow that has failed."""
        state, requests = self.state, self._transition.requests
        if state.status is not FlowStatus.COMPLETED:
            reason = f"its parent, flow {format_flow_id(state.id)}, is {state.status}"
            requests += [CancelRequest(child, reason) for child in self.children.values()]
        if not state.parent:
            return
        assert state.client_id is not None
        error = None if state.failure is None else state.failure.error
        if state.result is not None and len(state.result) > self.payload_max:
            text = (
                f"flow {state.name} returned {len(state.result)} bytes, and a parent can get "
                f"{self.payload_max}: raise message_bytes_max, or return a reference"
            )
            error = values.record_error(FlowError(text))
        if error is not None:
            error = values.shorten_error(error, self.payload_max)
        outcome = ChildOutcome(state.result if error is None else None, error)
        requests.append(ChildEnded(state.parent, state.client_id, outcome))

    def stop_code(self) -> None:
        """Stop the code and its steps; to continue, the flow must be loaded again."""
        self.is_unloaded = True
        code, self.code = self.code, None
        self._new_commands.clear()
        self._transition.steps_to_run.clear()
        if code is not None:
            steps = [
                command.position
                for command in pending_commands(code)
                if isinstance(command, commands.RunStep)
            ]
            self._transition.steps_to_cancel += steps
            code.close()

    # The stored state.

    def _update_state(self) -> None:
        """Update the stored state after an event."""
        state, transition = self.state, self._transition
        self.due_ms, wake_ms = self._next_deadlines_ms()
        if state.progress != self._progress or state.attributes != self._attributes:
            self._progress, self._attributes = state.progress, state.attributes
            transition.is_state_changed = True
        if wake_ms != state.wake_ms:
            state.wake_ms = wake_ms
            transition.is_state_changed = True
        is_troubled = state.attempts or state.crash_recoveries or state.failure is not None
        if transition.entries and state.status is FlowStatus.RUNNING and is_troubled:
            state.reset_attempts()
            state.failure = None
            transition.is_state_changed = True
        self.sessions.flush(transition)

    def _next_deadlines_ms(self) -> tuple[int | None, int | None]:
        """Return when the flow is due if nothing happens before: here, and after a restart."""
        state, code = self.state, self.code
        if state.status is FlowStatus.RETRYING:
            return state.wake_ms, state.wake_ms
        if state.status is not FlowStatus.RUNNING:
            return None, None
        if code is None or self._transition.is_cut:
            return None, 0
        due_ms = next_deadline_ms(code)
        if state.deadline_ms is not None:
            due_ms = state.deadline_ms if due_ms is None else min(due_ms, state.deadline_ms)
        return due_ms, 0 if has_local_work(code) else due_ms
