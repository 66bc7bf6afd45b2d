"""Sends and receives for one flow: its sessions, and the signals sent to it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from postroad.core.errors import UsageError
from postroad.flows.errors import (
    FlowError,
    PeerFlowFailedError,
    SessionEndedError,
    SessionRejectedError,
    SignalBufferFullError,
)
from postroad.flows.machine import commands, values
from postroad.flows.machine.commands import FlowCommand
from postroad.flows.machine.events import (
    BufferedSignal,
    FlowTransition,
    SessionMessagesReceived,
    SignalReceived,
)
from postroad.flows.machine.history import CommandKind, HistoryEntry
from postroad.flows.machine.state import FlowFailure, FlowState, format_flow_id
from postroad.flows.machine.status import FlowStatus
from postroad.flows.sessions.messages import (
    SessionClose,
    SessionConfirm,
    SessionData,
    SessionError,
    SessionInit,
    SessionKey,
    SessionMessage,
    SessionReject,
)
from postroad.flows.sessions.session import (
    BufferedMessage,
    SessionAction,
    SessionEndpoint,
    SessionState,
    SessionTrigger,
)

_REMOTE_ERRORS = tuple(
    f"{kind.__module__}:{kind.__qualname__}"
    for kind in (PeerFlowFailedError, SessionEndedError, SessionRejectedError)
)


class SessionClosedResult(NamedTuple):
    """The result of a receive on a session that gets no more messages."""

    error: FlowError
    number: int

    def encode(self) -> bytes:
        """Encode the value that is recorded with the error."""
        return values.encode_value(self.number, "the number of a session")


class FlowSessions:
    """The sessions of a flow, with the messages and signals that its code has not consumed.

    Args:
        state: of the flow.
        buffer_max: received messages of a session that may wait for the code.
        app: the application its code belongs to.

    Attributes:
        signal_buffer_max: received signals that may wait for the code.
        signal_buffer_bytes_max: their size in all.
    """

    __slots__ = (
        "_app",
        "_buffer_max",
        "_signals",
        "_signals_bytes",
        "_state",
        "by_number",
        "has_stored_buffer",
        "opened",
        "signal_buffer_bytes_max",
        "signal_buffer_max",
    )

    def __init__(self, state: FlowState, buffer_max: int, app: str = "") -> None:
        self._state = state
        self._app = app
        self._buffer_max = buffer_max
        self.signal_buffer_max = 10_000
        self.signal_buffer_bytes_max = 1 << 26
        self.by_number: dict[int, SessionEndpoint] = {}
        self._signals: dict[str, deque[BufferedSignal]] = {}
        self._signals_bytes = 0
        # Number of sessions that this run and the earlier ones have opened.
        self.opened = state.sessions_opened
        # Whether the store may have messages or signals that were not consumed.
        self.has_stored_buffer = False
        if (origin := state.initiated_by) is not None:
            endpoint = SessionEndpoint(origin.key, origin.peer, 0, is_initiator=False)
            endpoint.on_message(SessionInit(origin.flow, origin.version, origin.app))
            if state.run_number > 1:
                # It was closed when the flow continued as new.
                endpoint.apply(SessionTrigger.CLOSE)
            self.by_number[0] = endpoint

    def restore(
        self,
        entries: Sequence[HistoryEntry],
        buffered: Iterable[tuple[int, BufferedMessage]],
        signals: Iterable[BufferedSignal],
    ) -> None:
        """Restore the sessions from the history and the buffered messages, without running code."""
        for entry in entries:
            for number, peer in zip(entry.sessions, entry.peers, strict=True):
                _restore_entry(self._session(number, peer), entry)
        for number, message in buffered:
            self.has_stored_buffer = True
            endpoint = self.by_number.get(number)
            if endpoint is None:
                continue
            # That it is buffered was decided when it arrived.
            endpoint.on_message(message.message)
            if not isinstance(message.message, SessionConfirm):
                endpoint.buffer.append(message)
        for signal in signals:
            self.has_stored_buffer = True
            self._buffer_signal(signal)

    def _buffer_signal(self, signal: BufferedSignal) -> None:
        self._signals.setdefault(signal.name, deque()).append(signal)
        self._signals_bytes += len(signal.payload)

    def _session(self, number: int, peer: str) -> SessionEndpoint:
        endpoint = self.by_number.get(number)
        if endpoint is None:
            key = SessionKey(self._state.id, number)
            endpoint = self.by_number[number] = SessionEndpoint(
                key, peer, number, is_initiator=True
            )
        return endpoint

    def open(self, peer: str, scope: object | None) -> SessionEndpoint:
        """Return a new session; the peer learns of it with the first message."""
        self.opened += 1
        endpoint = self._session(self.opened, peer)
        endpoint.scope = scope
        return endpoint

    def check_owned(self, command: commands.SessionCommand) -> None:
        """Raise UsageError if a session of the command belongs to another flow or run."""
        for endpoint in command.endpoints:
            if self.by_number.get(endpoint.number) is not endpoint:
                raise UsageError(
                    f"cannot use the session with {endpoint.peer}: another flow or an earlier run "
                    "opened it; open a session in this run"
                )

    # Receiving.

    def on_message(self, event: SessionMessagesReceived, transition: FlowTransition) -> None:
        """Buffer received messages of a session until the code receives them."""
        if event.ack_token is not None:
            transition.ack_tokens.append(event.ack_token)
        endpoint = self.by_number.get(event.number)
        if endpoint is None or (event.peer and endpoint.peer != event.peer):
            # The session does not exist, or the sender is not its peer.
            return
        for message in event.messages:
            if isinstance(message, SessionInit) and not transition.is_new:
                # A duplicate: a session is opened once.
                continue
            if len(endpoint.buffer) >= self._buffer_max:
                self._fail_overflowed(endpoint, transition)
            if not endpoint.on_message(message):
                continue
            if isinstance(message, SessionInit):
                assert message.payload is not None
                message = SessionData(message.payload)
            buffered = BufferedMessage(message)
            transition.buffered.append((endpoint.number, buffered))
            if not isinstance(message, SessionConfirm):
                endpoint.buffer.append(buffered)

    def _fail_overflowed(self, endpoint: SessionEndpoint, transition: FlowTransition) -> None:
        """Fail a session at both ends: its buffer is full."""
        if endpoint.apply(SessionTrigger.FAIL) is not SessionAction.SEND_ERROR:
            return
        text = f"more than {self._buffer_max} messages wait to be received"
        failed = SessionError(values.digest(self._state.seed).hex(), "Overflow", text)
        queue_message(transition, endpoint, failed)
        endpoint.buffer.append(BufferedMessage(failed))
        transition.buffered.append((endpoint.number, endpoint.buffer[-1]))

    def on_signal(
        self, event: SignalReceived, transition: FlowTransition, *, is_awaited: bool
    ) -> None:
        """Buffer a signal until the code waits for it, or raise SignalBufferFullError."""
        # A signal that the code waits for is consumed at once.
        if not is_awaited and sum(map(len, self._signals.values())) >= self.signal_buffer_max:
            raise SignalBufferFullError(
                f"cannot send signal {event.name!r} to flow {format_flow_id(self._state.id)}: "
                f"{self.signal_buffer_max} signals are buffered; retry after its code has waited "
                "for some"
            )
        if (
            not is_awaited
            and self._signals_bytes + len(event.payload) > self.signal_buffer_bytes_max
        ):
            raise SignalBufferFullError(
                f"cannot send signal {event.name!r} to flow {format_flow_id(self._state.id)}: "
                f"{self._signals_bytes} bytes are buffered of {self.signal_buffer_bytes_max}; "
                "retry after its code has waited for some"
            )
        signal = BufferedSignal(event.name, event.payload)
        self._buffer_signal(signal)
        transition.signals.append(signal)
        if event.ack_token is not None:
            transition.ack_tokens.append(event.ack_token)

    def flush(self, transition: FlowTransition) -> None:
        """End a transition: what it buffers is stored, unless the flow has ended."""
        if transition.is_ended:
            transition.buffered.clear()
            transition.signals.clear()
        elif transition.buffered or transition.signals:
            self.has_stored_buffer = True

    # Completing commands.

    def try_complete(
        self, command: FlowCommand, transition: FlowTransition
    ) -> bytes | SessionClosedResult | None:
        """Consume and return what completes a waiting command; None if nothing does yet."""
        if isinstance(command, commands.ReceiveData):
            return self._find_received(command, transition)
        if isinstance(command, commands.WaitForSignal):
            return self._find_signal(command, transition)
        if isinstance(command, commands.GetPeerInfo):
            return _find_info(command.endpoints[0])
        return None

    def _find_received(
        self, command: commands.ReceiveData, transition: FlowTransition
    ) -> bytes | SessionClosedResult | None:
        for endpoint in command.endpoints:
            if endpoint.buffer and not isinstance(endpoint.buffer[0].message, SessionData):
                return SessionClosedResult(
                    error_from_message(self._take(endpoint, transition), endpoint.peer),
                    endpoint.number,
                )
            if _is_finished(endpoint):
                return _closed_result(endpoint)
        if not all(endpoint.buffer for endpoint in command.endpoints):
            return None
        messages = [self._take(endpoint, transition) for endpoint in command.endpoints]
        payloads = [message.payload for message in messages if isinstance(message, SessionData)]
        return payloads[0] if command.is_one else values.encode_value(payloads, "the values")

    def _find_signal(
        self, command: commands.WaitForSignal, transition: FlowTransition
    ) -> bytes | None:
        """Consume the first signal of the expected type; signals of other types are dropped."""
        while waiting := self._signals.get(command.name):
            signal = waiting.popleft()
            if not waiting:
                del self._signals[command.name]
            payload = self._take_signal(signal, transition)
            problem = values.type_mismatch(payload, command.type)
            if problem is None:
                return payload
            rejection = f"signal {command.name!r} cannot have this value: {problem}"
            transition.rejected_signals = [*transition.rejected_signals, rejection]
        return None

    def _take(self, endpoint: SessionEndpoint, transition: FlowTransition) -> SessionMessage:
        buffered = endpoint.buffer.popleft()
        if buffered.id:
            transition.consumed_ids.append(buffered.id)
        else:
            transition.buffered = [
                message for message in transition.buffered if message[1] is not buffered
            ]
        return buffered.message

    def _take_signal(self, signal: BufferedSignal, transition: FlowTransition) -> bytes:
        self._signals_bytes -= len(signal.payload)
        if signal.id:
            transition.consumed_ids.append(signal.id)
        else:
            transition.signals = [other for other in transition.signals if other is not signal]
        return signal.payload

    # Sending.

    def execute(self, command: commands.SessionCommand, transition: FlowTransition) -> None:
        """Execute a command that opens, sends or closes."""
        if not isinstance(command, commands.CloseSession):
            for endpoint in command.endpoints:
                _check_can_send(endpoint)
        if isinstance(command, commands.SendData):
            for endpoint, payload in zip(command.endpoints, command.payloads, strict=True):
                is_first = endpoint.apply(SessionTrigger.SEND) is SessionAction.SEND_INIT
                queue_message(
                    transition,
                    endpoint,
                    self._initial(endpoint, payload) if is_first else SessionData(payload),
                )
        elif isinstance(command, commands.OpenSession):
            for endpoint in command.endpoints:
                endpoint.apply(SessionTrigger.SEND)
                queue_message(transition, endpoint, self._initial(endpoint, None))
        else:
            for endpoint in command.endpoints:
                _close(endpoint, transition)

    def send_confirm(self, transition: FlowTransition) -> None:
        """Confirm to the initiator that this responder has started, once."""
        if self._state.initiated_by is not None and not self._state.is_confirmed:
            self._state.is_confirmed = True
            queue_message(transition, self.by_number[0], SessionConfirm(*self._flow_identity(None)))

    def close_all(self, transition: FlowTransition) -> None:
        """Close all sessions: the flow has finished."""
        for endpoint in self.by_number.values():
            _close(endpoint, transition)

    def fail_all(self, failure: FlowFailure, was: FlowStatus, transition: FlowTransition) -> None:
        """Fail all sessions: the flow has failed, or was killed."""
        kind = failure.error.kind
        # Peers get the text of a FlowError of this flow: not of another peer's, nor of a fault.
        is_reported = self._state.status is FlowStatus.FAILED and not kind.startswith(
            _REMOTE_ERRORS
        )
        for endpoint in self.by_number.values():
            if endpoint.apply(SessionTrigger.FAIL) is not SessionAction.SEND_ERROR:
                continue
            if was in (FlowStatus.HELD, FlowStatus.QUEUED) and not endpoint.is_initiator:
                queue_message(
                    transition, endpoint, SessionReject(failure.error.text, failure.error_id)
                )
            elif is_reported:
                name, text = kind.rpartition(":")[2], failure.error.text
                queue_message(transition, endpoint, SessionError(failure.error_id, name, text))
            else:
                queue_message(transition, endpoint, SessionError(failure.error_id))

    def _initial(self, endpoint: SessionEndpoint, payload: bytes | None) -> SessionInit:
        return SessionInit(*self._flow_identity(endpoint.scope), payload)

    def _flow_identity(self, scope: object | None) -> tuple[str, int, str]:
        """Return name, version and application of a flow or subflow."""
        state = self._state
        name: str = getattr(scope, "name", state.name)
        return name, getattr(scope, "version", state.version), getattr(scope, "app", self._app)


def queue_message(
    transition: FlowTransition, endpoint: SessionEndpoint, message: SessionMessage
) -> None:
    """Send a message with the commit of a transition."""
    transition.outgoing.setdefault(endpoint.number, []).append(message)


def _close(endpoint: SessionEndpoint, transition: FlowTransition) -> None:
    if endpoint.apply(SessionTrigger.CLOSE) is SessionAction.SEND_CLOSE:
        queue_message(transition, endpoint, SessionClose())


def _restore_entry(endpoint: SessionEndpoint, entry: HistoryEntry) -> None:
    if entry.kind in (CommandKind.SEND, CommandKind.OPEN):
        if entry.error is None:
            endpoint.apply(SessionTrigger.SEND)
    elif entry.kind is CommandKind.CLOSE:
        endpoint.apply(SessionTrigger.CLOSE)
    elif entry.kind is CommandKind.RECEIVE and entry.error is not None:
        is_about = entry.value is not None and values.decode_value(entry.value) == endpoint.number
        if is_about and endpoint.state is not SessionState.CLOSED:
            endpoint.state = SessionState.ENDED
    elif endpoint.state is SessionState.INITIATING and entry.error is None:
        endpoint.state = SessionState.OPEN


def _check_can_send(endpoint: SessionEndpoint) -> None:
    if endpoint.state is SessionState.CLOSED:
        raise UsageError(f"the session with {endpoint.peer} was closed here")
    if endpoint.state is SessionState.ENDED:
        if endpoint.buffer and not isinstance(endpoint.buffer[-1].message, SessionData):
            raise error_from_message(endpoint.buffer[-1].message, endpoint.peer)
        raise SessionEndedError(f"{endpoint.peer} has ended this session")


def _is_finished(endpoint: SessionEndpoint) -> bool:
    """Whether no message is left, and no more can arrive."""
    return not endpoint.buffer and endpoint.state in (SessionState.ENDED, SessionState.CLOSED)


def _closed_result(endpoint: SessionEndpoint) -> SessionClosedResult:
    error = SessionEndedError(f"{endpoint.peer} sends nothing more in this session")
    return SessionClosedResult(error, endpoint.number)


def _find_info(endpoint: SessionEndpoint) -> bytes | SessionClosedResult | None:
    if endpoint.info is not None:
        return values.encode_value(endpoint.info, "the flow of the peer")
    if endpoint.buffer:
        return SessionClosedResult(
            error_from_message(endpoint.buffer[0].message, endpoint.peer), endpoint.number
        )
    return _closed_result(endpoint) if _is_finished(endpoint) else None


def error_from_message(message: SessionMessage, peer: str) -> FlowError:
    """Return the error that the code gets for a message other than data."""
    if isinstance(message, SessionReject):
        return SessionRejectedError(f"{peer} rejected the session: {message.text}")
    if isinstance(message, SessionError):
        reason = message.text or f"error {message.error_id} in its own records"
        return PeerFlowFailedError(
            f"the flow of {peer} has failed: {reason}", peer, message.error_id, message.kind
        )
    return SessionEndedError(f"{peer} has ended this session before everything was received")
