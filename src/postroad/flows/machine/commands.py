"""Commands: what flow code requests from the engine, and the results it is given."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from postroad.core import RetryPolicy
from postroad.core.errors import UsageError
from postroad.flows.machine import values
from postroad.flows.machine.history import CommandKind, Position, command_label
from postroad.flows.sessions.session import PeerFlowInfo, SessionEndpoint


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


class SessionCommand(FlowCommand):
    """Something about sessions."""

    __slots__ = ("endpoints",)

    def __init__(
        self,
        endpoints: Sequence[SessionEndpoint],
        digest: bytes = b"",
        deadline_ms: int | None = None,
    ) -> None:
        super().__init__(", ".join([endpoint.peer for endpoint in endpoints]), digest, deadline_ms)
        self.endpoints = endpoints

    @property
    def sessions(self) -> tuple[int, ...]:
        return tuple([endpoint.number for endpoint in self.endpoints])

    def check_size(self, payload_max: int) -> None:
        """Raise UsageError if something does not fit into a message of that size."""


class OpenSession(SessionCommand):
    """Have the other end begin, before it is sent anything."""

    __slots__ = ()
    kind = CommandKind.OPEN
    is_immediate = True


class SendData(SessionCommand):
    """Send something to the other ends of sessions."""

    __slots__ = ("payloads",)
    kind = CommandKind.SEND
    is_immediate = True

    def __init__(
        self, endpoints: Sequence[SessionEndpoint], sent: tuple[Any, ...], payloads: Sequence[bytes]
    ) -> None:
        super().__init__(endpoints, values.digest_arguments(sent, {}))
        self.payloads = payloads

    def check_size(self, payload_max: int) -> None:
        for endpoint, payload in zip(self.endpoints, self.payloads, strict=True):
            if len(payload) > payload_max:
                raise UsageError(
                    f"cannot send {len(payload)} bytes to {endpoint.peer}: the limit is "
                    f"{payload_max}; raise message_bytes_max, or send a reference"
                )


class CloseSession(SessionCommand):
    """Say that nothing more will be said."""

    __slots__ = ()
    kind = CommandKind.CLOSE
    is_immediate = True


class ReceiveData(SessionCommand):
    """Wait for one message of each of some sessions."""

    __slots__ = ("is_one", "type")
    kind = CommandKind.RECEIVE

    def __init__(
        self,
        endpoints: Sequence[SessionEndpoint],
        type: Any,
        deadline_ms: int | None = None,
        *,
        is_one: bool = True,
    ) -> None:
        super().__init__(endpoints, b"", deadline_ms)
        self.type = type
        self.is_one = is_one

    def decode_result(self, value: bytes | None) -> Any:
        assert value is not None
        if self.is_one:
            return values.decode_value(value, self.type)
        return [
            values.decode_value(payload, self.type)
            for payload in values.decode_value(value, list[bytes])
        ]


class GetPeerInfo(SessionCommand):
    """Wait until it is known which flow is at the other end."""

    __slots__ = ()
    kind = CommandKind.INFO

    def decode_result(self, value: bytes | None) -> Any:
        assert value is not None
        return values.decode_value(value, PeerFlowInfo)


class SleepUntil(FlowCommand):
    """Wait until a certain time."""

    __slots__ = ("until_ms",)
    kind = CommandKind.SLEEP

    def __init__(self, seconds: float, until_ms: int) -> None:
        super().__init__(f"{seconds:g} s")
        self.until_ms = until_ms


class WaitForSignal(FlowCommand):
    """Wait for a signal."""

    __slots__ = ("type",)
    kind = CommandKind.SIGNAL

    def __init__(self, name: str, type: Any, deadline_ms: int | None = None) -> None:
        super().__init__(name, b"", deadline_ms)
        self.type = type

    def decode_result(self, value: bytes | None) -> Any:
        assert value is not None
        return values.decode_value(value, self.type)


class RecordPatch(FlowCommand):
    """Remember that the code is of after a change."""

    __slots__ = ()
    kind = CommandKind.PATCH
    is_immediate = True


class RunStep(FlowCommand):
    """Run a function."""

    __slots__ = ("args", "function", "is_read", "kwargs", "retry", "timeout_s", "type")
    kind = CommandKind.STEP
    is_local_work = True

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        name: str,
        retry: RetryPolicy | None,
        timeout_s: float | None,
        is_read: bool = False,
    ) -> None:
        super().__init__(name, values.digest_arguments(args, kwargs))
        # Whether it only reads, so that it may be recorded with what follows from it.
        self.is_read = is_read
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.retry = retry
        self.timeout_s = timeout_s
        self.type = values.result_type(function)

    def decode_result(self, value: bytes | None) -> Any:
        assert value is not None
        return values.decode_value(value, self.type)
