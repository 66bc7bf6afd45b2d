"""The state machine of a flow: State x Event -> Transition x State'.

It runs the code of the flow, and returns what must be recorded and sent. It is pure: no I/O, no
clock, no randomness. The engine commits a transition as a whole; if that fails, it drops the
machine and restores one from the store.

A command that the code waits for is completed by `_try_complete`, with each event: with a received
message or signal (`FlowSessions.try_complete`), when its time has come, or with a timeout. Results
of steps come as events of their own (`_on_step_completed`). `_complete` records the result, and
resumes the code with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import UNSET

from postroad.core.errors import UsageError
from postroad.flows.errors import (
    FlowCancelledError,
    FlowError,
    FlowKilledError,
    FlowTimeoutError,
)
from postroad.flows.machine import commands, values
from postroad.flows.machine.attributes import AttributeValue, merge_attributes
from postroad.flows.machine.commands import EMPTY_RESULT, CommandResult, FlowCommand
from postroad.flows.machine.coroutine import (
    FlowCoroutine,
    awaits_signal,
    pending_command_at,
    pending_commands,
)
from postroad.flows.machine.events import (
    BufferedSignal,
    FlowAdmitted,
    FlowCancelRequested,
    FlowEvent,
    FlowKillRequested,
    FlowLoaded,
    FlowPauseRequested,
    FlowReleased,
    FlowResumeRequested,
    FlowRetryRequested,
    FlowTransition,
    FlowTrialPassed,
    SessionMessagesReceived,
    SignalReceived,
    StepCompleted,
    StepFailed,
    TimerFired,
)
from postroad.flows.machine.history import HistoryEntry, Position
from postroad.flows.machine.lifecycle import FlowLifecycle
from postroad.flows.machine.replay import ReplayCursor, ReplayMismatch, recorded_result, replay
from postroad.flows.machine.requests import (
    RequestCommand,
    StartedFlow,
    StartFlow,
    StartRequest,
    update_children,
)
from postroad.flows.machine.state import FlowState
from postroad.flows.machine.status import FlowStatus, FlowTrigger
from postroad.flows.sessions.flow_sessions import FlowSessions, SessionClosedResult
from postroad.flows.sessions.session import BufferedMessage, SessionEndpoint

# Steps of a flow in one commit: code that never waits continues in the next commit, so that
# operators and other flows are served after a few milliseconds.
FLOW_RECORDS_MAX = 256

_TRIGGERS: dict[type, FlowTrigger] = {
    FlowReleased: FlowTrigger.START,
    FlowRetryRequested: FlowTrigger.RETRY,
    FlowPauseRequested: FlowTrigger.PAUSE,
    FlowResumeRequested: FlowTrigger.RESUME,
}


class FlowStateMachine(FlowLifecycle):
    """One flow.

    Args:
        state: its state, as stored.
        create_coroutine: makes its code, not started; raises if no code matches the state.
        entries: its history.
        buffered: messages that it has not consumed, with the numbers of their sessions.
        signals: signals that it has not consumed.
        buffer_max: messages of a session that may be buffered.
        payload_max: size of the largest value that it may send.
        app: the application its code belongs to.
    """

    __slots__ = ("_code_attributes", "_create_coroutine", "_cursor", "_is_all_read", "payload_max")

    def __init__(
        self,
        state: FlowState,
        create_coroutine: Callable[[FlowStateMachine], FlowCoroutine],
        *,
        entries: Sequence[HistoryEntry] = (),
        buffered: Iterable[tuple[int, BufferedMessage]] = (),
        signals: Iterable[BufferedSignal] = (),
        buffer_max: int = 10_000,
        payload_max: int = 1 << 20,
        app: str = "",
    ) -> None:
        super().__init__(state, FlowSessions(state, buffer_max, app), entries)
        self.sessions.restore(entries, buffered, signals)
        self.payload_max = payload_max
        self._create_coroutine = create_coroutine
        self._cursor = ReplayCursor(entries)
        # Whether all entries of this transition are reads.
        self._is_all_read = True
        # As the code knows them: during replay those of the state are later ones.
        self._code_attributes = state.run_attributes or {}

    def open(self, peer: str) -> SessionEndpoint:
        """Return a new session; the peer learns of it with the first message."""
        endpoint = self.sessions.open(peer, None if self.code is None else self.code.current.scope)
        if endpoint.peer != peer:
            what = f"the code opens session {endpoint.number} with {peer!r}"
            raise self._cursor.mismatch(what, [f"it was with {endpoint.peer!r}"])
        return endpoint

    # Events.

    def handle(self, event: FlowEvent, now_ms: int) -> FlowTransition:
        """Apply an event; return the transition that it causes, to be committed as a whole.

        Raises:
            UsageError: the status of the flow does not allow it. Nothing has changed.
        """
        transition = self._transition = self._new_transition()
        self._is_all_read = True
        self._wall_ms = now_ms
        if isinstance(event, SessionMessagesReceived):
            self.sessions.on_message(event, transition)
        elif isinstance(event, StepCompleted):
            self._on_step_completed(event)
        elif isinstance(event, StepFailed):
            if (command := self._pending(event.position)) is not None:
                self._complete_error(command, event.error)
        elif isinstance(event, SignalReceived):
            self._on_signal_received(event)
        elif isinstance(event, FlowAdmitted):
            self._on_admitted(event)
        elif isinstance(event, FlowLoaded):
            if self.state.status is FlowStatus.RUNNING:
                self._run_code()
        elif isinstance(event, TimerFired):
            self._on_timer_fired()
        elif isinstance(event, FlowTrialPassed):
            self._on_trial_passed()
        elif isinstance(event, FlowCancelRequested):
            self._on_cancel_requested(event)
        elif isinstance(event, FlowKillRequested):
            error = FlowKilledError(event.reason)
            self._apply_trigger(
                FlowTrigger.KILL, self._build_failure(error, "an operator ended it")
            )
        else:
            self._apply_trigger(_TRIGGERS[type(event)])
        if self.code is not None:
            self._advance(self.code)
        self._update_state()
        self._deferred = []
        if self._can_defer(transition):
            self._deferred, transition.entries = transition.entries, []
        return transition

    def _can_defer(self, transition: FlowTransition) -> bool:
        """Whether results of reads can be recorded later: as long as the code only reads."""
        if not (self._is_all_read and transition.entries and transition.has_only_entries):
            return False
        if transition.is_cut or self.code is None:
            return False
        pending = pending_commands(self.code)
        return any(isinstance(command, commands.RunStep) and command.is_read for command in pending)

    def _on_admitted(self, event: FlowAdmitted) -> None:
        self._transition.is_new = self._transition.is_state_changed = True
        if event.messages:
            self.sessions.on_message(
                SessionMessagesReceived(0, event.messages, event.ack_token), self._transition
            )
        elif event.ack_token is not None:
            self._transition.ack_tokens.append(event.ack_token)
        if self.state.status is FlowStatus.RUNNING:
            self.sessions.send_confirm(self._transition)
            self._run_code()

    def _on_step_completed(self, event: StepCompleted) -> None:
        command = self._pending(event.position)
        if command is None:
            return
        assert isinstance(command, commands.RunStep)
        try:
            encoded = values.encode_value(event.value, f"what step {command.name!r} returned")
            result = CommandResult(values.roundtrip(event.value, encoded, command.type))
        except Exception as error:
            self._complete_error(command, error)
        else:
            self._transition.is_step_recorded = True
            self._complete(command, encoded, result)

    def _on_signal_received(self, event: SignalReceived) -> None:
        if event.is_child_end and event.name not in self.children:
            self._transition.ack_tokens.append(event.ack_token)
            return
        is_awaited = awaits_signal(self.code, event.name, event.payload)
        self.sessions.on_signal(event, self._transition, is_awaited=is_awaited)

    def _on_cancel_requested(self, event: FlowCancelRequested) -> None:
        """Raise an error in the code, in each branch at what it waits for now."""
        failure, error = None, FlowCancelledError(event.reason)
        if self.state.status in (FlowStatus.QUEUED, FlowStatus.HELD):
            failure = self._build_failure(error, "it was cancelled before it started")
        # What it waits for gets the error instead of being run, so that this harms nobody.
        self.state.clear_suspicion()
        self._apply_trigger(FlowTrigger.CANCEL, failure)
        if event.ack_token is not None:
            self._transition.ack_tokens.append(event.ack_token)
        if self.code is None:
            return
        # Not a read only, which may be recorded later: this is told to somebody.
        self._is_all_read = False
        for position in [command.position for command in pending_commands(self.code)]:
            # An error in one branch may have ended the others.
            command = self._pending(position)
            if command is not None:
                self.cancel_command(command)
                self._complete_error(command, error)

    def set_attributes(self, changes: Mapping[str, AttributeValue | None]) -> None:
        """Change the search attributes; those of the state only when the replay has ended."""
        self._code_attributes = merge_attributes(self._code_attributes, changes)
        if self._cursor.is_exhausted:
            self.state.attributes = self._code_attributes or UNSET

    def count_steps(self) -> int:
        """Return how many steps the code has done, or has replayed so far."""
        return self.steps if self._cursor.is_exhausted else self._cursor.consumed

    def awaits(self, command: FlowCommand) -> bool:
        """Whether the code still waits for a command."""
        return self._pending(command.position) is command

    def _pending(self, position: Position) -> FlowCommand | None:
        return pending_command_at(self.code, position)

    # The code.

    def _run_code(self) -> None:
        """Create the code, and replay it to the end of its history."""
        try:
            self.code = self._create_coroutine(self)
            replay(self.code, self._cursor, self._move_time)
            self.state.attributes = self._code_attributes or UNSET
        except ReplayMismatch as mismatch:
            self._park(mismatch.error)
        except Exception as error:
            # No code is registered for this flow, or its arguments do not fit.
            self._park(error)

    def _move_time(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)

    def execute(self, command: FlowCommand) -> CommandResult | None:
        """Return the result of a command that the code requests; None if the code must wait."""
        if isinstance(command, commands.SessionCommand):
            self.sessions.check_owned(command)
        if not command.is_immediate:
            self._new_commands.append(command.position)
            return None
        if not self._cursor.is_exhausted:
            if isinstance(command, commands.RecordPatch) and not self._cursor.is_next(command):
                # The code passed here before the patch existed: as if it had not asked.
                assert self.code is not None
                self.code.current.steps -= 1
                return CommandResult(False)
            if self._cursor.is_deferred(command):
                return None
            entry = self._cursor.consume(command)
            self._move_time(entry.at_ms)
            return recorded_result(command, entry)
        is_full = len(self._transition.entries) >= FLOW_RECORDS_MAX
        can_wait = not isinstance(command, commands.RecordPatch)
        return None if is_full and can_wait else self._execute(command)

    def _execute(self, command: FlowCommand) -> CommandResult:
        """Execute and record an immediate command."""
        try:
            if isinstance(command, RequestCommand):
                command.check_size(self.payload_max)
                return self._execute_request(command)
            if isinstance(command, commands.SessionCommand):
                command.check_size(self.payload_max)
                self.sessions.execute(command, self._transition)
        except (FlowError, UsageError) as error:
            self._record(command, failure=values.record_error(error))
            return CommandResult(error=error)
        self._record(command)
        return CommandResult(True) if isinstance(command, commands.RecordPatch) else EMPTY_RESULT

    def _execute_request(self, command: RequestCommand) -> CommandResult:
        request = command.make_request(self.state)
        self._transition.requests.append(request)
        if not isinstance(command, StartFlow):
            self._record(command)
            return EMPTY_RESULT
        assert isinstance(request, StartRequest)
        started = StartedFlow(request.client_id, command.is_child)
        self._record(command, values.encode_value(started, "a started flow"))
        return CommandResult(request.client_id)

    def cancel_command(self, command: FlowCommand) -> None:
        """Cancel a command that the code does not wait for any more."""
        if isinstance(command, commands.RunStep):
            self._transition.steps_to_cancel.append(command.position)
            self._transition.steps_to_run = [
                step for step in self._transition.steps_to_run if step is not command
            ]

    def _advance(self, code: FlowCoroutine) -> None:
        """Complete commands one at a time, until the code waits for an event.

        Code that never waits is cut short: it continues when its commands so far are durable.
        """
        while code.result is None:
            if self._new_commands:
                self._start_new_commands(code)
            limits = self.limits
            if self.steps > limits.max_steps or self._bytes > limits.max_bytes:
                self._on_history_full()
                return
            if len(self._transition.entries) >= FLOW_RECORDS_MAX:
                # Let other flows run.
                self._transition.is_cut = True
                return
            if not self._complete_one(code):
                return
        self._on_result(code.result)

    def _start_new_commands(self, code: FlowCoroutine) -> None:
        """Run the functions of steps that the code has just requested."""
        fresh, self._new_commands = self._new_commands, []
        for position in fresh:
            command = pending_command_at(code, position)
            if isinstance(command, commands.RunStep):
                self._transition.steps_to_run.append(command)

    def _complete_one(self, code: FlowCoroutine) -> bool:
        """Complete one of the commands that the code waits for; False if none can be."""
        return any(self._try_complete(command) for command in pending_commands(code))

    def _try_complete(self, command: FlowCommand) -> bool:
        """Complete a command that the code waits for, if that is possible now."""
        if command.is_immediate:
            # The transition was cut before it was executed.
            assert self.code is not None
            self.code.resume(command.position, self._execute(command))
            return True
        received = self.sessions.try_complete(command, self._transition)
        if isinstance(received, SessionClosedResult):
            self._complete_error(command, received.error, received.encode())
        elif received is not None:
            self._complete_encoded(command, received)
        elif isinstance(command, commands.SleepUntil) and command.until_ms <= self._wall_ms:
            self._complete(command, None, EMPTY_RESULT)
        elif command.deadline_ms is not None and command.deadline_ms <= self._wall_ms:
            self._complete_error(command, FlowTimeoutError(f"{command.label} took too long"))
        else:
            return False
        return True

    # Completing commands.

    def _complete_encoded(self, command: FlowCommand, encoded: bytes) -> None:
        """Decode a received value and complete the command, or fail it on a type mismatch."""
        try:
            outcome = CommandResult(command.decode_result(encoded))
        except Exception as problem:
            text = f"{command.label} got a value of another type: {problem}"
            self._complete_error(command, FlowError(text))
        else:
            self._complete(command, encoded, outcome)

    def _complete_error(
        self, command: FlowCommand, error: BaseException, value: bytes | None = None
    ) -> None:
        """Complete a command with an error, in the form in which replay will restore it."""
        failure = values.record_error(error)
        restored = values.restore_error(failure)
        restored.__cause__ = error
        self._complete(command, value, CommandResult(error=restored), failure)

    def _complete(
        self,
        command: FlowCommand,
        value: bytes | None,
        outcome: CommandResult,
        failure: values.RecordedError | None = None,
    ) -> None:
        """Record the result of a command, and resume the code with it."""
        assert self.code is not None
        self._move_time(self._wall_ms)
        self._record(command, value, failure)
        self.code.resume(command.position, outcome)

    def _record(
        self,
        command: FlowCommand,
        value: bytes | None = None,
        failure: values.RecordedError | None = None,
    ) -> None:
        numbers, sessions = command.sessions, self.sessions.by_number
        entry = HistoryEntry(
            position=command.position,
            kind=command.kind,
            name=command.name,
            digest=command.digest,
            at_ms=self.now_ms,
            value=value,
            error=failure,
            sessions=numbers,
            peers=tuple([sessions[number].peer for number in numbers]) if numbers else (),
        )
        self._transition.entries.append(entry)
        update_children(self.children, entry)
        self._is_all_read &= isinstance(command, commands.RunStep) and command.is_read
        self.steps += 1
        if value is not None:
            self._bytes += len(value)
