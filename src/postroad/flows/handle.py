"""What the code of a flow works with: the flow itself, and its sessions."""

from __future__ import annotations

import datetime
import functools
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast, overload

from postroad.core import validate_node_name
from postroad.core.errors import ConfigError, UsageError
from postroad.durable.config import Retry

from . import requests as ask_for
from . import values
from .asks import Ask, ContinueAsNew, Fork
from .drawing import FlowRandom
from .head import show_id
from .machine import Machine
from .session import PeerInfo, SessionEnd
from .transactions import FlowTransaction

if TYPE_CHECKING:
    from .definition import Definition

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# A century: longer than any store lives.
_SECONDS_MAX = 100 * 365 * 86_400.0
# It is for people to see at a glance.
_PROGRESS_CHARS_MAX = 2_000


class Session:
    """A conversation with a flow at another node."""

    __slots__ = ("_end", "_flow", "_is_begun")

    def __init__(self, flow: Flow, end: SessionEnd) -> None:
        self._flow = flow
        self._end = end
        # As the code knows it: while it is run again, the state of the end is that of later.
        self._is_begun = not end.is_initiator

    @property
    def peer(self) -> str:
        """The node at the other end."""
        return self._end.peer

    async def send(self, value: Any) -> None:
        """Send something; returns at once, and it arrives once."""
        await ask_for.Send([self._end], (value,), [self._flow._encode(value, self.peer)])
        self._is_begun = True

    async def _begin(self) -> None:
        """Have the other end begin, if nothing was sent to it."""
        if not self._is_begun:
            self._is_begun = True
            await ask_for.Open([self._end])

    async def receive(self, type: type[T], timeout: float | None = None) -> T:
        """Wait for the next thing the other end sends.

        Raises:
            PeerFailed: the other flow has failed.
            SessionEnded: it has finished, or closed the session.
            SessionRejected: the other node cannot hold this conversation.
            FlowTimeout: it took too long.
            FlowError: it is of another type.
        """
        await self._begin()
        deadline_ms = self._flow._deadline_ms(timeout)
        return cast(T, await ask_for.Receive([self._end], type, deadline_ms))

    async def send_and_receive(self, value: Any, type: type[T], timeout: float | None = None) -> T:
        """Send something and wait for what comes back."""
        await self.send(value)
        return await self.receive(type, timeout)

    async def info(self) -> PeerInfo:
        """The flow at the other end: its name, version and application."""
        await self._begin()
        return cast(PeerInfo, await ask_for.Info([self._end]))

    async def close(self) -> None:
        """Say that nothing more will be said here, before the flow ends."""
        await ask_for.Close([self._end])

    def __repr__(self) -> str:
        return f"<Session {self._end.number} with {self.peer} {self._end.state}>"


