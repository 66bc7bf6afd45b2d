"""Commands: what flow code requests, and the results it is given. Each is one history entry."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

import msgspec

from postroad.core import RetryPolicy
from postroad.core.errors import ConfigError, UsageError
from postroad.core.limits import check_positive
from postroad.flows.machine import values
from postroad.flows.machine.history import CommandKind, Position, command_label
from postroad.flows.sessions.session import PeerFlowInfo, SessionEndpoint


class FlowCommand:
    """Something that flow code requests, whose result is recorded.

    Attributes:
        is_immediate: whether the code continues at once; otherwise it waits for the result.
        is_local_work: whether only this process does it, so that a crash makes it start again.
        deadline_ms: when the code gets a FlowTimeoutError instead of a result.
    """

    __slots__ = ("deadline_ms", "digest", "name", "position")

    kind: CommandKind
    is_immediate = False
    is_local_work = False

    def __init__(self, name: str, digest: bytes = b"", deadline_ms: int | None = None) -> None:
        self.name = name
        self.digest = digest
        self.deadline_ms = deadline_ms
        # Set when the code awaits it, unless it was set before.
        self.position: Position = ()

    def __await__(self) -> Generator[FlowCommand, Any, Any]:
        return (yield self)

    @property
    def sessions(self) -> tuple[int, ...]:
        """Numbers of its sessions."""
        return ()

    def decode_result(self, value: bytes | None) -> Any:
        """Return what the code gets, from the recorded value."""
        return None

    @property
    def label(self) -> str:
        """Position and kind, for operators."""
        return command_label(self.position, self.kind, self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label}>"


class ContinueAsNew(BaseException):
    """Raised by `ctx.continue_as_new`: the flow restarts with these arguments and no history."""

    def __init__(self, arguments: bytes) -> None:
        super().__init__()
        self.arguments = arguments


class ParallelBranches:
    """Coroutines that run at the same time: `ctx.gather`, `ctx.select` or a subflow.

    Attributes:
        names: of the branches; with names the first branch to end gives the result.
        returns_errors: whether errors are returned as results.
        scope: the definition of a subflow; None for branches of the same flow.
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
    """The value or the error of a command."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


EMPTY_RESULT = CommandResult()

CommandHandler = Callable[[FlowCommand], CommandResult | None]
"""Returns the result of a command, or None if the code has to wait for it."""


class SessionCommand(FlowCommand):
    """A command on one or more sessions."""

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
        """Raise UsageError if a payload is larger than `payload_max`."""


class OpenSession(SessionCommand):
    """Start the responder before anything is sent to it."""

    __slots__ = ()
    kind = CommandKind.OPEN
    is_immediate = True


class SendData(SessionCommand):
    """Send a value in each of some sessions."""

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
    """Close sessions."""

    __slots__ = ()
    kind = CommandKind.CLOSE
    is_immediate = True


class ReceiveData(SessionCommand):
    """Wait for one value in each of some sessions."""

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
    """Wait for the name and version of the flow at the other end."""

    __slots__ = ()
    kind = CommandKind.INFO

    def decode_result(self, value: bytes | None) -> Any:
        assert value is not None
        return values.decode_value(value, PeerFlowInfo)


class SleepUntil(FlowCommand):
    """A durable timer."""

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
    """Record that the code is newer than a change, for `ctx.patched`."""

    __slots__ = ()
    kind = CommandKind.PATCH
    is_immediate = True


class StepLimit(msgspec.Struct, frozen=True):
    """A limit that steps of all flows of a node share, such as that of a service they call.

        stripe = StepLimit("stripe", concurrency=4, per_second=25)
        await ctx.step.with_options(limit=stripe)(charge, order)

    A step waits for its turn before each attempt, without a thread or a transaction.
    """

    name: str
    """Steps with limits of one name share it."""
    concurrency: int | None = None
    """Attempts that may run at the same time."""
    per_second: float | None = None
    """Attempts that may begin per second."""
    burst: int = 1
    """Attempts that may begin at once after a pause."""

    def __post_init__(self) -> None:
        if self.concurrency is None and self.per_second is None:
            raise ConfigError(f"step limit {self.name!r} needs `concurrency` or `per_second`")
        check_positive(self)


class RunStep(FlowCommand):
    """Call a function and record what it returns.

    Attributes:
        is_read: whether it only reads, so that its entry may join the next commit.
    """

    __slots__ = ("args", "function", "is_read", "kwargs", "limit", "retry", "timeout_s", "type")
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
        limit: StepLimit | None = None,
        is_read: bool = False,
    ) -> None:
        super().__init__(name, values.digest_arguments(args, kwargs))
        self.is_read = is_read
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.retry = retry
        self.timeout_s = timeout_s
        self.limit = limit
        self.type = values.result_type(function)

    def decode_result(self, value: bytes | None) -> Any:
        assert value is not None
        return values.decode_value(value, self.type)
