"""A world for flows that run random programs: everything that can happen to them, and crashes."""

from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from postroad.flows import FlowDefinition, FlowStatus
from postroad.flows.errors import FlowError
from postroad.flows.machine.events import (
    FlowAdmitted,
    FlowCancelRequested,
    FlowEvent,
    FlowKillRequested,
    FlowLoaded,
    FlowPauseRequested,
    FlowResumeRequested,
    FlowRetryRequested,
    FlowTransition,
    SessionMessagesReceived,
    SignalReceived,
    StepCompleted,
    StepFailed,
    TimerFired,
)
from postroad.flows.machine.history import Position, encode_history_entry
from postroad.flows.machine.values import encode_value
from postroad.flows.sessions.messages import (
    SessionClose,
    SessionConfirm,
    SessionData,
    SessionError,
    SessionInit,
    SessionMessage,
    SessionReject,
)
from tests.property.flow_programs import (
    RECORDED_ONCE,
    Interpreter,
    Patch,
    Program,
    Signal,
    Step,
    change,
    interpret,
    obey,
    walk,
)
from tests.support.flows.driven import CONFIRM, ORIGIN, START_MS, Driven, Stored

EVENTS_MAX = 25
# Nobody kills it before so many events.
LATE = 8


class Moment(NamedTuple):
    """One event of a course, and what was there when all that followed from it was durable."""

    definition: FlowDefinition[..., Any]
    event: FlowEvent
    now_ms: int
    followed: list[tuple[Any, ...]]
    stored: Stored
    pending: dict[Position, str]
    status: FlowStatus


def summary(course: list[FlowTransition]) -> list[tuple[Any, ...]]:
    """Everything that follows from an event, to be compared."""
    return [_summary(it) for it in course]


def _summary(transition: FlowTransition) -> tuple[Any, ...]:
    return (
        transition.first,
        [encode_history_entry(entry) for entry in transition.entries],
        [(number, message.message, message.id) for number, message in transition.buffered],
        [(signal.name, signal.payload, signal.id) for signal in transition.signals],
        transition.consumed_ids,
        transition.outgoing,
        transition.ack_tokens,
        [command.label for command in transition.steps_to_run],
        transition.steps_to_cancel,
        transition.is_ended,
        transition.is_state_changed,
    )


