"""Machines of flows driven by hand, with a store that is a few lists."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from postroad.flows import Definition, Flow, Session, Status
from postroad.flows.asks import Ask
from postroad.flows.code import Code
from postroad.flows.events import Admitted, Event, KeptSignal, Loaded, StatementDone, Transition
from postroad.flows.head import Head, Origin
from postroad.flows.lifecycle import Bounds
from postroad.flows.machine import Machine
from postroad.flows.messages import (
    Confirm,
    Data,
    Message,
    SessionKey,
    decode_message,
    encode_message,
)
from postroad.flows.records import Position, Record, decode_record, encode_record
from postroad.flows.session import Kept
from postroad.flows.values import encode

START_MS = 1_700_000_000_000
CONFIRM = Confirm("answer", 2, "bank")
ORIGIN = Origin("beta", SessionKey(5, 1), "ask", 3, "shop")


def data(value: Any) -> Data:
    """A message with a value."""
    return Data(encode(value, "it"))


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

    def read_head(self) -> Head:
        return msgspec.msgpack.decode(self.head, type=Head)

    def read_records(self) -> list[Record]:
        return [decode_record(it) for it in self.records]

    def kept(self) -> list[tuple[int, Kept]]:
        return [
            (it.session, Kept(decode_message(it.message), it.id))
            for it in self.mail
            if it.session is not None
        ]

    def signals(self) -> list[KeptSignal]:
        return [KeptSignal(it.name, it.message, it.id) for it in self.mail if it.name is not None]

    def after(self, head: Head, transition: Transition) -> Stored:
        """What it has when a transition was committed, which must fit what is there."""
        encoded = msgspec.msgpack.encode(head)
        assert transition.is_head_changed or encoded == self.head, "a change would be lost"
        records, mail = list(self.records), list(self.mail)
        if transition.forgets_steps:
            records.clear()
            mail = [it for it in mail if it.session is None]
        assert transition.first == len(records), "a step is written twice, or none"
        records += [encode_record(it) for it in transition.records]
        number = 1 + max([it.id for it in mail], default=0)
        for session, kept in transition.keeps:
            kept.id = number
            mail.append(Mail(number, session, None, encode_message(kept.message)))
            number += 1
        for signal in transition.signals:
            signal.id = number
            mail.append(Mail(number, None, signal.name, signal.payload))
            number += 1
        assert transition.is_over or {*transition.takes} <= {it.id for it in mail}
        mail = [it for it in mail if it.id not in transition.takes and not transition.is_over]
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
        definition: Definition[..., Any],
        *args: Any,
        stored: Stored | None = None,
        now_ms: int = START_MS,
        settings: dict[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        self.definition = definition
        self.settings = settings or {}
        self.now_ms = now_ms
        self.said: list[tuple[int, Message]] = []
        self.flow: Flow | None = None
        # What followed from the last event, with that of the statements it had run.
        self.course: list[Transition] = []
        self.stored = stored or Stored()
        if stored is None:
            arguments = b"" if "origin" in facts else definition.encode_arguments(args, {})
            known: dict[str, Any] = {"id": 9, "name": definition.name, "entropy": b"e" * 16}
            known |= {"version": definition.version, "status": Status.RUNNING}
            known |= {"started_ms": now_ms}
            head = Head(**known | {"arguments": arguments} | facts)
            self.machine = self._make(head)
        else:
            self.machine = self._read()

    def _make(self, head: Head, **known: Any) -> Machine:
        names = Bounds.__struct_fields__
        settings = {name: it for name, it in self.settings.items() if name not in names}
        machine = Machine(head, self._make_code, **known, **settings)
        bounds = {name: it for name, it in self.settings.items() if name in names}
        machine.bounds = Bounds(**bounds)
        return machine

    def _read(self) -> Machine:
        stored = self.stored
        return self._make(
            stored.read_head(),
            records=stored.read_records(),
            kept=stored.kept(),
            signals=stored.signals(),
        )

    def _make_code(self, machine: Machine) -> Code:
        flow = self.flow = Flow(machine, self.definition)
        if machine.head.origin is not None:
            session = Session(flow, machine.dialogues.sessions[0])
            coroutine = self.definition.function(flow, session)
        else:
            args, kwargs = self.definition.decode_arguments(machine.head.arguments)
            coroutine = self.definition.function(flow, *args, **kwargs)
        return Code(coroutine, self.definition, machine.answer, machine.withdraw)

    def tell(self, event: Event, after_ms: int = 0) -> Transition:
        """Have an event taken up, and what follows from it committed."""
        if self.machine.is_spent:
            self.load()
        return self._tell(event, after_ms)

    def _tell(self, event: Event, after_ms: int) -> Transition:
        self.now_ms += after_ms
        transition = self.machine.handle(event, self.now_ms)
        self.course = [transition]
        self.commit(transition)
        while (statement := self.course[-1].statement) is not None:
            # Nothing else happens to a flow while its transaction is open.
            self.course.append(self.machine.handle(self.run_statement(statement), self.now_ms))
            self.commit(self.course[-1])
        return transition

    def run_statement(self, statement: Ask) -> StatementDone:
        """What a database says to a statement: the same whenever it is asked."""
        if "refused" in statement.name:
            return StatementDone(statement.position, error=KeyError(statement.name))
        return StatementDone(statement.position, [(statement.name, len(self.stored.records))])

    def commit(self, transition: Transition) -> None:
        """Have a transition written down, and what it says sent."""
        self.stored = self.stored.after(self.machine.head, transition)
        for number, messages in transition.says.items():
            self.said += [(number, it) for it in messages]

    def load(self) -> Transition:
        """Drop the machine, make it again from the store, and have it go on from there."""
        self.machine.drop_code()
        self.machine = self._read()
        return self._tell(Loaded(), 0)

    @property
    def head(self) -> Head:
        return self.machine.head

    @property
    def records(self) -> list[Record]:
        return self.stored.read_records()

    @property
    def waiting(self) -> list[str]:
        """What the code waits for."""
        code = self.machine.code
        asked = [] if code is None else [it.asked for it in code.waiting.values()]
        return [it.label for it in asked if isinstance(it, Ask)]

    @property
    def result(self) -> Any:
        assert self.head.status is Status.DONE, self.trouble
        assert self.head.result is not None
        return msgspec.msgpack.decode(self.head.result)

    @property
    def trouble(self) -> str:
        """Why it is not well."""
        trouble = self.head.trouble
        return "" if trouble is None else f"{trouble.failure.kind}: {trouble.failure.text}"


def begun(definition: Definition[..., Any], *args: Any, **facts: Any) -> Driven:
    """A flow that was just begun."""
    driven = Driven(definition, *args, **facts)
    driven.tell(Admitted())
    return driven


def labels(transition: Transition) -> list[str]:
    """The steps a transition writes down."""
    return [it.label for it in transition.records]


def runs(transition: Transition) -> list[Position]:
    """The functions a transition has run."""
    return [it.position for it in transition.runs]
