"""Context and sessions of flows whose code is a plain `def`: their methods wait without `await`.

Each method does and records the same as the method of `FlowContext` or `FlowSession` with its
name: code may change from one form to the other while flows of it run.
"""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, NoReturn, ParamSpec, TypeVar, cast, overload

from postroad.core import RetryPolicy
from postroad.core.errors import UsageError
from postroad.flows.context import ChildFlow, FlowContext, FlowSession
from postroad.flows.definition import FlowDefinition
from postroad.flows.greenlets import GreenletCoroutine, require_greenlet, wait_for
from postroad.flows.machine.attributes import AttributeValue
from postroad.flows.machine.commands import ParallelBranches, StepLimit
from postroad.flows.sessions.session import PeerFlowInfo
from postroad.flows.steps import StepOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncFlowSession:
    """A session with a flow at another node, for code that is a plain `def`."""

    __slots__ = ("_session",)

    def __init__(self, session: FlowSession) -> None:
        self._session = session

    @property
    def peer(self) -> str:
        """The node at the other end."""
        return self._session.peer

    def send(self, value: Any) -> None:
        """Send a value; returns at once, and the value arrives exactly once."""
        wait_for(self._session.send(value))

    def receive(self, type: type[T], timeout: float | None = None) -> T:
        """Wait for the next value from the other end; raises as `FlowSession.receive` does."""
        return wait_for(self._session.receive(type, timeout))

    def send_and_receive(self, value: Any, type: type[T], timeout: float | None = None) -> T:
        """Send a value and wait for the reply."""
        return wait_for(self._session.send_and_receive(value, type, timeout))

    def peer_info(self) -> PeerFlowInfo:
        """Return name, version and application of the flow at the other end."""
        return wait_for(self._session.peer_info())

    def close(self) -> None:
        """Close the session before the flow ends."""
        wait_for(self._session.close())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SyncFlowSession) and other._session is self._session

    def __hash__(self) -> int:
        return hash(self._session)

    def __repr__(self) -> str:
        return repr(self._session)