class World:
    """Everybody else: functions, peers, clients, operators and clocks, in any order."""

    def __init__(
        self, program: Program, draw: st.DataObject, *, is_responder: bool = False
    ) -> None:
        after_ms = draw.draw(st.sampled_from([None, None, None, 4_000]), label="deadline")
        deadline_ms = None if after_ms is None else START_MS + after_ms
        self._first = FlowAdmitted()
        if is_responder:
            self.driven = Driven(obey, initiated_by=ORIGIN, deadline_ms=deadline_ms)
            payload = encode_value(program, "it")
            opening = SessionInit(ORIGIN.flow, ORIGIN.version, ORIGIN.app, payload)
            self._first = FlowAdmitted([opening], "first")
        else:
            self.driven = Driven(interpret, program, deadline_ms=deadline_ms)
        self.moments: list[Moment] = []
        self._draw = draw
        self._pending: dict[Position, str] = {}
        self._signals = [f"g{it.number}" for it in walk(program) if isinstance(it, Signal)]
        # Those ends of sessions that have not answered, that have, and that say nothing more.
        self._silent: set[int] = set()
        self._talking = {0} if is_responder else set[int]()
        self._ended: set[int] = set()
        self._tick = 0

    def run(self) -> list[Moment]:
        """Have something happen as long as something can."""
        self._happen(self._first, 0)
        while len(self.moments) < EVENTS_MAX and not self.driven.head.is_ended:
            options = self._options()
            if not options:
                break
            chosen = self._draw.draw(st.integers(0, len(options) - 1), label="event")
            after_ms = self._draw.draw(st.sampled_from([0, 1, 700]), label="later")
            event, due_ms = options[chosen]
            self._happen(event, max(due_ms - self.driven.now_ms, after_ms))
        return self.moments

    def _happen(self, event: FlowEvent, after_ms: int) -> None:
        driven = self.driven
        said = len(driven.said)
        driven.tell(event, after_ms)
        if isinstance(event, StepCompleted | StepFailed):
            self._pending.pop(event.position, None)
        for transition in driven.course:
            self._follow(transition)
        assert not self._pending or driven.head.status is FlowStatus.RUNNING
        if isinstance(event, SessionMessagesReceived) and not event.peer:
            self._speak(event)
        for number, message in driven.said[said:]:
            self._hear(number, message)
        moment = Moment(
            driven.definition,
            event,
            driven.now_ms,
            summary(driven.course),
            driven.stored,
            dict(self._pending),
            driven.head.status,
        )
        self.moments.append(moment)

    def _follow(self, transition: FlowTransition) -> None:
        """Begin and end functions, as they would be."""
        for position in transition.steps_to_cancel:
            self._pending.pop(position, None)
        for command in transition.steps_to_run:
            assert command.position not in self._pending, f"{command} is run twice"
            self._pending[command.position] = command.label

    def _hear(self, number: int, message: SessionMessage) -> None:
        if isinstance(message, SessionClose | SessionError):
            self._silent.discard(number)
            self._talking.discard(number)
        elif number not in self._talking | self._ended:
            self._silent.add(number)

    def _speak(self, event: SessionMessagesReceived) -> None:
        for message in event.messages:
            self._silent.discard(event.number)
            if isinstance(message, SessionConfirm):
                self._talking.add(event.number)
            elif not isinstance(message, SessionData):
                self._talking.discard(event.number)
                self._ended.add(event.number)

    def _options(self) -> list[tuple[FlowEvent, int]]:
        """What can happen, and when at the earliest; the first ones bring the flow on."""
        status = self.driven.head.status
        options: list[tuple[FlowEvent, int]] = []
        if status is FlowStatus.PAUSED:
            options.append((FlowResumeRequested(), 0))
        elif status is FlowStatus.PARKED:
            options.append((FlowRetryRequested(), 0))
        if (due_ms := self.driven.machine.due_ms) is not None:
            options.append((TimerFired(), due_ms))
        self._tick += 1
        for position in self._pending:
            options.append((StepCompleted(position, self._tick), 0))
            options.append((StepFailed(position, ValueError(self._tick)), 0))
            options.append((StepFailed(position, FlowError(self._tick)), 0))
            options.append((StepFailed(position, ConnectionError(self._tick)), 0))
        options += [(it, 0) for it in self._talk()]
        options += [(SignalReceived(it, encode_value(self._tick, "it")), 0) for it in self._signals]
        if options and status is FlowStatus.RUNNING:
            options.append((FlowPauseRequested(), 0))
            options.append((StepCompleted((99,), 1), 0))
            options.append((SessionMessagesReceived(1, [self._data()], "stray", "nobody"), 0))
            if len(self.moments) > LATE:
                options.append((FlowKillRequested("enough"), 0))
                options.append((FlowCancelRequested("no more"), 0))
        return options

    def _talk(self) -> list[FlowEvent]:
        said: list[tuple[int, list[SessionMessage]]] = []
        for number in sorted(self._silent):
            said += [(number, [CONFIRM, self._data()]), (number, [CONFIRM])]
            said += [(number, [SessionReject("no", "e1")])]
        for number in sorted(self._talking):
            said += [(number, [self._data()]), (number, [self._data(), self._data()])]
            said += [
                (number, [self._data(), SessionClose()]),
                (number, [SessionError("e2", "Odd", "text")]),
            ]
        return [
            SessionMessagesReceived(number, messages, f"row {self._tick}")
            for number, messages in said
        ]

    def _data(self) -> SessionData:
        return SessionData(encode_value(self._tick, "it"))


def go_on(driven: Driven, moments: list[Moment]) -> None:
    """Have the same happen again, and compare what follows."""
    for moment in moments:
        driven.tell(moment.event, moment.now_ms - driven.now_ms)
        assert summary(driven.course) == moment.followed
        assert comparable(driven.stored) == comparable(moment.stored)


def comparable(stored: Stored) -> tuple[Any, ...]:
    """What is in the store, but for what is told to people only."""
    state = stored.read_head()
    if state.failure is not None:
        state.failure = msgspec.structs.replace(state.failure, detail="")
    return state, stored.records, stored.mail


