"""What becomes of a flow as a whole: it ends, is tried again, waits for an operator. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from . import requests as ask_for
from . import values, waiting
from .asks import ContinueAsNew, Outcome
from .code import Code
from .dialogues import Dialogues
from .errors import FlowError, FlowMismatch, FlowTimeout, HistoryFull
from .events import Transition
from .head import Head, Trouble
from .hospital import HAPPENINGS, diagnose, trace, write_up
from .life import Effect, Happening, Status, move
from .log import Diverged
from .records import Kind, Position, Record
from .transactions import FlowTransaction


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much a flow may do."""

    attempts: int = 10
    """How often it is tried again without any progress."""
    pause_ms: Callable[[int], int] = lambda attempts: 1000 * attempts
    """How long to wait after so many attempts."""
    steps: int = 100_000
    """Steps that it may have; then it is parked."""
    bytes: int = 1 << 28
    """Size of what these were given, all together."""


BOUNDS = Bounds()
# What may have failed for a reason that is over when the flow is tried again.
_RUN_AGAIN = (Kind.STEP, Kind.TRANSACTION)


class Lifecycle(ABC):
    """The status of a flow, and what follows when it changes.

    Args:
        head: what is known of the flow.
        dialogues: its sessions.
        records: what it has done before.

    Attributes:
        bounds: how much it may do.
    """

    __slots__ = (
        "_bytes", "_fresh", "_open", "_progress", "_transition", "_wall_ms", "bounds", "code",
        "dialogues", "due_ms", "head", "is_spent", "now_ms", "steps",
    )  # fmt: skip

    def __init__(self, head: Head, dialogues: Dialogues, records: Sequence[Record]) -> None:
        self.head = head
        self.dialogues = dialogues
        self.code: Code | None = None
        # Whether its code has run and was put away.
        self.is_spent = False
        self.steps = len(records)
        self._bytes = sum([len(it.value) for it in records if it.value]) if records else 0
        # Time as the code sees it: that of the last thing it waited for.
        self.now_ms = head.run_ms or head.started_ms
        # When something is due, in this process or another.
        self.due_ms = head.wake_ms or None
        # The transaction whose statements run.
        self._open: FlowTransaction | None = None
        # What the code has just begun to wait for.
        self._fresh: list[Position] = []
        self._wall_ms = self.now_ms
        self._progress = head.progress
        self._transition = Transition(self.steps)
        self.bounds = BOUNDS

    @abstractmethod
    def _run_code(self) -> None:
        """Make the code, and bring it to where its record ends."""

    def observe(self, error: Exception, now_ms: int) -> Transition:
        """Have an operator look at it, for a reason that is not in its code."""
        transition = self._transition = Transition(self.steps)
        self._wall_ms = now_ms
        self._observe(error)
        self._settle()
        return transition

    def _on_woke(self) -> None:
        deadline_ms = self.head.deadline_ms
        if self.head.status is Status.RETRYING:
            if self.due_ms is None or self.due_ms <= self._wall_ms:
                self._move(Happening.RETRY)
        elif self.code is not None and deadline_ms is not None and deadline_ms <= self._wall_ms:
            error = FlowTimeout(f"flow {self.head.name} took too long")
            self._move(Happening.FAIL, self._trouble(error, str(error)))

    def _on_survived(self) -> None:
        """The process did not die of it."""
        if self.head.is_suspect and self.head.status is Status.RUNNING:
            self.head.is_suspect = False
            self._transition.is_head_changed = True

    def _on_too_long(self) -> None:
        """Park it: it has done as much as can be written down of one flow."""
        bounds = self.bounds
        text = (
            f"flow {self.head.name} has done {self.steps} steps, which were given {self._bytes} "
            f"bytes, and may do {bounds.steps} with {bounds.bytes}: let its code begin "
            "anew with flow.continue_as_new(...) from time to time, or allow more with "
            "history_steps_max and history_bytes_max; then try it again"
        )
        self._observe(HistoryFull(text))

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
        happening = HAPPENINGS[diagnose(error, head.attempts, self.bounds.attempts)]
        head.attempts = head.attempts + 1 if happening is Happening.AIL else 0
        self._move(happening, self._trouble(error, trace(error)))

    def _unrecord_failures(self) -> None:
        """A step that failed is run again with its flow, unless the flow could live with that."""
        records = self._transition.records
        while records and records[-1].kind in _RUN_AGAIN and records[-1].failure is not None:
            self._transition.failed = records.pop().label
            self.steps -= 1

    def _observe(self, error: Exception) -> None:
        self._unrecord_failures()
        is_known = isinstance(error, FlowMismatch | HistoryFull)
        detail = str(error) if is_known else trace(error)
        self._move(Happening.OBSERVE, self._trouble(error, detail))

    def _continue(self, wish: ContinueAsNew) -> None:
        head = self.head
        self._move(Happening.CONTINUE)
        head.begin_anew(wish.arguments, self.now_ms)
        head.opened = self.dialogues.opened

    def _trouble(self, error: BaseException, detail: str) -> Trouble:
        return write_up(error, detail, self.head, self.steps, self._wall_ms)

    def _move(self, happening: Happening, trouble: Trouble | None = None) -> None:
        head = self.head
        turn = move(head.status, happening)
        was, head.status = head.status, turn.status
        self._transition.is_head_changed = True
        self._transition.is_parked = turn.status is Status.PARKED
        head.trouble = trouble or head.trouble
        if happening in (Happening.FINISH, Happening.CONTINUE):
            head.trouble = None
            head.come_further()
        elif was in (Status.PARKED, Status.PAUSED):
            head.acquit()
        for effect in turn.effects:
            self._do(effect, was)

    def _do(self, effect: Effect, was: Status) -> None:
        transition, head = self._transition, self.head
        if effect is Effect.RUN_CODE:
            self.dialogues.confirm(transition)
            if head.is_suspect:
                # That it runs is durable before it does: it may be what ends the process.
                head.trials += 1
                self.is_spent = True
            elif was is not Status.RUNNING:
                # One that begins anew does so by being loaded, so that nothing of before is left.
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
            self.steps = self._bytes = transition.first = 0
        elif effect is Effect.TELL_CLIENT:
            head.ended_ms = self._wall_ms
            transition.is_over = True
            self.drop_code()
        else:
            assert effect is Effect.SLEEP
            head.wake_ms = self._wall_ms + self.bounds.pause_ms(head.attempts)

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

    # Where it is now.

    def _settle(self) -> None:
        """Bring the head to where the flow is now."""
        head, transition = self.head, self._transition
        self.due_ms, wake_ms = self._find_due_ms()
        if wake_ms != head.wake_ms or head.progress != self._progress:
            head.wake_ms, self._progress = wake_ms, head.progress
            transition.is_head_changed = True
        is_troubled = head.attempts or head.recoveries or head.trouble is not None
        if transition.records and head.status is Status.RUNNING and is_troubled:
            head.come_further()
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
        if code is None or self._transition.is_cut:
            return None, 0
        # While a block is open, only its statements count.
        due_ms = waiting.find_due_ms(code) if self._open is None else None
        if head.deadline_ms is not None:
            due_ms = head.deadline_ms if due_ms is None else min(due_ms, head.deadline_ms)
        return due_ms, 0 if waiting.is_at_work(code) else due_ms