class SyncChildFlow(Generic[R]):
    """A flow that another one has started as its child, for code that is a plain `def`."""

    __slots__ = ("_child",)

    def __init__(self, child: ChildFlow[R]) -> None:
        self._child = child

    @property
    def client_id(self) -> str:
        """The id by which operators and clients find it."""
        return self._child.client_id

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end of the child; raises as `ChildFlow.result` does."""
        return wait_for(self._child.result(timeout))

    def cancel(self, reason: str = "cancelled by its parent") -> None:
        """Raise FlowCancelledError in the code of the child, unless it has ended."""
        wait_for(self._child.cancel(reason))

    def __repr__(self) -> str:
        return repr(self._child)


class SyncStepCaller(StepOptions):
    """Runs functions that may do anything, and records their results: see `StepCaller`.

    receipt = ctx.step(charge, order)
    ctx.step.with_options(retry=RetryPolicy(max_attempts=5), timeout=10)(ship, order)
    """

    __slots__ = ()

    @overload
    def __call__(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return wait_for(self.make(function, args, kwargs))

    def with_options(
        self,
        *,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        name: str | None = None,
        limit: StepLimit | None = None,
    ) -> SyncStepCaller:
        """Return a caller with options: see `StepCaller.with_options`."""
        return SyncStepCaller(retry, timeout, name, limit, is_read=self.is_read)


class SyncFlowContext:
    """The first parameter of the code of a flow that is a plain `def`.

    Everything that the code waits for goes through it and is recorded: after a crash the code is
    replayed from its start with the recorded results.
    """

    __slots__ = ("_ctx",)

    def __init__(self, ctx: FlowContext) -> None:
        self._ctx = ctx

    @property
    def id(self) -> str:
        """The id of the flow."""
        return self._ctx.id

    @property
    def name(self) -> str:
        """The name of its definition."""
        return self._ctx.name

    @property
    def version(self) -> int:
        """The version of the code that runs now."""
        return self._ctx.version

    # Steps.

    step: ClassVar[SyncStepCaller] = SyncStepCaller()
    """Runs a function that may do anything, and records its result: see `StepCaller`."""

    read: ClassVar[SyncStepCaller] = SyncStepCaller(is_read=True)
    """Runs a cheap function that only reads: see `FlowContext.read`."""

    # Sessions.

    def open_session(self, peer: str) -> SyncFlowSession:
        """Return a session with the flow at another node that responds to this one."""
        return SyncFlowSession(self._ctx.open_session(peer))

    def send_all(self, values_by_session: Mapping[SyncFlowSession, Any]) -> None:
        """Send a value in each of several sessions, as one step."""
        values = {session._session: value for session, value in values_by_session.items()}
        wait_for(self._ctx.send_all(values))

    def receive_all(
        self, sessions: Iterable[SyncFlowSession], type: type[T], timeout: float | None = None
    ) -> list[T]:
        """Wait for a value from each of several sessions; returns them in this order."""
        ends = [session._session for session in sessions]
        return wait_for(self._ctx.receive_all(ends, type, timeout))

    # Waiting.

    def sleep(self, seconds: float) -> None:
        """Wait, for seconds or months; time passes also while the process does not run."""
        wait_for(self._ctx.sleep(seconds))

    def wait_for_signal(self, name: str, type: type[T], timeout: float | None = None) -> T:
        """Wait for a signal sent by `FlowService.signal`; signals of other types are rejected."""
        return wait_for(self._ctx.wait_for_signal(name, type, timeout))

    @overload
    def gather(self, *branches: Callable[[], T]) -> list[T]: ...
    @overload
    def gather(self, *branches: Callable[[], Any], return_exceptions: bool) -> list[Any]: ...
    def gather(self, *branches: Callable[[], Any], return_exceptions: bool = False) -> list[Any]:
        """Run functions concurrently; returns their results in the order of the arguments.

            north, south = ctx.gather(partial(ask, ctx, "north"), lambda: ctx.step(price, "south"))

        If one raises, the others are cancelled, unless `return_exceptions` is true.
        """
        group = ParallelBranches(
            [_branch(branch) for branch in branches], returns_errors=return_exceptions
        )
        return cast(list[Any], wait_for(group))

    def select(self, **branches: Callable[[], T]) -> tuple[str, T]:
        """Run functions concurrently until the first ends; returns its name and result.

            chosen, _ = ctx.select(paid=partial(ctx.wait_for_signal, "paid", bool), late=nap)

        The others are cancelled.
        """
        group = ParallelBranches([_branch(branch) for branch in branches.values()], [*branches])
        return cast(tuple[str, T], wait_for(group))

    def run_subflow(
        self, definition: FlowDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run another flow as part of this one; it opens sessions under its own name."""
        return wait_for(self._ctx.run_subflow(definition, *args, **kwargs))

    def start_child(
        self, definition: FlowDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncChildFlow[R]:
        """Start another flow of this node as a child of this one."""
        return SyncChildFlow(wait_for(self._ctx.start_child(definition, *args, **kwargs)))

    def start_flow(
        self, definition: FlowDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> str:
        """Start another flow of this node that is not a child; returns its client id."""
        return wait_for(self._ctx.start_flow(definition, *args, **kwargs))

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Start over with other arguments and an empty history, for flows that run forever."""
        self._ctx.continue_as_new(*args, **kwargs)

    # Values that are the same in each replay.

    def now(self) -> datetime.datetime:
        """Return the time at which the last wait of this flow ended."""
        return self._ctx.now()

    def random(self) -> random.Random:
        """Return random numbers for the code, not for its steps or query handlers."""
        return self._ctx.random()

    def uuid(self) -> uuid.UUID:
        """Return a new UUID, for the code; pass it to steps as an argument."""
        return self._ctx.uuid()

    def patched(self, id: str) -> bool:
        """Whether to take the new path of changed code; False where the old one was taken."""
        return self._ctx.patched(id)

    # For operators.

    def set_progress(self, text: str) -> None:
        """Set the text that operators see beside the flow."""
        self._ctx.set_progress(text)

    def set_attributes(self, **attributes: AttributeValue | None) -> None:
        """Set search attributes, by which operators find the flow; None removes one."""
        self._ctx.set_attributes(**attributes)

    def set_query_handler(self, query: str, function: Callable[[], Any]) -> None:
        """Call a function for queries of this name; it must not change anything."""
        self._ctx.set_query_handler(query, function)

    def __repr__(self) -> str:
        return repr(self._ctx)


def _branch(function: Callable[[], Any]) -> GreenletCoroutine[Any]:
    if not callable(function):
        raise UsageError(
            f"a branch of a flow that is a `def` is a function without arguments, not {function!r}:"
            " `lambda: ctx.step(function, argument)`"
        )
    return GreenletCoroutine(function)


def starter(function: Callable[..., R]) -> Callable[..., GreenletCoroutine[R]]:
    """Return a function that starts the code of a flow, a plain `def`, as a coroutine."""
    require_greenlet()

    def start(ctx: FlowContext, *args: Any, **kwargs: Any) -> GreenletCoroutine[R]:
        if any(isinstance(argument, FlowSession) for argument in args):
            args = tuple([_sync_session(argument) for argument in args])
        return GreenletCoroutine(partial(function, SyncFlowContext(ctx), *args, **kwargs))

    return start


def _sync_session(value: Any) -> Any:
    return SyncFlowSession(value) if isinstance(value, FlowSession) else value
