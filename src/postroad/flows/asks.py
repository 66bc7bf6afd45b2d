"""What the code of a flow waits for. Awaiting one hands it to whoever runs the code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from .records import CommandKind, Position, command_label


class FlowCommand:
    """Something that is done for the code and recorded.

    Attributes:
        is_immediate: whether the code goes on at once; otherwise it waits.
        is_work: whether only this process can do it, so that it must be begun again after a crash.
        deadline_ms: when the waiting ends with FlowTimeoutError.
    """

    __slots__ = ("deadline_ms", "digest", "name", "position")

    kind: CommandKind
    is_immediate = False
    is_local_work = False

    def __init__(self, name: str, digest: bytes = b"", deadline_ms: int | None = None) -> None:
        self.name = name
        self.digest = digest
        self.deadline_ms = deadline_ms
        # Set when the code waits for it, unless it has a place of its own.
        self.position: Position = ()

    def __await__(self) -> Generator[FlowCommand, Any, Any]:
        return (yield self)

    @property
    def sessions(self) -> tuple[int, ...]:
        """Numbers of the sessions it is about."""
        return ()

    def decode_result(self, value: bytes | None) -> Any:
        """What the code gets, from what was recorded."""
        return None

    @property
    def label(self) -> str:
        """How it is shown."""
        return command_label(self.position, self.kind, self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label}>"


class ContinueAsNew(BaseException):
    """Raised by code that wants to begin anew, with other arguments and no history."""

    def __init__(self, arguments: bytes) -> None:
        super().__init__()
        self.arguments = arguments


class ParallelBranches:
    """Branches that run at the same time.

    Attributes:
        names: of the branches; with names it ends when the first of them does.
        returns_errors: whether errors are results like others.
        scope: the subflow they are; None in the flow they are started by.
    """

    __slots__ = ("coroutines", "names", "returns_errors", "scope")

    def __init__(
        self,
        coroutines: Sequence[Coroutine[Any, Any, Any]],
        names: Sequence[str] | None = None,
        *,
        returns_errors: bool = False,
        scope: object | None = None,
    ) -> None:
        self.coroutines = coroutines
        self.names = names
        self.returns_errors = returns_errors
        self.scope = scope

    def __await__(self) -> Generator[ParallelBranches, Any, Any]:
        return (yield self)


class CommandResult:
    """What came of an ask: a value, or an error."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


EMPTY_RESULT = CommandResult()

CommandHandler = Callable[[FlowCommand], CommandResult | None]
"""Answers an ask at once, or says None: the code waits."""
