"""What goes into the machine of a flow, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from .asks import Ask
from .messages import Message
from .records import Position, Record
from .session import Kept

Receipt: TypeAlias = object
"""Stands for an inbox row that is done with when what follows from it is committed."""


class Admitted(msgspec.Struct, frozen=True):
    """It is new. A responder comes with what was said to it."""

    messages: list[Message] = []
    receipt: Receipt | None = None


class Began(msgspec.Struct, frozen=True):
    """There is room for it now, or code that knows it."""


class Loaded(msgspec.Struct, frozen=True):
    """It was read from the store, to go on from there."""


class Heard(msgspec.Struct, frozen=True):
    """The other end of a session said something."""

    number: int
    messages: list[Message]
    receipt: Receipt | None = None
    peer: str = ""
    """Who said it; nobody else may."""


class Signalled(msgspec.Struct, frozen=True):
    """Somebody sent a signal."""

    name: str
    payload: bytes


class StepDone(msgspec.Struct, frozen=True):
    """A function has returned."""

    position: Position
    value: Any


class StepRaised(msgspec.Struct, frozen=True):
    """A function has raised, and is not tried again."""

    position: Position
    error: BaseException


class StatementDone(msgspec.Struct, frozen=True):
    """A statement of the open transaction has ended."""

    position: Position
    value: Any = None
    error: BaseException | None = None


class Woke(msgspec.Struct, frozen=True):
    """The time it waited for may have come."""


class Survived(msgspec.Struct, frozen=True):
    """The process goes on, although this flow was taken for what had ended it before."""


class Retried(msgspec.Struct, frozen=True):
    """The pause after an error is over, or an operator wants it tried again."""


class Paused(msgspec.Struct, frozen=True):
    """An operator wants it to rest."""


class Resumed(msgspec.Struct, frozen=True):
    """An operator wants it to go on."""


class Killed(msgspec.Struct, frozen=True):
    """An operator wants it to end."""

    reason: str


Event: TypeAlias = (
    Admitted
    | Began
    | Loaded
    | Heard
    | Signalled
    | StepDone
    | StepRaised
    | StatementDone
    | Woke
    | Survived
    | Retried
    | Paused
    | Resumed
    | Killed
)


class KeptSignal(msgspec.Struct, gc=False):
    """A signal that the code has not asked for."""

    name: str
    payload: bytes
    id: int = 0
    """Its number in the store; 0 if it is not there."""


class Refusal(NamedTuple):
    """Why the store did not take what a step or block did, and how often."""

    error: Exception
    failures: int


class Transition:
    """What an event changes. All of it is one commit; then the rest is done.

    Attributes:
        is_new: whether the flow is not in the store yet.
        first: number of the first record.
        records: steps that were done.
        forgets_steps: whether all earlier steps go, with what was said in sessions.
        forgets_mail: whether everything goes that was said to the flow and not read.
        keeps: what came and was not read, by session; those that were read since have no id.
        signals: signals that came and were not read.
        takes: ids of what was kept and has been read now.
        says: messages by session.
        receipts: inbox rows that are done with.
        is_head_changed: whether the head must be written.
        runs: functions to run, once the commit is durable.
        statement: what to run next in the open transaction.
        concludes: whether the open transaction ends, and is kept; None if it does not end.
        block: where the code has that transaction, if it is kept.
        is_step_kept: whether the step that is done was waited for, so that what it did counts.
        cancels: positions of functions that nobody waits for any more.
        is_over: whether the flow has ended.
        is_cut: whether the flow could do more, and goes on when this is durable.
        is_parked: whether the flow waits for an operator from now on.
        refusals: why signals were dropped that the code had wanted.
        failed: the step that failed and is not recorded, as people see it.
    """

    __slots__ = (
        "block",
        "cancels",
        "concludes",
        "failed",
        "first",
        "forgets_mail",
        "forgets_steps",
        "is_cut",
        "is_head_changed",
        "is_new",
        "is_over",
        "is_parked",
        "is_step_kept",
        "keeps",
        "receipts",
        "records",
        "refusals",
        "runs",
        "says",
        "signals",
        "statement",
        "takes",
    )

    def __init__(self, first: int) -> None:
        self.is_new = False
        self.first = first
        self.records: list[Record] = []
        self.forgets_steps = False
        self.forgets_mail = False
        self.keeps: list[tuple[int, Kept]] = []
        self.signals: list[KeptSignal] = []
        self.takes: list[int] = []
        self.says: dict[int, list[Message]] = {}
        self.receipts: list[Receipt] = []
        self.is_head_changed = False
        self.runs: list[Ask] = []
        self.statement: Ask | None = None
        self.concludes: bool | None = None
        self.block: Position | None = None
        self.is_step_kept = False
        self.cancels: list[Position] = []
        self.is_over = False
        self.is_cut = False
        self.is_parked = False
        self.failed = ""
        self.refusals: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (
            self.records
            or self.keeps
            or self.signals
            or self.takes
            or self.says
            or self.receipts
            or self.is_head_changed
            or self.is_new
            or self.forgets_steps
        )
