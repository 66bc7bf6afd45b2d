"""The machine of a flow: State x Event -> Transition x State'.

It runs the code of the flow, and says what must be written down and sent for that. It does neither
by itself: no I/O, no clock, no chance. Whoever drives it commits a transition as a whole, and drops
the machine if that fails; it is made again from what is in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from postroad.core.errors import UsageError
from postroad.core.limits import FLOW_RECORDS_MAX

from . import requests as ask_for
from . import values, waiting
from .asks import NOTHING, Ask, Outcome
from .code import Code
from .dialogues import Dialogues, Silence
from .errors import FlowError, FlowKilled, FlowTimeout
from .events import (
    Admitted,
    Began,
    Event,
    Heard,
    KeptSignal,
    Killed,
    Loaded,
    Paused,
    Refusal,
    Resumed,
    Retried,
    Signalled,
    StatementDone,
    StepDone,
    StepRaised,
    Survived,
    Transition,
    Woke,
)
from .head import Head
from .life import Happening, Status
from .lifecycle import Lifecycle
from .log import Diverged, Log, make_record, outcome_of
from .records import Position, Record
from .replay import replay
from .session import Kept, SessionEnd
from .transactions import encode_results, result_of

_LIFE: dict[type, Happening] = {
    Began: Happening.BEGIN,
    Retried: Happening.RETRY,
    Paused: Happening.PAUSE,
    Resumed: Happening.RESUME,
}


class Machine(Lifecycle):
    """One flow.

    Args:
        head: what is known of it.
        make_code: makes its code, which has not begun; raises if nothing fits the head.
        records: what it has done before.
        kept: what was said to it and it has not read, with the numbers of sessions.
        signals: signals that it has not read.
        heard_max: messages of a session that may wait for it.
        payload_max: size of the largest thing it may send.
        app: the application its code belongs to.
    """

    __slots__ = ("_log", "_make_code", "_statement", "payload_max", "refusals")

    def __init__(
        self,
        head: Head,
        make_code: Callable[[Machine], Code],
        *,
        records: Sequence[Record] = (),
        kept: Iterable[tuple[int, Kept]] = (),
        signals: Iterable[KeptSignal] = (),
        heard_max: int = 10_000,
        payload_max: int = 1 << 20,
        app: str = "",
    ) -> None:
        super().__init__(head, Dialogues(head, heard_max, app), records)
        self.dialogues.recall(records, kept, signals)
        self.payload_max = payload_max
        # Transactions whose statements could not be committed, by position, and why.
        self.refusals: dict[Position, Refusal] = {}
        self._make_code = make_code
        self._log = Log(records)
        # The one that runs now.
        self._statement: ask_for.Statement | None = None

    def open(self, peer: str) -> SessionEnd:
        """A new session; nobody is told before something is said in it."""
        end = self.dialogues.open(peer, None if self.code is None else self.code.current.scope)
        if end.peer != peer:
            what = f"the code opens session {end.number} with {peer!r}"
            raise self._log.diverged(what, [f"it was with {end.peer!r}"])
        return end

    # Events.

    def handle(self, event: Event, now_ms: int) -> Transition:
        """Take up an event; everything that follows from it, to be committed as a whole.

        Raises:
            UsageError: that cannot happen to the flow now. Nothing has changed.
        """
        transition = self._transition = Transition(self.steps)
        self._wall_ms = now_ms
        if isinstance(event, Heard):
            self.dialogues.hear(event, transition)
        elif isinstance(event, StepDone):
            self._on_step_done(event)
        elif isinstance(event, StepRaised):
            if (ask := self._asked(event.position)) is not None:
                self._conclude_error(ask, event.error)
        elif isinstance(event, StatementDone):
            self._on_statement_done(event)
        elif isinstance(event, Signalled):
            is_wanted = waiting.wants_signal(self.code, event.name, event.payload)
            self.dialogues.hear_signal(event, transition, is_wanted=is_wanted)
        elif isinstance(event, Admitted):
            self._on_admitted(event)
        elif isinstance(event, Loaded):
            if self.head.status is Status.RUNNING:
                self._run_code()
        elif isinstance(event, Woke):
            self._on_woke()
        elif isinstance(event, Survived):
            self._on_survived()
        elif isinstance(event, Killed):
            error = FlowKilled(event.reason)
            self._move(Happening.KILL, self._trouble(error, "an operator ended it"))
        else:
            self._move(_LIFE[type(event)])
        if self.code is not None:
            self._go_on(self.code)
        self._settle()
        return transition

    def _on_admitted(self, event: Admitted) -> None:
        self._transition.is_new = self._transition.is_head_changed = True
        if event.messages:
            self.dialogues.hear(Heard(0, event.messages, event.receipt), self._transition)
        if self.head.status is Status.RUNNING:
            self.dialogues.confirm(self._transition)
            self._run_code()

    def _on_step_done(self, event: StepDone) -> None:
        ask = self._asked(event.position)
        if ask is None:
            return
        assert isinstance(ask, ask_for.Step)
        try:
            encoded = values.encode(event.value, f"what step {ask.name!r} returned")
            result = Outcome(values.roundtrip(event.value, encoded, ask.type))
        except Exception as error:
            self._conclude_error(ask, error)
        else:
            self._transition.is_step_kept = True
            self._conclude(ask, encoded, result)

    def _on_statement_done(self, event: StatementDone) -> None:
        ask = self._asked(event.position)
        assert isinstance(ask, ask_for.Statement) and self.code is not None
        result = result_of(ask, event.value, event.error)
        ask.transaction.add(ask, result)
        self._statement = None
        self.code.resume(ask.position, result.read())

    def count_steps(self) -> int:
        """How many steps the code has come by, as it runs now or is run again."""
        return self.steps if self._log.is_over else self._log.taken

    def waits_for(self, ask: Ask) -> bool:
        """Whether the code still waits for something."""
        return self._asked(ask.position) is ask

    def _asked(self, position: Position) -> Ask | None:
        return waiting.asked_at(self.code, position)

    # The code.

    def _run_code(self) -> None:
        """Make the code, and bring it to where its record ends."""
        try:
            self.code = self._make_code(self)
            replay(self.code, self._log, self._move_time)
        except Diverged as diverged:
            self._observe(diverged.mismatch)
        except Exception as error:
            # Nobody knows this flow any more, or its arguments are none.
            self._observe(error)

    def _move_time(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)

    def answer(self, ask: Ask) -> Outcome | None:
        """Answer what the code asks for; None if it must wait."""
        if isinstance(ask, ask_for.SessionAsk):
            self.dialogues.check_own(ask)
        if not ask.is_immediate:
            self._fresh.append(ask.position)
            return None
        if not self._log.is_over:
            if isinstance(ask, ask_for.Patch) and not self._log.has_next(ask):
                # It went here before there was that patch. As if it had not been asked.
                assert self.code is not None
                self.code.current.steps -= 1
                return Outcome(False)
            if self._log.is_put_off(ask):
                return None
            record = self._log.take(ask)
            self._move_time(record.at_ms)
            return outcome_of(ask, record)
        return None if self._is_full and self._can_wait(ask) else self._perform(ask)

    @property
    def _is_full(self) -> bool:
        """Whether so much is to be committed that others must have their turn."""
        return len(self._transition.records) >= FLOW_RECORDS_MAX

    def _can_wait(self, ask: Ask) -> bool:
        """Whether what the code need not wait for can be done later all the same."""
        if isinstance(ask, ask_for.Conclude):
            # Nobody else commits while its transaction is open.
            return ask.transaction is not self._open
        return not isinstance(ask, ask_for.Patch)

    def _perform(self, ask: Ask) -> Outcome:
        """Do what the code need not wait for."""
        if isinstance(ask, ask_for.Conclude):
            return self._on_conclude(ask)
        try:
            if isinstance(ask, ask_for.SessionAsk):
                ask.check_size(self.payload_max)
                self.dialogues.perform(ask, self._transition)
        except (FlowError, UsageError) as error:
            self._record(ask, failure=values.describe_error(error))
            return Outcome(error=error)
        self._record(ask)
        return Outcome(True) if isinstance(ask, ask_for.Patch) else NOTHING

    def _on_conclude(self, ask: ask_for.Conclude) -> Outcome:
        results, transition = encode_results(ask.transaction), self._transition
        refusal = self.refusals.pop(ask.position, None) if ask.is_kept else None
        if ask.transaction is self._open:
            self._open, transition.concludes = None, ask.is_kept and refusal is None
            transition.block = ask.position if transition.concludes else None
        # A sleep that follows begins now, and not when the block did.
        self._move_time(self._wall_ms)
        failure = None if refusal is None else values.describe_error(refusal.error)
        self._record(ask, results, failure)
        return NOTHING if failure is None else Outcome(error=values.make_error(failure))

    def withdraw(self, ask: Ask) -> None:
        """The code does not wait for something any more."""
        if isinstance(ask, ask_for.Step):
            self._transition.cancels.append(ask.position)
            self._transition.runs = [it for it in self._transition.runs if it is not ask]

    def _go_on(self, code: Code) -> None:
        """Give the code what is there for it, one thing at a time, until it waits for the world.

        Code that never does is cut short: it goes on when what it did so far is durable.
        """
        while code.end is None:
            self._begin_fresh(code)
            if self._is_too_long():
                return
            if self._is_full:
                self._transition.is_cut = True
                return
            if not self._give_something(code):
                return
        self._on_end(code.end)

    def _begin_fresh(self, code: Code) -> None:
        """Have the functions run that the code has just begun to wait for."""
        fresh, self._fresh = self._fresh, []
        asked = [waiting.asked_at(code, position) for position in fresh]
        self._transition.runs += [it for it in asked if isinstance(it, ask_for.Step)]

    def _give_something(self, code: Code) -> bool:
        """Answer one thing the code waits for; False if nothing can be."""
        for ask in waiting.asked_by(code):
            if isinstance(ask, ask_for.Statement):
                self._want(ask)
            elif self._open is None and self._try(ask):
                return True
        return False

    def _want(self, statement: ask_for.Statement) -> None:
        """Have a statement run, unless another transaction is open: then after that."""
        if self._statement is None and self._open in (None, statement.transaction):
            self._open = statement.transaction
            self._statement = self._transition.statement = statement

    def _try(self, ask: Ask) -> bool:
        """Answer something the code waits for, if that is possible now."""
        if ask.is_immediate:
            # The code had been cut short before it.
            assert self.code is not None
            self.code.resume(ask.position, self._perform(ask))
            return True
        found = self.dialogues.find(ask, self._transition)
        if isinstance(found, Silence):
            self._conclude_error(ask, found.error, found.encode())
        elif found is not None:
            self._conclude_read(ask, found)
        elif isinstance(ask, ask_for.Sleep) and ask.until_ms <= self._wall_ms:
            self._conclude(ask, None, NOTHING)
        elif ask.deadline_ms is not None and ask.deadline_ms <= self._wall_ms:
            self._conclude_error(ask, FlowTimeout(f"{ask.label} took too long"))
        else:
            return False
        return True

    # What came of something.

    def _conclude_read(self, ask: Ask, encoded: bytes) -> None:
        """Give the code what came from elsewhere, if it is of the kind it wants."""
        try:
            outcome = Outcome(ask.read(encoded))
        except Exception as problem:
            text = f"{ask.label} got something else than it wants: {problem}"
            self._conclude_error(ask, FlowError(text))
        else:
            self._conclude(ask, encoded, outcome)

    def _conclude_error(self, ask: Ask, error: BaseException, value: bytes | None = None) -> None:
        """Give the code an error, made of what is written down of it."""
        failure = values.describe_error(error)
        made = values.make_error(failure)
        made.__cause__ = error
        self._conclude(ask, value, Outcome(error=made), failure)

    def _conclude(
        self,
        ask: Ask,
        value: bytes | None,
        outcome: Outcome,
        failure: values.Failure | None = None,
    ) -> None:
        """Write down what came of something the code waited for, and go on with it."""
        assert self.code is not None
        self._move_time(self._wall_ms)
        self._record(ask, value, failure)
        self.code.resume(ask.position, outcome)

    def _record(
        self, ask: Ask, value: bytes | None = None, failure: values.Failure | None = None
    ) -> None:
        record = make_record(ask, self.now_ms, self.dialogues.sessions, value, failure)
        self._transition.records.append(record)
        self.steps += 1
        if value is not None:
            self._bytes += len(value)
