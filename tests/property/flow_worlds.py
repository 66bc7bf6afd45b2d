"""A world for flows that run random programs: everything that can happen to them, and crashes."""

from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from postroad.flows import Definition, Status
from postroad.flows.errors import FlowError
from postroad.flows.events import (
    Admitted,
    Event,
    Heard,
    Killed,
    Loaded,
    Paused,
    Resumed,
    Retried,
    Signalled,
    StepDone,
    StepRaised,
    Transition,
    Woke,
)
from postroad.flows.messages import Confirm, Data, End, Failed, Initial, Message, Rejection
from postroad.flows.records import Position, encode_record
from postroad.flows.values import encode
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

    definition: Definition[..., Any]
    event: Event
    now_ms: int
    followed: list[tuple[Any, ...]]
    stored: Stored
    pending: dict[Position, str]
    status: Status


def summary(course: list[Transition]) -> list[tuple[Any, ...]]:
    """Everything that follows from an event, to be compared."""
    return [_summary(it) for it in course]


def _summary(transition: Transition) -> tuple[Any, ...]:
    return (
        transition.first,
        [encode_record(it) for it in transition.records],
        [(number, it.message, it.id) for number, it in transition.keeps],
        [(it.name, it.payload, it.id) for it in transition.signals],
        transition.takes,
        transition.says,
        transition.receipts,
        [it.label for it in transition.runs],
        transition.cancels,
        transition.is_over,
        transition.is_head_changed,
        None if transition.statement is None else transition.statement.label,
        transition.concludes,
    )


class World:
    """Everybody else: functions, peers, clients, operators and clocks, in any order."""

    def __init__(
        self, program: Program, draw: st.DataObject, *, is_responder: bool = False
    ) -> None:
        after_ms = draw.draw(st.sampled_from([None, None, None, 4_000]), label="deadline")
        deadline_ms = None if after_ms is None else START_MS + after_ms
        self._first = Admitted()
        if is_responder:
            self.driven = Driven(obey, origin=ORIGIN, deadline_ms=deadline_ms)
            payload = encode(program, "it")
            opening = Initial(ORIGIN.flow, ORIGIN.version, ORIGIN.app, payload)
            self._first = Admitted([opening], "first")
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
        while len(self.moments) < EVENTS_MAX and not self.driven.head.is_over:
            options = self._options()
            if not options:
                break
            chosen = self._draw.draw(st.integers(0, len(options) - 1), label="event")
            after_ms = self._draw.draw(st.sampled_from([0, 1, 700]), label="later")
            event, due_ms = options[chosen]
            self._happen(event, max(due_ms - self.driven.now_ms, after_ms))
        return self.moments

    def _happen(self, event: Event, after_ms: int) -> None:
        driven = self.driven
        said = len(driven.said)
        driven.tell(event, after_ms)
        if isinstance(event, StepDone | StepRaised):
            self._pending.pop(event.position, None)
        for transition in driven.course:
            self._follow(transition)
        assert not self._pending or driven.head.status is Status.RUNNING
        if isinstance(event, Heard) and not event.peer:
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

    def _follow(self, transition: Transition) -> None:
        """Begin and end functions, as they would be."""
        for position in transition.cancels:
            self._pending.pop(position, None)
        for ask in transition.runs:
            assert ask.position not in self._pending, f"{ask} is run twice"
            self._pending[ask.position] = ask.label

    def _hear(self, number: int, message: Message) -> None:
        if isinstance(message, End | Failed):
            self._silent.discard(number)
            self._talking.discard(number)
        elif number not in self._talking | self._ended:
            self._silent.add(number)

    def _speak(self, event: Heard) -> None:
        for message in event.messages:
            self._silent.discard(event.number)
            if isinstance(message, Confirm):
                self._talking.add(event.number)
            elif not isinstance(message, Data):
                self._talking.discard(event.number)
                self._ended.add(event.number)

    def _options(self) -> list[tuple[Event, int]]:
        """What can happen, and when at the earliest; the first ones bring the flow on."""
        status = self.driven.head.status
        options: list[tuple[Event, int]] = []
        if status is Status.PAUSED:
            options.append((Resumed(), 0))
        elif status is Status.PARKED:
            options.append((Retried(), 0))
        if (due_ms := self.driven.machine.due_ms) is not None:
            options.append((Woke(), due_ms))
        self._tick += 1
        for position in self._pending:
            options.append((StepDone(position, self._tick), 0))
            options.append((StepRaised(position, ValueError(self._tick)), 0))
            options.append((StepRaised(position, FlowError(self._tick)), 0))
            options.append((StepRaised(position, ConnectionError(self._tick)), 0))
        options += [(it, 0) for it in self._talk()]
        options += [(Signalled(it, encode(self._tick, "it")), 0) for it in self._signals]
        if options and status is Status.RUNNING:
            options.append((Paused(), 0))
            options.append((StepDone((99,), 1), 0))
            options.append((Heard(1, [self._data()], "stray", "nobody"), 0))
            if len(self.moments) > LATE:
                options.append((Killed("enough"), 0))
        return options

    def _talk(self) -> list[Event]:
        said: list[tuple[int, list[Message]]] = []
        for number in sorted(self._silent):
            said += [(number, [CONFIRM, self._data()]), (number, [CONFIRM])]
            said += [(number, [Rejection("no", "e1")])]
        for number in sorted(self._talking):
            said += [(number, [self._data()]), (number, [self._data(), self._data()])]
            said += [(number, [self._data(), End()]), (number, [Failed("e2", "Odd", "text")])]
        return [Heard(number, messages, f"row {self._tick}") for number, messages in said]

    def _data(self) -> Data:
        return Data(encode(self._tick, "it"))


