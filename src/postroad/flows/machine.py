"""The machine of a flow: State x Event -> Transition x State'.

It runs the code of the flow, and says what must be written down and sent for that. It does neither
by itself: no I/O, no clock, no chance. Whoever drives it commits a transition as a whole, and drops
the machine if that fails; it is made again from what is in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from postroad.core.errors import UsageError

from . import requests as ask_for
from . import values, waiting
from .asks import NOTHING, Ask, ContinueAsNew, Outcome
from .code import Code
from .dialogues import Dialogues, Silence
from .errors import FlowError, FlowKilled, FlowMismatch, FlowTimeout
from .events import (
    Admitted,
    Began,
    Event,
    Heard,
    KeptSignal,
    Killed,
    Loaded,
    Paused,
    Resumed,
    Retried,
    Signalled,
    StatementDone,
    StepDone,
    StepRaised,
    Transition,
    Woke,
)
from .head import Head, Trouble
from .hospital import HAPPENINGS, diagnose, trace, write_up
from .life import Effect, Happening, Status, move
from .log import Diverged, Log, outcome_of
from .records import Kind, Position, Record
from .replay import replay
from .session import Kept, SessionEnd
from .transactions import FlowTransaction, encode_results, result_of

_LIFE: dict[type, Happening] = {
    Began: Happening.BEGIN,
    Retried: Happening.RETRY,
    Paused: Happening.PAUSE,
    Resumed: Happening.RESUME,
}


class Machine:
    """One flow.

    Args:
        head: what is known of it.
        make_code: makes its code, which has not begun; raises if nothing fits the head.
        records: what it has done before.
        kept: what was said to it and it has not read, with the numbers of sessions.
        signals: signals that it has not read.
        attempts_max: how often it is tried again without any progress.
        heard_max: messages of a session that may wait for it.
        payload_max: size of the largest thing it may send.
        pause_ms: how long to wait after so many attempts.
        app: the application its code belongs to.
    """

    __slots__ = (
        "_attempts_max", "_fresh", "_log", "_make_code", "_open", "_pause_ms", "_progress",
        "_statement", "_transition", "_wall_ms", "code", "dialogues", "due_ms", "head", "is_spent",
        "now_ms", "payload_max", "steps",
    )  # fmt: skip

    def __init__(
        self,
        head: Head,
        make_code: Callable[[Machine], Code],
        *,
        records: Sequence[Record] = (),
        kept: Iterable[tuple[int, Kept]] = (),
        signals: Iterable[KeptSignal] = (),
        attempts_max: int = 10,
        heard_max: int = 10_000,
        payload_max: int = 1 << 20,
        pause_ms: Callable[[int], int] = lambda attempts: 1000 * attempts,
        app: str = "",
    ) -> None:
        self.head = head
        self.dialogues = Dialogues(head, heard_max, app)
        self.dialogues.recall(records, kept, signals)
        self.code: Code | None = None
        # Whether its code has run and was put away.
        self.is_spent = False
        self.steps = len(records)
        # Time as the code sees it: that of the last thing it waited for.
        self.now_ms = head.run_ms or head.started_ms
        self.payload_max = payload_max
        self._make_code = make_code
        self._log = Log(records)
        # The transaction whose statements run, and the one that does now.
        self._open: FlowTransaction | None = None
        self._statement: ask_for.Statement | None = None
        # When something is due, in this process or another.
        self.due_ms = head.wake_ms or None
        # What the code has just begun to wait for.
        self._fresh: list[Position] = []
        self._attempts_max = attempts_max
        self._pause_ms = pause_ms
        self._wall_ms = self.now_ms
        self._progress = head.progress
        self._transition = Transition(self.steps)

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
            is_wanted = waiting.wants_signal(self.code, event.name)
            self.dialogues.hear_signal(event, transition, is_wanted=is_wanted)
        elif isinstance(event, Admitted):
            self._on_admitted(event)
        elif isinstance(event, Loaded):
            if self.head.status is Status.RUNNING:
                self._run_code()
        elif isinstance(event, Woke):
            self._on_woke()
        elif isinstance(event, Killed):
            error = FlowKilled(event.reason)
            self._move(Happening.KILL, self._trouble(error, "an operator ended it"))
        else:
            self._move(_LIFE[type(event)])
        if self.code is not None:
            self._go_on(self.code)
        self._settle()
        return transition

    def observe(self, error: Exception, now_ms: int) -> Transition:
        """Have an operator look at it, for a reason that is not in its code."""
        transition = self._transition = Transition(self.steps)
        self._wall_ms = now_ms
        self._observe(error)
        self._settle()
        return transition

    def _on_admitted(self, event: Admitted) -> None:
        self._transition.is_new = self._transition.is_head_changed = True
        if event.messages:
            self.dialogues.hear(Heard(0, event.messages, event.receipt), self._transition)
        if self.head.status is Status.RUNNING:
            self.dialogues.confirm(self._transition)
            self._run_code()

    def _on_woke(self) -> None:
        deadline_ms = self.head.deadline_ms
        if self.head.status is Status.RETRYING:
            if self.due_ms is None or self.due_ms <= self._wall_ms:
                self._move(Happening.RETRY)
        elif self.code is not None and deadline_ms is not None and deadline_ms <= self._wall_ms:
            error = FlowTimeout(f"flow {self.head.name} took too long")
            self._move(Happening.FAIL, self._trouble(error, str(error)))

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
            record = self._log.take(ask)
            self._move_time(record.at_ms)
            return outcome_of(ask, record)
        if isinstance(ask, ask_for.Conclude):
            self._on_conclude(ask)
            return NOTHING
        try:
            if isinstance(ask, ask_for.SessionAsk):
                ask.check_size(self.payload_max)
                self.dialogues.perform(ask, self._transition)
        except (FlowError, UsageError) as error:
            self._record(ask, failure=values.describe_error(error))
            return Outcome(error=error)
        self._record(ask)
        return Outcome(True) if isinstance(ask, ask_for.Patch) else NOTHING

    def _on_conclude(self, ask: ask_for.Conclude) -> None:
        if ask.transaction is self._open:
            self._open, self._transition.concludes = None, ask.is_kept
        # A sleep that follows begins now, and not when the block did.
        self._move_time(self._wall_ms)
        self._record(ask, encode_results(ask.transaction))

    def withdraw(self, ask: Ask) -> None:
        """The code does not wait for something any more."""
        if isinstance(ask, ask_for.Step):
            self._transition.cancels.append(ask.position)
            self._transition.runs = [it for it in self._transition.runs if it is not ask]

    def _go_on(self, code: Code) -> None:
        """Give the code what is there for it, one thing at a time, until it waits for the world."""
        while code.end is None:
            if not self._give_something(code):
                return
        self._on_end(code.end)

    def _give_something(self, code: Code) -> bool:
        """Answer one thing the code waits for; False if nothing can be."""
        fresh, self._fresh = self._fresh, []
        asked = [waiting.asked_at(code, position) for position in fresh]
        self._transition.runs += [it for it in asked if isinstance(it, ask_for.Step)]
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
        numbers = ask.sessions
        sessions = self.dialogues.sessions
        record = Record(
            position=ask.position,
            kind=ask.kind,
            name=ask.name,
            digest=ask.digest,
            at_ms=self.now_ms,
            value=value,
            failure=failure,
            sessions=numbers,
            peers=tuple([sessions[it].peer for it in numbers]) if numbers else (),
        )
        self._transition.records.append(record)
        self.steps += 1

    # Ends.

    def _on_end(self, end: Outcome) -> None:
        error = end.error
        if error is None:
            try:
                self.head.result = values.encode(end.value, f"the result of {self.head.name}")
            except Exception as unrecordable:
                self._observe(unrecordable)
            else:
                self._move(Happening.FINISH)
        elif isinstance(error, ContinueAsNew):
            self._continue(error)
        elif isinstance(error, Diverged):
            self._observe(error.mismatch)
        else:
            self._on_error(error)

    def _on_error(self, error: BaseException) -> None:
        head = self.head
        if not isinstance(error, FlowError):
            self._unrecord_failures()
        if self._transition.records:
            head.attempts = 0
        happening = HAPPENINGS[diagnose(error, head.attempts, self._attempts_max)]
        head.attempts = head.attempts + 1 if happening is Happening.AIL else 0
        self._move(happening, self._trouble(error, trace(error)))

    def _unrecord_failures(self) -> None:
        """A step that failed is run again with its flow, unless the flow could live with that."""
        records = self._transition.records
        while records and records[-1].kind is Kind.STEP and records[-1].failure is not None:
            records.pop()
            self.steps -= 1

    def _observe(self, error: Exception) -> None:
        self._unrecord_failures()
        detail = str(error) if isinstance(error, FlowMismatch) else trace(error)
        self._move(Happening.OBSERVE, self._trouble(error, detail))

    def _continue(self, wish: ContinueAsNew) -> None:
        head = self.head
        self._move(Happening.CONTINUE)
        head.arguments = wish.arguments
        head.run += 1
        head.run_ms = self.now_ms
        head.opened = self.dialogues.opened

    def _trouble(self, error: BaseException, detail: str) -> Trouble:
        return write_up(error, detail, self.head, self.steps, self._wall_ms)

    def _move(self, happening: Happening, trouble: Trouble | None = None) -> None:
        head = self.head
        turn = move(head.status, happening)
        was, head.status = head.status, turn.status
        self._transition.is_head_changed = True
        head.trouble = trouble or head.trouble
        if happening in (Happening.FINISH, Happening.CONTINUE):
            head.trouble = None
            head.attempts = head.recoveries = 0
        elif was in (Status.PARKED, Status.PAUSED):
            head.recoveries = 0
        for effect in turn.effects:
            self._do(effect, was)

    def _do(self, effect: Effect, was: Status) -> None:
        transition, head = self._transition, self.head
        if effect is Effect.RUN_CODE:
            self.dialogues.confirm(transition)
            # A flow that begins anew does so by being loaded, so that nothing of before is left.
            if was is not Status.RUNNING:
                self._run_code()
        elif effect is Effect.DROP_CODE:
            self.drop_code()
        elif effect is Effect.END_SESSIONS:
            self.dialogues.close_all(transition)
        elif effect is Effect.FAIL_SESSIONS:
            assert head.trouble is not None
            self.dialogues.fail_all(head.trouble, was, transition)
        elif effect is Effect.FORGET_STEPS:
            transition.forgets_steps = True
            transition.records.clear()
            transition.keeps.clear()
            self.steps = transition.first = 0
        elif effect is Effect.TELL_CLIENT:
            head.ended_ms = self._wall_ms
            transition.is_over = True
            self.drop_code()
        else:
            assert effect is Effect.SLEEP
            head.wake_ms = self._wall_ms + self._pause_ms(head.attempts)

    def drop_code(self) -> None:
        """Put the code away; to go on, the flow must be read again."""
        self.is_spent = True
        code, self.code = self.code, None
        self._fresh.clear()
        self._transition.runs.clear()
        if self._open is not None:
            self._open = None
            self._transition.concludes = False
        if code is not None:
            steps = [it.position for it in waiting.asked_by(code) if isinstance(it, ask_for.Step)]
            self._transition.cancels += steps
            code.close()

    def _settle(self) -> None:
        """Bring the head to where the flow is now."""
        head, transition = self.head, self._transition
        self.due_ms, wake_ms = self._find_due_ms()
        if wake_ms != head.wake_ms or head.progress != self._progress:
            head.wake_ms, self._progress = wake_ms, head.progress
            transition.is_head_changed = True
        is_troubled = head.attempts or head.recoveries or head.trouble is not None
        if transition.records and head.status is Status.RUNNING and is_troubled:
            # It came further.
            head.attempts = head.recoveries = 0
            head.trouble = None
            transition.is_head_changed = True
        self.dialogues.settle(transition)

    def _find_due_ms(self) -> tuple[int | None, int | None]:
        """When it must be looked at if nothing happens before: in this process, and in another."""
        head, code = self.head, self.code
        if head.status is Status.RETRYING:
            return head.wake_ms, head.wake_ms
        if head.status is not Status.RUNNING:
            return None, None
        if code is None:
            return None, 0
        # While a block is open, only its statements count.
        due_ms = waiting.find_due_ms(code) if self._open is None else None
        if head.deadline_ms is not None:
            due_ms = head.deadline_ms if due_ms is None else min(due_ms, head.deadline_ms)
        return due_ms, 0 if waiting.is_at_work(code) else due_ms
