"""The record of a flow: compared with what its code asks for, and the difference explained."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from .asks import Ask, Outcome
from .errors import FlowMismatch
from .records import Kind, Record
from .values import make_error

# So many steps are shown before the one that differs.
_SHOWN_BEFORE = 3


class Diverged(BaseException):
    """The code does not fit its record. Not an Exception, so that no flow can swallow it."""

    def __init__(self, mismatch: FlowMismatch) -> None:
        super().__init__(str(mismatch))
        self.mismatch = mismatch


class Log:
    """The recorded steps of a flow that its code has not come to yet."""

    __slots__ = ("_next", "_records")

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._next = 0

    @property
    def is_over(self) -> bool:
        """Whether the code is where it was."""
        return self._next == len(self._records)

    @property
    def taken(self) -> int:
        """How many of them the code has come to."""
        return self._next

    @property
    def upcoming(self) -> Record:
        """The next step that was recorded."""
        return self._records[self._next]

    def has_next(self, ask: Ask) -> bool:
        """Whether an ask is the next step that was recorded."""
        if self.is_over:
            return False
        record = self.upcoming
        return (record.position, record.kind, record.name) == (ask.position, ask.kind, ask.name)

    def is_put_off(self, ask: Ask) -> bool:
        """Whether something else was recorded before it, because the code was cut short there."""
        if self.has_next(ask):
            return False
        rest = itertools.islice(self._records, self._next, None)
        known = next((it for it in rest if it.position == ask.position), None)
        # At its own place there must be nothing else.
        return known is None or (known.kind, known.name) == (ask.kind, ask.name)

    def take(self, ask: Ask) -> Record:
        """The next step, which must be this one."""
        record = self.upcoming
        differences = list(_compare(ask, record))
        if differences:
            raise self.diverged(f"the code asks for {ask.label}", differences)
        self._next += 1
        return record

    def diverged(self, what: str, differences: Iterable[str] = ()) -> Diverged:
        """The error that says where code and record part, and how."""
        lines = [f"the code of this flow does not fit its record at step {self._next}:"]
        first = max(self._next - _SHOWN_BEFORE, 0)
        before = enumerate(self._records[first : self._next], first)
        lines += [f"    step {number}: {record.label}" for number, record in before]
        lines.append(f"  - step {self._next}: {self.upcoming.label}   (recorded)")
        lines.append(f"  + step {self._next}: {what}")
        lines += [f"    {it}" for it in differences]
        left = len(self._records) - self._next - 1
        if left:
            lines.append(f"    and {left} more recorded after it")
        lines.append("  run the old code again, or keep both ways apart with flow.patched(id)")
        return Diverged(FlowMismatch("\n".join(lines)))


def _compare(ask: Ask, record: Record) -> Iterable[str]:
    if ask.position != record.position:
        yield "another step comes first"
    if ask.kind != record.kind:
        yield f"it was {record.kind}, and is {ask.kind}"
    elif ask.name != record.name:
        yield f"it was about {record.name!r}, and is about {ask.name!r}"
    elif ask.sessions != record.sessions:
        yield f"it was about sessions {record.sessions}, and is about {ask.sessions}"
    elif ask.digest and record.digest and ask.digest != record.digest:
        yield "its arguments are others"


def outcome_of(ask: Ask, record: Record) -> Outcome:
    """What the code gets for an ask that was recorded."""
    if record.failure is not None:
        return Outcome(error=make_error(record.failure))
    if record.value is None or record.kind in (Kind.SEND, Kind.OPEN, Kind.CLOSE, Kind.SLEEP):
        return Outcome(record.kind is Kind.PATCH or None)
    try:
        return Outcome(ask.read(record.value))
    except Exception as error:
        raise Diverged(
            FlowMismatch(f"what step {record.label} was given cannot be read any more: {error}")
        ) from None
