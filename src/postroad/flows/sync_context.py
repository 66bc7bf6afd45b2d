"""What the code of a flow works with that is a plain `def`: it waits without `await`.

Each method does what the one of that name of `FlowContext` and `FlowSession` does, and is recorded
like it: code may change from one form to the other while flows of it run.
"""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar, cast, overload

from postroad.core import RetryPolicy
from postroad.core.errors import UsageError
from postroad.flows.context import FlowContext, FlowSession
from postroad.flows.definition import FlowDefinition
from postroad.flows.greenlets import GreenletCoroutine, require_greenlet, wait_for
from postroad.flows.machine.commands import ParallelBranches
from postroad.flows.sessions.session import PeerFlowInfo
from postroad.flows.steps import StepOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncFlowSession:
    """A conversation with a flow at another node."""

    __slots__ = ("_session",)

    def __init__(self, session: FlowSession) -> None:
        self._session = session

    @property
    def peer(self) -> str:
        """The node at the other end."""
        return self._session.peer

    def send(self, value: Any) -> None:
        """Send a value; returns at once, and the value arrives once."""
        wait_for(self._session.send(value))

    def receive(self, type: type[T], timeout: float | None = None) -> T:
        """Wait for the next value the other end sends; raises as `FlowSession.receive` does."""
        return wait_for(self._session.receive(type, timeout))

    def send_and_receive(self, value: Any, type: type[T], timeout: float | None = None) -> T:
        """Send a value and wait for the reply."""
        return wait_for(self._session.send_and_receive(value, type, timeout))

    def peer_info(self) -> PeerFlowInfo:
        """The flow at the other end: its name, version and application."""
        return wait_for(self._session.peer_info())

    def close(self) -> None:
        """Say that nothing more will be sent, before the flow ends."""
        wait_for(self._session.close())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SyncFlowSession) and other._session is self._session

    def __hash__(self) -> int:
        return hash(self._session)

    def __repr__(self) -> str:
        return repr(self._session)


class SyncStepCaller(StepOptions):
    """Runs functions that may do anything, and records what they return: see `StepCaller`.

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
    ) -> SyncStepCaller:
        """The same with options: see `StepCaller.with_options`."""
        return SyncStepCaller(retry, timeout, name, is_read=self.is_read)


class SyncFlowContext:
    """A flow, as its own code sees it that is a plain `def`.

    Everything the code waits for goes through this, so that it is recorded: after a crash the code
    is run again from its beginning, and is given what it was given before.
    """

    __slots__ = ("_ctx",)

    def __init__(self, ctx: FlowContext) -> None:
        self._ctx = ctx

    @property
    def id(self) -> str:
        """What the flow is called."""
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
    """Runs a function that may do anything, and records what it returned: see `StepCaller`."""

    read: ClassVar[SyncStepCaller] = SyncStepCaller(is_read=True)
    """Runs a cheap function that only reads: see `FlowContext.read`."""

    # Sessions.

    def open_session(self, peer: str) -> SyncFlowSession:
        """A session with the flow at another node that responds to this one."""
        return SyncFlowSession(self._ctx.open_session(peer))

    def send_all(self, values_by_session: Mapping[SyncFlowSession, Any]) -> None:
        """Send a value in each of several sessions at once."""
        values = {session._session: value for session, value in values_by_session.items()}
        wait_for(self._ctx.send_all(values))

    def receive_all(
        self, sessions: Iterable[SyncFlowSession], type: type[T], timeout: float | None = None
    ) -> list[T]:
        """Wait for a value of each of several sessions; their order is that of the sessions."""
        ends = [session._session for session in sessions]
        return wait_for(self._ctx.receive_all(ends, type, timeout))

    # Waiting.

    def sleep(self, seconds: float) -> None:
        """Wait, however long; the time goes on while the process does not run."""
        wait_for(self._ctx.sleep(seconds))

    def wait_for_signal(self, name: str, type: type[T], timeout: float | None = None) -> T:
        """Wait for a signal of that name; signals of other types are refused."""
        return wait_for(self._ctx.wait_for_signal(name, type, timeout))

    @overload
    def gather(self, *branches: Callable[[], T]) -> list[T]: ...
    @overload
    def gather(self, *branches: Callable[[], Any], return_exceptions: bool) -> list[Any]: ...
    def gather(self, *branches: Callable[[], Any], return_exceptions: bool = False) -> list[Any]:
        """Run several functions at the same time; their results in the order they were given.

            north, south = ctx.gather(partial(ask, ctx, "north"), lambda: ctx.step(price, "south"))

        If one raises, the others are ended, unless exceptions are wanted as results.
        """
        group = ParallelBranches(
            [_branch(branch) for branch in branches], returns_errors=return_exceptions
        )
        return cast(list[Any], wait_for(group))

    def select(self, **branches: Callable[[], T]) -> tuple[str, T]:
        """Run several functions at the same time until the first has ended; its name and result.

            chosen, _ = ctx.select(paid=partial(ctx.wait_for_signal, "paid", bool), late=nap)

        The others are ended.
        """
        group = ParallelBranches([_branch(branch) for branch in branches.values()], [*branches])
        return cast(tuple[str, T], wait_for(group))

    def run_subflow(
        self, definition: FlowDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run another flow, of either form, as a part of this one; it opens its own sessions."""
        return wait_for(self._ctx.run_subflow(definition, *args, **kwargs))

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Start anew with other arguments, and forget all steps: for flows that never end."""
        self._ctx.continue_as_new(*args, **kwargs)

    # What is the same whenever the code is run.

    def now(self) -> datetime.datetime:
        """The time, as of the last thing this flow waited for."""
        return self._ctx.now()

    def random(self) -> random.Random:
        """Random numbers, for the code alone: not for its steps, nor for its query handlers."""
        return self._ctx.random()

    def uuid(self) -> uuid.UUID:
        """A new UUID, for the code alone: give it to steps as an argument."""
        return self._ctx.uuid()

    def patched(self, id: str) -> bool:
        """Whether to take the new path of changed code; False where the old one was taken."""
        return self._ctx.patched(id)

    # What others see of it.

    def set_progress(self, text: str) -> None:
        """Set the text that operators see beside the flow."""
        self._ctx.set_progress(text)

    def set_query_handler(self, query: str, function: Callable[[], Any]) -> None:
        """Have a function called for queries of that name; it must not change anything."""
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
    """What makes the code of a flow, to be driven as a coroutine, of a function that is a `def`."""
    require_greenlet()

    def start(ctx: FlowContext, *args: Any, **kwargs: Any) -> GreenletCoroutine[R]:
        if any(isinstance(argument, FlowSession) for argument in args):
            args = tuple([_sync_session(argument) for argument in args])
        return GreenletCoroutine(partial(function, SyncFlowContext(ctx), *args, **kwargs))

    return start


def _sync_session(value: Any) -> Any:
    return SyncFlowSession(value) if isinstance(value, FlowSession) else value
