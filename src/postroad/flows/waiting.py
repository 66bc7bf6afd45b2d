"""What the code of a flow waits for, all of it together. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from . import requests as ask_for
from .asks import Ask
from .code import Code
from .errors import WrongSignal
from .records import Position
from .values import problem_of

_LABELS_MAX = 5


def asked_by(code: Code) -> Iterator[Ask]:
    """Everything the code waits for, in the order it was asked for."""
    for branch in code.waiting.values():
        if isinstance(branch.asked, Ask):
            yield branch.asked


def asked_at(code: Code | None, position: Position) -> Ask | None:
    """What the code waits for at a place."""
    branch = None if code is None else code.waiting.get(position)
    return branch.asked if branch is not None and isinstance(branch.asked, Ask) else None


def is_at_work(code: Code) -> bool:
    """Whether it waits for something that only this process does."""
    return any(ask.is_work for ask in asked_by(code))


def wants_signal(code: Code | None, name: str, payload: bytes) -> bool:
    """Whether it waits for a signal of that name; raises WrongSignal if for another value."""
    asks = [] if code is None else asked_by(code)
    wanted = [it for it in asks if isinstance(it, ask_for.Signal) and it.name == name]
    problems = [problem_of(payload, it.type) for it in wanted]
    if wanted and None not in problems:
        raise WrongSignal(f"signal {name!r} cannot have this value: {problems[0]}")
    return bool(wanted)


def find_due_ms(code: Code) -> int | None:
    """When it must be looked at, if nothing happens before."""
    earliest_ms: int | None = None
    for ask in asked_by(code):
        due_ms = ask.until_ms if isinstance(ask, ask_for.Sleep) else ask.deadline_ms
        if due_ms is not None and (earliest_ms is None or due_ms < earliest_ms):
            earliest_ms = due_ms
    return earliest_ms


def describe(code: Code) -> str:
    """Where the code is, for people."""
    if code.end is not None:
        error = code.end.error
        return "the code has ended" + (f": {error!r}" if error is not None else "")
    labels = [it.label for it in asked_by(code)]
    return f"the code waits for {', '.join(labels[:_LABELS_MAX]) or 'nothing'}"
