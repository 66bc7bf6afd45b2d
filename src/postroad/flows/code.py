"""Runs the code of a flow, one branch at a time, until all of them wait.

No event loop has a part in it: given the same outcomes in the same order, the code does the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from postroad.core.errors import UsageError

from .asks import Answer, Ask, Fork, Outcome
from .errors import Nondeterminism
from .records import Position

RUNNING: ContextVar[object | None] = ContextVar("postroad_flow_code", default=None)
"""The identity of the code of a flow, where that runs: not in its steps, nor in its answers."""

# Code that wants to wait on its way out is told as often as this that nobody is there.
_CLOSED_AT_MOST = 16
_EXCLUSIVE = (
    "inside a transaction only its own statements can be waited for: others wait for its end"
)


class Branch:
    """One line of the code."""

    __slots__ = (
        "asked",
        "context",
        "coroutine",
        "index",
        "join",
        "position",
        "scope",
        "steps",
        "transaction",
    )

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        position: Position,
        scope: object | None,
        context: Context,
        join: Join | None = None,
        index: int = 0,
    ) -> None:
        self.coroutine = coroutine
        # Its own from its beginning to its end: what it sets holds until then, and for nobody else.
        self.context = context
        self.position = position
        self.scope = scope
        # Whom to tell when it has ended, and as which one.
        self.join = join
        self.index = index
        self.steps = 0
        # What it waits for.
        self.asked: Ask | Join | None = None
        # The block it is in.
        self.transaction: object | None = None

    def next_position(self) -> Position:
        """The position of its next step."""
        position = (*self.position, self.steps)
        self.steps += 1
        return position


class Join:
    """Where branches that were started together meet again."""

    __slots__ = ("branches", "fork", "left", "parent", "results")

    def __init__(self, parent: Branch, fork: Fork) -> None:
        self.parent = parent
        self.fork = fork
        self.branches: list[Branch] = []
        self.results: list[Any] = [None] * len(fork.coroutines)
        self.left = len(fork.coroutines)

    def on_end(self, index: int, outcome: Outcome) -> Outcome | None:
        """One of them has ended; what the parent gets, if it need not wait for more."""
        fork = self.fork
        self.left -= 1
        if outcome.error is not None and not fork.keeps_errors:
            return Outcome(error=outcome.error)
        self.results[index] = outcome.value if outcome.error is None else outcome.error
        if fork.names is not None:
            return Outcome((fork.names[index], self.results[index]))
        if self.left:
            return None
        return Outcome(self.results[0] if fork.scope is not None else self.results)


class Code:
    """The code of one flow, and where it is.

    Args:
        coroutine: the code.
        answer: answers what is asked for.
        withdraw: told that nobody waits for something any more.
    """

    __slots__ = ("_answer", "_ready", "_withdraw", "current", "end", "identity", "root", "waiting")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        scope: object | None,
        answer: Answer,
        withdraw: Callable[[Ask], None],
    ) -> None:
        self.root = Branch(coroutine, (), scope, copy_context())
        # Not the code itself, which would keep itself alive by its context.
        self.identity = object()
        self.root.context.run(RUNNING.set, self.identity)
        self.current = self.root
        self.waiting: dict[Position, Branch] = {}
        # What came of it all.
        self.end: Outcome | None = None
        self._answer = answer
        self._withdraw = withdraw
        self._ready: deque[tuple[Branch, Outcome]] = deque()

    def start(self) -> None:
        """Run until everything waits, or all is over."""
        self._ready.append((self.root, Outcome()))
        self._run()

    def resume(self, position: Position, outcome: Outcome) -> None:
        """Give a branch what it waits for, and run until everything waits again."""
        branch = self.waiting.pop(position)
        self._ready.append((branch, outcome))
        self._run()

    def _run(self) -> None:
        ready = self._ready
        while ready:
            branch, outcome = ready.popleft()
            # Another branch may have ended it meanwhile.
            if branch.steps >= 0:
                self._advance(branch, outcome)

    def _advance(self, branch: Branch, outcome: Outcome | None) -> None:
        """Run one branch until it waits."""
        coroutine, run = branch.coroutine, branch.context.run
        self.current = branch
        branch.asked = None
        while outcome is not None:
            try:
                if outcome.error is None:
                    asked = run(coroutine.send, outcome.value)
                else:
                    asked = run(coroutine.throw, outcome.error)
            except StopIteration as stop:
                self._on_end(branch, Outcome(stop.value))
                return
            except BaseException as error:
                self._on_end(branch, Outcome(error=error))
                return
            outcome = self._on_asked(branch, asked)

    def _on_asked(self, branch: Branch, asked: object) -> Outcome | None:
        if branch.transaction is not getattr(asked, "transaction", None):
            return Outcome(error=UsageError(_EXCLUSIVE))
        if isinstance(asked, Ask):
            if not asked.position:
                asked.position = branch.next_position()
            try:
                outcome = self._answer(asked)
            except Exception as error:
                return Outcome(error=error)
            if outcome is None:
                branch.asked = asked
                self.waiting[asked.position] = branch
            return outcome
        if isinstance(asked, Fork):
            return self._fork(branch, asked)
        return Outcome(error=Nondeterminism(_explain(asked)))

    def _fork(self, branch: Branch, fork: Fork) -> Outcome | None:
        position = branch.next_position()
        if not fork.coroutines:
            if fork.names is not None:
                return Outcome(error=UsageError("select() needs something to wait for"))
            return Outcome([])
        join = Join(branch, fork)
        branch.asked = join
        scope = branch.scope if fork.scope is None else fork.scope
        for index, coroutine in enumerate(fork.coroutines):
            # A subflow is the only branch, so its position needs no number.
            place = position if fork.scope is not None else (*position, index)
            child = Branch(coroutine, place, scope, branch.context.copy(), join, index)
            join.branches.append(child)
            self._ready.append((child, Outcome()))
        return None

    def _on_end(self, branch: Branch, outcome: Outcome) -> None:
        branch.steps = -1
        join = branch.join
        if join is None:
            self.end = outcome
            return
        control = outcome.error is not None and not isinstance(outcome.error, Exception)
        result = outcome if control else join.on_end(branch.index, outcome)
        if result is not None:
            for other in join.branches:
                self._drop(other)
            self._ready.append((join.parent, result))

    def _drop(self, branch: Branch) -> None:
        """End a branch that nobody waits for."""
        for each in _innermost_first(branch):
            each.steps = -1
            if isinstance(each.asked, Ask):
                del self.waiting[each.asked.position]
                self._withdraw(each.asked)
            each.context.run(close_quietly, each.coroutine)

    def close(self) -> None:
        """Put the code away; it may go on later, from the beginning."""
        self._ready.clear()
        self.waiting.clear()
        for branch in _innermost_first(self.root):
            branch.steps = -1
            branch.context.run(close_quietly, branch.coroutine)


def _innermost_first(branch: Branch) -> list[Branch]:
    """A branch and all that it waits for, as far as they have not ended."""
    found: list[Branch] = []
    left = [branch]
    while left:
        each = left.pop()
        if each.steps >= 0:
            found.append(each)
            if isinstance(each.asked, Join):
                left += each.asked.branches
    return found[::-1]


def close_quietly(coroutine: Coroutine[Any, Any, Any]) -> None:
    """End a coroutine; what it does on its way out does not matter."""
    for _ in range(_CLOSED_AT_MOST):
        try:
            coroutine.close()
        except BaseException as error:
            # It wanted to wait for something, or raised: nobody is there to care.
            del error
        else:
            return


def _explain(asked: object) -> str:
    waited = type(asked).__name__ if asked is not None else "the event loop"
    return (
        f"the flow waited for {waited}, which is not recorded: use flow.sleep, flow.gather and "
        "flow.select instead of those of asyncio, and do everything else inside flow.step"
    )