def go_on(driven: Driven, moments: list[Moment]) -> None:
    """Have the same happen again, and compare what follows."""
    for moment in moments:
        driven.tell(moment.event, moment.now_ms - driven.now_ms)
        assert summary(driven.course) == moment.followed
        assert comparable(driven.stored) == comparable(moment.stored)


def comparable(stored: Stored) -> tuple[Any, ...]:
    """What is in the store, but for what is told to people only."""
    head = stored.read_head()
    if head.trouble is not None:
        head.trouble = msgspec.structs.replace(head.trouble, detail="")
    return head, stored.records, stored.mail


def load(moment: Moment, program: Program | None = None) -> tuple[Driven, Transition]:
    """A flow as it was at a moment, in another process; perhaps with another program."""
    stored = moment.stored
    if program is not None:
        head = stored.read_head()
        head.arguments = interpret.encode_arguments((program,), {})
        stored = stored._replace(head=msgspec.msgpack.encode(head))
    driven = Driven(moment.definition, stored=stored, now_ms=moment.now_ms)
    return driven, driven.tell(Loaded())


def check_loading(moment: Moment) -> Driven:
    """Load a flow: it does nothing that was done, and runs what was not."""
    driven, loaded = load(moment)
    changes = (loaded.records, loaded.says, loaded.keeps, loaded.takes, loaded.is_head_changed)
    assert changes == ([], {}, [], [], False)
    assert not moment.pending.keys() & loaded.cancels
    assert {it.position: it.label for it in loaded.runs} == moment.pending
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
    for record in moment.stored.read_records():
        *branch, step = record.position
        # A statement may ask for more than one thing.
        first = next(it for it in range(step, -1, -1) if (*branch, it) in places)
        numbers.add(places[(*branch, first)])
    return [it for it in walk(program) if it.number in numbers]


def check_changed(program: Program, draw: st.DataObject) -> None:
    """A program that does not fit its record is parked; with the one of before nothing is lost."""
    moments = World(program, draw).run()
    for index, moment in enumerate(moments):
        if moment.status is not Status.RUNNING:
            continue
        load(moment)
        nodes = recorded_nodes(moment, program)
        if not nodes:
            continue
        node = draw.draw(st.sampled_from(nodes))
        hows = [replace, insert, remove] if isinstance(node, RECORDED_ONCE) else [replace, insert]
        how = draw.draw(st.sampled_from(hows))
        later, loaded = load(moment, change(program, node.number, how))
        assert later.head.status is Status.PARKED, (node, how.__name__)
        assert "FlowMismatch" in later.trouble
        assert (loaded.records, loaded.says, loaded.runs) == ([], {}, [])
        # With the program of before nothing is lost.
        later.definition = interpret
        restore(later, program)
        later.tell(Retried())
        assert later.stored.records == moment.stored.records
        for follower in moments[index + 1 :]:
            later.tell(follower.event, follower.now_ms - later.now_ms)
        assert later.stored.records == moments[-1].stored.records
        assert later.head.result == moments[-1].stored.read_head().result


def restore(driven: Driven, program: Program) -> None:
    """Have a flow run a program from when it is next loaded."""
    head = driven.stored.read_head()
    head.arguments = interpret.encode_arguments((program,), {})
    driven.stored = driven.stored._replace(head=msgspec.msgpack.encode(head))


def check_patched(program: Program, draw: st.DataObject) -> None:
    """A patch before what was done makes no difference."""
    moments = World(program, draw).run()
    for moment in moments:
        if moment.status is not Status.RUNNING:
            continue
        load(moment)
        nodes = recorded_nodes(moment, program)
        if not nodes:
            continue
        node = draw.draw(st.sampled_from(nodes))
        later, loaded = load(moment, change(program, node.number, patch))
        assert later.head.status is Status.RUNNING, later.trouble
        assert loaded.records == []
        assert {it.position: it.label for it in loaded.runs} == moment.pending