class Flow:
    """A flow, as its own code sees it.

    Everything the code waits for goes through this, so that it is recorded: after a crash the
    code is run again from its beginning, and is given what it was given before.
    """

    __slots__ = ("_definition", "_machine", "_patches", "_random", "answers")

    def __init__(self, machine: Machine, definition: Definition[Any, Any]) -> None:
        self._machine = machine
        self._definition = definition
        self._random: FlowRandom | None = None
        self._patches: dict[str, bool] = {}
        self.answers: dict[str, Callable[[], Any]] = {}

    @property
    def id(self) -> str:
        return show_id(self._machine.head.id)

    @property
    def name(self) -> str:
        return self._machine.head.name

    @property
    def version(self) -> int:
        """The version of the code that runs now."""
        return self._definition.version

    # Sessions.

    def open(self, peer: str) -> Session:
        """A session with the flow at another node that responds to this one.

        Nothing is sent before the first `send` or `receive`.
        """
        validate_node_name(peer)
        return Session(self, self._machine.open(peer))

    async def send_all(self, values_by_session: Mapping[Session, Any]) -> None:
        """Send something in several sessions at once."""
        ends = [it._end for it in values_by_session]
        payloads = [self._encode(value, it.peer) for it, value in values_by_session.items()]
        if ends:
            await ask_for.Send(ends, (*values_by_session.values(),), payloads)
        for session in values_by_session:
            session._is_begun = True

    def _encode(self, value: Any, peer: str) -> bytes:
        return values.encode(value, f"what is sent to {peer}")

    async def receive_all(
        self, sessions: Iterable[Session], type: type[T], timeout: float | None = None
    ) -> list[T]:
        """Wait for one thing of each of several sessions; their order is that of the sessions."""
        sessions = list(sessions)
        ends = [it._end for it in sessions]
        if len({it.number for it in ends}) < len(ends):
            raise UsageError("receive_all() was given a session twice")
        if not ends:
            return []
        fresh = [it for it in sessions if not it._is_begun]
        for session in fresh:
            session._is_begun = True
        if fresh:
            await ask_for.Open([it._end for it in fresh])
        deadline_ms = self._deadline_ms(timeout)
        return cast(list[T], await ask_for.Receive(ends, type, deadline_ms, is_one=False))

    # Steps.

    @overload
    async def step(
        self,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        retry: Retry | None = None,
        timeout: float | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> T: ...

    @overload
    async def step(
        self,
        function: Callable[..., T],
        *args: Any,
        retry: Retry | None = None,
        timeout: float | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> T: ...

    async def step(
        self,
        function: Callable[..., Any],
        *args: Any,
        retry: Retry | None = None,
        timeout: float | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a function that may do anything, and remember what it returned.

        A function with a parameter `tx` does what it does through that transaction, with this
        step: once. Any other is run again if the process dies before its result is written down;
        one with a parameter `step_id` is given a text that is the same whenever that happens.

        Args:
            function: an `async def`, or one that may block: it runs in a thread.
            retry: how often and when to try again if it raises; not at all by default.
            timeout: seconds for each attempt.
            name: what it is called in the record; the function's name by default.
        """
        label = name or _name_of(function)
        ask = ask_for.Step(function, args, kwargs, name=label, retry=retry, timeout_s=timeout)
        return await ask

    async def sleep(self, seconds: float) -> None:
        """Rest, however long; the time goes on while the process does not run."""
        await ask_for.Sleep(seconds, self._machine.now_ms + _to_ms(seconds))

    async def signal(self, name: str, type: type[T], timeout: float | None = None) -> T:
        """Wait for a signal of that name, sent by `Flows.signal`; those of other types are refused.

        Give name and type as constants: then `Flows.signal` refuses others also before that.
        """
        return cast(T, await ask_for.Signal(name, type, self._deadline_ms(timeout)))

    async def gather(
        self, *coroutines: Coroutine[Any, Any, Any], return_exceptions: bool = False
    ) -> list[Any]:
        """Run several things at the same time; their results in the order they were given.

        If one raises, the others are ended, unless exceptions are wanted as results.
        """
        return cast(list[Any], await Fork(coroutines, keeps_errors=return_exceptions))

    async def select(self, **coroutines: Coroutine[Any, Any, Any]) -> tuple[str, Any]:
        """Run several things at the same time until the first has ended; which one, and its result.

        The others are ended.
        """
        return cast(tuple[str, Any], await Fork([*coroutines.values()], [*coroutines]))

    async def call(self, definition: Definition[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run another flow as a part of this one: its sessions are opened in its own name."""
        return cast(R, await Fork([definition(self, *args, **kwargs)], scope=definition))

    def transaction(self) -> FlowTransaction:
        """A block whose statements on the user's own tables are done once, with this step.

            async with flow.transaction() as tx:
                await tx.execute("INSERT INTO payments VALUES (?)", (flow.id,))

        Nothing else can be waited for inside: until the block is left, nobody else commits. An
        exception that leaves the block undoes it.
        """
        code = self._machine.code
        assert code is not None
        return FlowTransaction(code)

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Begin anew with other arguments, and forget all steps: for flows that never end.

        Sessions end; the id stays the same.
        """
        code = self._machine.code
        if code is not None and code.current.transaction is not None:
            raise UsageError("a flow cannot begin anew inside a transaction: leave its block first")
        if self._machine.head.origin is not None:
            raise UsageError(f"flow {self.name} responds to another one, and cannot begin anew")
        raise ContinueAsNew(self._definition.encode_arguments(args, kwargs))

    # What is the same whenever the code is run.

    def now(self) -> datetime.datetime:
        """The time, as of the last thing this flow waited for."""
        return datetime.datetime.fromtimestamp(self._machine.now_ms / 1000, datetime.UTC)

    def random(self) -> random.Random:
        """Random numbers, for the code alone: not for its steps, nor for what answers queries."""
        if self._random is None:
            machine = self._machine
            self._random = FlowRandom(
                object() if machine.code is None else machine.code.identity,
                machine.head.streams,
                machine.head.run,
                machine.count_steps,
            )
        return self._random

    def uuid(self) -> uuid.UUID:
        """A new UUID, for the code alone: give it to steps as an argument."""
        return uuid.UUID(int=self.random().getrandbits(128), version=4)

    def patched(self, id: str) -> bool:
        """Whether to take the new way after a change of the code; False where the old was taken."""
        known = self._patches.get(id)
        if known is None:
            known = self._patches[id] = self._ask_now(ask_for.Patch(id))
        return known

    def _ask_now(self, ask: Ask) -> Any:
        code = self._machine.code
        assert code is not None
        if code.current.transaction is not None:
            # It would be recorded before the transaction in which it was asked.
            raise UsageError("ask flow.patched() before the block of a transaction, not inside it")
        ask.position = code.current.next_position()
        outcome = self._machine.answer(ask)
        assert outcome is not None
        return outcome.value

    # What others see of it.

    def progress(self, text: str) -> None:
        """Say how far it is, for whoever looks."""
        self._machine.head.progress = values.clean(text[:_PROGRESS_CHARS_MAX])

    def answer(self, query: str, function: Callable[[], Any]) -> None:
        """Have a function called for queries of that name; it must not change anything."""
        self.answers[query] = function

    def _deadline_ms(self, timeout: float | None) -> int | None:
        return None if timeout is None else self._machine.now_ms + _to_ms(timeout)

    def __repr__(self) -> str:
        return f"<Flow {self.name} {self.id}>"


def _name_of(function: Callable[..., Any]) -> str:
    """What a function is called whenever the code is run: nothing of its address in memory."""
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name


def _to_ms(seconds: float) -> int:
    if not 0 <= seconds <= _SECONDS_MAX:
        raise ConfigError(f"{seconds!r} is no number of seconds from 0 on")
    return round(seconds * 1000)
