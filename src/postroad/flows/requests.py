"""The things code can ask for, one class each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from postroad.core import RetryPolicy
from postroad.core.errors import UsageError

from . import values
from .asks import FlowCommand
from .records import CommandKind
from .session import PeerFlowInfo, SessionEndpoint


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
            values.decode_value(it, self.type) for it in values.decode_value(value, list[bytes])
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