def load(moment: Moment, program: Program | None = None) -> tuple[Driven, FlowTransition]:
    """A flow as it was at a moment, in another process; perhaps with another program."""
    stored = moment.stored
    if program is not None:
        state = stored.read_head()
        state.arguments = interpret.encode_arguments((program,), {})
        stored = stored._replace(head=msgspec.msgpack.encode(state))
    driven = Driven(moment.definition, stored=stored, now_ms=moment.now_ms)
    return driven, driven.tell(FlowLoaded())


def check_loading(moment: Moment) -> Driven:
    """Load a flow: it does nothing that was done, and runs what was not."""
    driven, loaded = load(moment)
    changes = (
        loaded.entries,
        loaded.outgoing,
        loaded.buffered,
        loaded.consumed_ids,
        loaded.is_state_changed,
    )
    assert changes == ([], {}, [], [], False)
    assert not moment.pending.keys() & loaded.steps_to_cancel
    assert {command.position: command.label for command in loaded.steps_to_run} == moment.pending
    return driven


def check_everywhere(program: Program, draw: st.DataObject) -> None:
    """A flow that is loaded at any moment goes on from there as if it had not been."""
    moments = World(program, draw, is_responder=draw.draw(st.booleans())).run()
    for index, moment in enumerate(moments[:-1]):
        go_on(check_loading(moment), moments[index + 1 :])


def check_always(program: Program, draw: st.DataObject) -> None:
    """So does one that is loaded before everything that happens to it."""
    moments = World(program, draw, is_responder=draw.draw(st.booleans())).run()
    for earlier, moment in pairwise(moments):
        go_on(check_loading(earlier), [moment])


def replace(node: Any) -> Program:
    return [Step(number=1_000)]


def remove(node: Any) -> Program:
    return []


def insert(node: Any) -> Program:
    return [Step(number=1_000), node]


def patch(node: Any) -> Program:
    return [Patch(number=1_000), node]


def recorded_nodes(moment: Moment, program: Program) -> list[Any]:
    """The statements that a record is of."""
    places = Interpreter.latest.places
    numbers = set()
    for entry in moment.stored.read_records():
        *branch, step = entry.position
        # A statement may ask for more than one thing.
        first = next(it for it in range(step, -1, -1) if (*branch, it) in places)
        numbers.add(places[(*branch, first)])
    return [it for it in walk(program) if it.number in numbers]


def check_changed(program: Program, draw: st.DataObject) -> None:
    """A program that does not match its history is parked; the former one continues."""
    moments = World(program, draw).run()
    for index, moment in enumerate(moments):
        if moment.status is not FlowStatus.RUNNING:
            continue
        load(moment)
        nodes = recorded_nodes(moment, program)
        if not nodes:
            continue
        node = draw.draw(st.sampled_from(nodes))
        hows = [replace, insert, remove] if isinstance(node, RECORDED_ONCE) else [replace, insert]
        how = draw.draw(st.sampled_from(hows))
        later, loaded = load(moment, change(program, node.number, how))
        assert later.head.status is FlowStatus.PARKED, (node, how.__name__)
        assert "NondeterminismError" in later.trouble
        assert (loaded.entries, loaded.outgoing, loaded.steps_to_run) == ([], {}, [])
        # With the program of before nothing is lost.
        later.definition = interpret
        restore(later, program)
        later.tell(FlowRetryRequested())
        assert later.stored.records == moment.stored.records
        for follower in moments[index + 1 :]:
            later.tell(follower.event, follower.now_ms - later.now_ms)
        assert later.stored.records == moments[-1].stored.records
        assert later.head.result == moments[-1].stored.read_head().result


def restore(driven: Driven, program: Program) -> None:
    """Have a flow run a program from when it is next loaded."""
    state = driven.stored.read_head()
    state.arguments = interpret.encode_arguments((program,), {})
    driven.stored = driven.stored._replace(head=msgspec.msgpack.encode(state))


def check_patched(program: Program, draw: st.DataObject) -> None:
    """A patch before what was done makes no difference."""
    moments = World(program, draw).run()
    for moment in moments:
        if moment.status is not FlowStatus.RUNNING:
            continue
        load(moment)
        nodes = recorded_nodes(moment, program)
        if not nodes:
            continue
        node = draw.draw(st.sampled_from(nodes))
        later, loaded = load(moment, change(program, node.number, patch))
        assert later.head.status is FlowStatus.RUNNING, later.trouble
        assert loaded.entries == []
        assert {
            command.position: command.label for command in loaded.steps_to_run
        } == moment.pending
