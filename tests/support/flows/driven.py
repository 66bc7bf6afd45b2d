"""Machines of flows driven by hand, with a store that is a few lists."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from postroad.flows import FlowContext, FlowDefinition, FlowSession, FlowStatus
from postroad.flows.machine.commands import FlowCommand
from postroad.flows.machine.coroutine import FlowCoroutine
from postroad.flows.machine.events import (
    BufferedSignal,
    FlowAdmitted,
    FlowEvent,
    FlowLoaded,
    FlowTransition,
)
from postroad.flows.machine.history import (
    HistoryEntry,
    Position,
    decode_history_entry,
    encode_history_entry,
)
from postroad.flows.machine.lifecycle import FlowLimits
from postroad.flows.machine.state import FlowState, InitiatingSession
from postroad.flows.machine.state_machine import FlowStateMachine
from postroad.flows.machine.values import encode_value
from postroad.flows.sessions.messages import (
    SessionConfirm,
    SessionData,
    SessionKey,
    SessionMessage,
    decode_session_message,
    encode_session_message,
)
from postroad.flows.sessions.session import BufferedMessage

START_MS = 1_700_000_000_000
CONFIRM = SessionConfirm("answer", 2, "bank")
ORIGIN = InitiatingSession("beta", SessionKey(5, 1), "ask", 3, "shop")


def data(value: Any) -> SessionData:
    """A message with a value."""
    return SessionData(encode_value(value, "it"))


class Mail(NamedTuple):
    """A row of what a flow has not read."""

    id: int
    session: int | None
    name: str | None
    message: bytes


class Stored(NamedTuple):
    """Everything a store has of a flow, as bytes: nothing is shared with a machine."""

    head: bytes = b""
    records: tuple[bytes, ...] = ()
    mail: tuple[Mail, ...] = ()

    def read_head(self) -> FlowState:
        return msgspec.msgpack.decode(self.head, type=FlowState)

    def read_records(self) -> list[HistoryEntry]:
        return [decode_history_entry(entry) for entry in self.records]

    def kept(self) -> list[tuple[int, BufferedMessage]]:
        return [
            (row.session, BufferedMessage(decode_session_message(row.message), row.id))
            for row in self.mail
            if row.session is not None
        ]

    def signals(self) -> list[BufferedSignal]:
        return [
            BufferedSignal(row.name, row.message, row.id)
            for row in self.mail
            if row.name is not None
        ]

    def after(self, state: FlowState, transition: FlowTransition) -> Stored:
        """What it has when a transition was committed, which must fit what is there."""
        encoded = msgspec.msgpack.encode(state)
        assert transition.is_state_changed or encoded == self.head, "a change would be lost"
        records, mail = list(self.records), list(self.mail)
        if transition.clears_history:
            records.clear()
            mail = [row for row in mail if row.session is None]
        assert transition.first == len(records), "a step is written twice, or none"
        records += [encode_history_entry(entry) for entry in transition.entries]
        number = 1 + max([row.id for row in mail], default=0)
        for session, buffered in transition.buffered:
            buffered.id = number
            mail.append(Mail(number, session, None, encode_session_message(buffered.message)))
            number += 1
        for signal in transition.signals:
            signal.id = number
            mail.append(Mail(number, None, signal.name, signal.payload))
            number += 1
        assert transition.is_ended or {*transition.consumed_ids} <= {row.id for row in mail}
        mail = [
            row for row in mail if row.id not in transition.consumed_ids and not transition.is_ended
        ]
        return Stored(encoded, tuple(records), tuple(mail))


class Driven:
    """A machine, and what is in the store of it.

    Args:
        definition: its code.
        args: what it is begun with.
        stored: what the store has already; the machine is made from that.
        now_ms: the time.
        facts: of its head.
        settings: of the machine.
    """

    def __init__(
        self,
        definition: FlowDefinition[..., Any],
        *args: Any,
        stored: Stored | None = None,
        now_ms: int = START_MS,
        settings: dict[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        self.definition = definition
        self.settings = settings or {}
        self.now_ms = now_ms
        self.said: list[tuple[int, SessionMessage]] = []
        self.flow: FlowContext | None = None
        # What followed from the last event.
        self.course: list[FlowTransition] = []
        self.stored = stored or Stored()
        if stored is None:
            arguments = b"" if "initiated_by" in facts else definition.encode_arguments(args, {})
            fields: dict[str, Any] = {"id": 9, "name": definition.name, "seed": b"e" * 16}
            fields |= {"version": definition.version, "status": FlowStatus.RUNNING}
            fields |= {"started_ms": now_ms}
            state = FlowState(**fields | {"arguments": arguments} | facts)
            self.machine = self._make(state)
        else:
            self.machine = self._read()

    def _make(self, state: FlowState, **fields: Any) -> FlowStateMachine:
        names = FlowLimits.__struct_fields__
        settings = {name: value for name, value in self.settings.items() if name not in names}
        machine = FlowStateMachine(state, self._make_code, **fields, **settings)
        bounds = {name: value for name, value in self.settings.items() if name in names}
        machine.limits = FlowLimits(**bounds)
        return machine

    def _read(self) -> FlowStateMachine:
        stored = self.stored
        return self._make(
            stored.read_head(),
            entries=stored.read_records(),
            buffered=stored.kept(),
            signals=stored.signals(),
        )

    def _make_code(self, machine: FlowStateMachine) -> FlowCoroutine:
        flow = self.flow = FlowContext(machine, self.definition)
        if machine.state.initiated_by is not None:
            session = FlowSession(flow, machine.sessions.by_number[0])
            coroutine = self.definition(flow, session)
        else:
            args, kwargs = self.definition.decode_arguments(machine.state.arguments)
            coroutine = self.definition(flow, *args, **kwargs)
        return FlowCoroutine(coroutine, self.definition, machine.execute, machine.cancel_command)

    def tell(self, event: FlowEvent, after_ms: int = 0) -> FlowTransition:
        """Have an event taken up, and what follows from it committed."""
        if self.machine.is_unloaded:
            self.load()
        return self._tell(event, after_ms)

    def _tell(self, event: FlowEvent, after_ms: int) -> FlowTransition:
        self.now_ms += after_ms
        transition = self.machine.handle(event, self.now_ms)
        self.course = [transition]
        self.commit(transition)
        return transition

    def commit(self, transition: FlowTransition) -> None:
        """Have a transition written down, and what it says sent."""
        self.stored = self.stored.after(self.machine.state, transition)
        for number, messages in transition.outgoing.items():
            self.said += [(number, message) for message in messages]

    def load(self) -> FlowTransition:
        """Drop the machine, make it again from the store, and have it go on from there."""
        self.machine.stop_code()
        self.machine = self._read()
        return self._tell(FlowLoaded(), 0)

    @property
    def head(self) -> FlowState:
        return self.machine.state

    @property
    def records(self) -> list[HistoryEntry]:
        return self.stored.read_records()

    @property
    def waiting(self) -> list[str]:
        """What the code waits for."""
        code = self.machine.code
        commands = [] if code is None else [branch.command for branch in code.waiting.values()]
        return [command.label for command in commands if isinstance(command, FlowCommand)]

    @property
    def result(self) -> Any:
        assert self.head.status is FlowStatus.COMPLETED, self.trouble
        assert self.head.result is not None
        return msgspec.msgpack.decode(self.head.result)

    @property
    def trouble(self) -> str:
        """Why it is not well."""
        failure = self.head.failure
        return "" if failure is None else f"{failure.error.kind}: {failure.error.text}"


def begun(definition: FlowDefinition[..., Any], *args: Any, **facts: Any) -> Driven:
    """A flow that was just begun."""
    driven = Driven(definition, *args, **facts)
    driven.tell(FlowAdmitted())
    return driven


def labels(transition: FlowTransition) -> list[str]:
    """The steps a transition writes down."""
    return [entry.label for entry in transition.entries]


def runs(transition: FlowTransition) -> list[Position]:
    """The functions a transition has run."""
    return [command.position for command in transition.steps_to_run]
