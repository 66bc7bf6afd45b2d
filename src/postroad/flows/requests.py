"""The things code can ask for, one class each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from postroad.core.errors import UsageError
from postroad.durable.config import Retry

from . import values
from .asks import Ask
from .records import Kind
from .session import PeerInfo, SessionEnd

if TYPE_CHECKING:
    from .transactions import FlowTransaction


class SessionAsk(Ask):
    """Something about sessions."""

    __slots__ = ("ends",)

    def __init__(
        self, ends: Sequence[SessionEnd], digest: bytes = b"", deadline_ms: int | None = None
    ) -> None:
        super().__init__(", ".join([end.peer for end in ends]), digest, deadline_ms)
        self.ends = ends

    @property
    def sessions(self) -> tuple[int, ...]:
        return tuple([end.number for end in self.ends])

    def check_size(self, payload_max: int) -> None:
        """Raise UsageError if something does not fit into a message of that size."""


class Open(SessionAsk):
    """Have the other end begin, before it is sent anything."""

    __slots__ = ()
    kind = Kind.OPEN
    is_immediate = True


class Send(SessionAsk):
    """Send something to the other ends of sessions."""

    __slots__ = ("payloads",)
    kind = Kind.SEND
    is_immediate = True

    def __init__(
        self, ends: Sequence[SessionEnd], sent: tuple[Any, ...], payloads: Sequence[bytes]
    ) -> None:
        super().__init__(ends, values.digest_arguments(sent, {}))
        self.payloads = payloads

    def check_size(self, payload_max: int) -> None:
        for end, payload in zip(self.ends, self.payloads, strict=True):
            if len(payload) > payload_max:
                raise UsageError(
                    f"what is sent to {end.peer} takes {len(payload)} bytes, and {payload_max} is "
                    "the most that fits into a message"
                )


class Close(SessionAsk):
    """Say that nothing more will be said."""

    __slots__ = ()
    kind = Kind.CLOSE
    is_immediate = True


class Receive(SessionAsk):
    """Wait for one message of each of some sessions."""

    __slots__ = ("is_one", "type")
    kind = Kind.RECEIVE

    def __init__(
        self,
        ends: Sequence[SessionEnd],
        type: Any,
        deadline_ms: int | None = None,
        *,
        is_one: bool = True,
    ) -> None:
        super().__init__(ends, b"", deadline_ms)
        self.type = type
        self.is_one = is_one

    def read(self, value: bytes | None) -> Any:
        assert value is not None
        if self.is_one:
            return values.decode(value, self.type)
        return [values.decode(it, self.type) for it in values.decode(value, list[bytes])]


class Info(SessionAsk):
    """Wait until it is known which flow is at the other end."""

    __slots__ = ()
    kind = Kind.INFO

    def read(self, value: bytes | None) -> Any:
        assert value is not None
        return values.decode(value, PeerInfo)


class Sleep(Ask):
    """Wait until a certain time."""

    __slots__ = ("until_ms",)
    kind = Kind.SLEEP

    def __init__(self, seconds: float, until_ms: int) -> None:
        super().__init__(f"{seconds:g} s")
        self.until_ms = until_ms


class Signal(Ask):
    """Wait for a signal."""

    __slots__ = ("type",)
    kind = Kind.SIGNAL

    def __init__(self, name: str, type: Any, deadline_ms: int | None = None) -> None:
        super().__init__(name, b"", deadline_ms)
        self.type = type

    def read(self, value: bytes | None) -> Any:
        assert value is not None
        return values.decode(value, self.type)


class Patch(Ask):
    """Remember that the code is of after a change."""

    __slots__ = ()
    kind = Kind.PATCH
    is_immediate = True


class Step(Ask):
    """Run a function."""

    __slots__ = ("args", "function", "kwargs", "retry", "timeout_s", "type")
    kind = Kind.STEP
    is_work = True

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        name: str,
        retry: Retry | None,
        timeout_s: float | None,
    ) -> None:
        super().__init__(name, values.digest_arguments(args, kwargs))
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.retry = retry
        self.timeout_s = timeout_s
        self.type = values.result_type(function)

    def read(self, value: bytes | None) -> Any:
        assert value is not None
        return values.decode(value, self.type)


class Statement(Ask):
    """Run something in the open transaction; recorded when that ends."""

    __slots__ = ("args", "kwargs", "method", "transaction")
    kind = Kind.STATEMENT
    is_work = True

    def __init__(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = args[0]
        name = first if isinstance(first, str) else getattr(first, "__qualname__", repr(first))
        told = args if isinstance(first, str) else args[1:]
        super().__init__(name, values.digest(name.encode(), values.digest_arguments(told, kwargs)))
        self.method = method
        self.args = args
        self.kwargs = kwargs
        # Set by the transaction.
        self.transaction: FlowTransaction


class Conclude(Ask):
    """End a transaction: keep what it did, or undo it."""

    __slots__ = ("is_kept", "transaction")
    kind = Kind.TRANSACTION
    is_immediate = True

    def __init__(self, transaction: FlowTransaction, *, is_kept: bool) -> None:
        done = values.digest(*[it.digest for it in transaction.results])
        super().__init__("kept" if is_kept else "undone", done)
        self.transaction = transaction
        self.is_kept = is_kept
        self.position = transaction.position
