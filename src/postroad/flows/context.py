"""The context of flow code: steps, sessions, time and random numbers."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, ParamSpec, TypeVar, cast

from postroad.core import validate_node_name
from postroad.core.errors import ConfigError, UsageError
from postroad.flows.machine import commands, values
from postroad.flows.machine.attributes import AttributeValue
from postroad.flows.machine.commands import ContinueAsNew, FlowCommand, ParallelBranches
from postroad.flows.machine.coroutine import RUNNING
from postroad.flows.machine.requests import (
    CancelFlow,
    ChildOutcome,
    StartFlow,
    WaitForChild,
)
from postroad.flows.machine.state import format_flow_id
from postroad.flows.machine.state_machine import FlowStateMachine
from postroad.flows.sessions.session import PeerFlowInfo, SessionEndpoint
from postroad.flows.steps import StepCaller

if TYPE_CHECKING:
    from postroad.flows.definition import FlowDefinition


class FlowRandom(random.Random):
    """Random numbers of one run of a flow.

    Args:
        owner: the code that may draw from it.
        streams: seeds, each with the number of steps from which on it is used; a forked flow has a
            seed of its own after the steps that it shares.
        run: number of the run, which `continue_as_new` increments.
        count_steps: returns the number of steps that the code has done.
    """

    def __init__(
        self,
        owner: object,
        streams: Sequence[tuple[int, bytes]],
        run: int,
        count_steps: Callable[[], int],
    ) -> None:
        self._owner = owner
        self._streams = list(streams)
        self._run = run.to_bytes(8)
        self._count_steps = count_steps
        super().__init__(self._streams.pop(0)[1] + self._run)

    def __new__(cls, *args: object) -> FlowRandom:
        # The base class would use the arguments as a seed.
        return super().__new__(cls)

    def _check_owner(self) -> None:
        if RUNNING.get() is not self._owner:
            raise UsageError(
                "ctx.random() and ctx.uuid() belong to the code of the flow: steps are not "
                "replayed, so a draw inside of one would change all later values. Draw in the "
                "code, and pass the value to the step as an argument; for an id that stays the "
                "same in retries give the step a parameter annotated as StepId"
            )
        while self._streams and self._count_steps() >= self._streams[0][0]:
            self.seed(self._streams.pop(0)[1] + self._run)

    def random(self) -> float:
        self._check_owner()
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        self._check_owner()
        return super().getrandbits(k)

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        # It may return a value that was drawn before.
        self._check_owner()
        return super().gauss(mu, sigma)


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# A century: longer than any store lives.
_SECONDS_MAX = 100 * 365 * 86_400.0
# Operators see it in lists.
_PROGRESS_CHARS_MAX = 2_000


class FlowSession:
    """A session with a flow at another node."""

    __slots__ = ("_ctx", "_endpoint", "_is_started")

    def __init__(self, ctx: FlowContext, endpoint: SessionEndpoint) -> None:
        self._ctx = ctx
        self._endpoint = endpoint
        # As the code knows it: during replay the state of the endpoint is a later one.
        self._is_started = not endpoint.is_initiator

    @property
    def peer(self) -> str:
        """The node at the other end."""
        return self._endpoint.peer

    async def send(self, value: Any) -> None:
        """Send a value; returns at once, and the value arrives exactly once."""
        await commands.SendData([self._endpoint], (value,), [self._ctx._encode(value, self.peer)])
        self._is_started = True

    async def _open(self) -> None:
        """Start the responder, unless something was sent to it already."""
        if not self._is_started:
            self._is_started = True
            await commands.OpenSession([self._endpoint])

    async def receive(self, type: type[T], timeout: float | None = None) -> T:
        """Wait for the next value from the other end.

        Raises:
            PeerFlowFailedError: the other flow failed.
            SessionEndedError: it ended, or closed the session.
            SessionRejectedError: the other node has no responder for this flow.
            FlowTimeoutError: no value arrived within `timeout` seconds.
            FlowError: the value is of another type.
        """
        await self._open()
        deadline_ms = self._ctx._deadline_ms(timeout)
        return cast(T, await commands.ReceiveData([self._endpoint], type, deadline_ms))

    async def send_and_receive(self, value: Any, type: type[T], timeout: float | None = None) -> T:
        """Send a value and wait for the reply."""
        await self.send(value)
        return await self.receive(type, timeout)

    async def peer_info(self) -> PeerFlowInfo:
        """Return name, version and application of the flow at the other end."""
        await self._open()
        return cast(PeerFlowInfo, await commands.GetPeerInfo([self._endpoint]))

    async def close(self) -> None:
        """Close the session before the flow ends."""
        await commands.CloseSession([self._endpoint])

    def __repr__(self) -> str:
        return f"<FlowSession {self._endpoint.number} with {self.peer} {self._endpoint.state}>"


class ChildFlow(Generic[R]):
    """A flow that another one has started as its child.

    Attributes:
        client_id: the id by which operators and clients find it.
    """

    __slots__ = ("_ctx", "_definition", "_outcome", "client_id")

    def __init__(
        self, ctx: FlowContext, definition: FlowDefinition[Any, R], client_id: str
    ) -> None:
        self._ctx = ctx
        self._definition = definition
        self._outcome: ChildOutcome | None = None
        self.client_id = client_id

    async def result(self, timeout: float | None = None) -> R:
        """Wait for the end of the child and return its result.

        Raises:
            FlowError: the error that the child raised; FlowKilledError if an operator killed it.
            FlowTimeoutError: it has not ended within `timeout` seconds, and goes on.
        """
        if self._outcome is None:
            deadline_ms = self._ctx._deadline_ms(timeout)
            self._outcome = await WaitForChild(self.client_id, deadline_ms)
        if self._outcome.error is not None:
            raise values.restore_error(self._outcome.error)
        assert self._outcome.result is not None
        return cast(R, values.decode_result(self._outcome.result, self._definition.result_type))

    async def cancel(self, reason: str = "cancelled by its parent") -> None:
        """Raise FlowCancelledError in the code of the child, unless it has ended."""
        await CancelFlow(self.client_id, reason)

    def __repr__(self) -> str:
        return f"<ChildFlow {self._definition.name} {self.client_id}>"


class FlowContext:
    """The first parameter of the code of a flow.

    Everything that the code waits for goes through it and is recorded: after a crash the code is
    replayed from its start with the recorded results.
    """

    __slots__ = ("_definition", "_machine", "_patches", "_random", "query_handlers")

    def __init__(self, machine: FlowStateMachine, definition: FlowDefinition[Any, Any]) -> None:
        self._machine = machine
        self._definition = definition
        self._random: FlowRandom | None = None
        self._patches: dict[str, bool] = {}
        self.query_handlers: dict[str, Callable[[], Any]] = {}

    @property
    def id(self) -> str:
        return format_flow_id(self._machine.state.id)

    @property
    def name(self) -> str:
        return self._machine.state.name

    @property
    def version(self) -> int:
        """The version of the code that runs now."""
        return self._definition.version

    # Sessions.

    def open_session(self, peer: str) -> FlowSession:
        """Return a session with the flow at another node that responds to this one.

        The session is opened by the first `send` or `receive`.
        """
        validate_node_name(peer)
        return FlowSession(self, self._machine.open(peer))

    async def send_all(self, values_by_session: Mapping[FlowSession, Any]) -> None:
        """Send a value in each of several sessions, as one step."""
        endpoints = [session._endpoint for session in values_by_session]
        payloads = [
            self._encode(value, session.peer) for session, value in values_by_session.items()
        ]
        if endpoints:
            await commands.SendData(endpoints, (*values_by_session.values(),), payloads)
        for session in values_by_session:
            session._is_started = True

    def _encode(self, value: Any, peer: str) -> bytes:
        return values.encode_value(value, f"what is sent to {peer}")

    async def receive_all(
        self, sessions: Iterable[FlowSession], type: type[T], timeout: float | None = None
    ) -> list[T]:
        """Wait for a value from each of several sessions; returns them in this order."""
        sessions = list(sessions)
        endpoints = [session._endpoint for session in sessions]
        if len({endpoint.number for endpoint in endpoints}) < len(endpoints):
            raise UsageError("receive_all() got a session twice")
        if not endpoints:
            return []
        fresh = [session for session in sessions if not session._is_started]
        for session in fresh:
            session._is_started = True
        if fresh:
            await commands.OpenSession([session._endpoint for session in fresh])
        deadline_ms = self._deadline_ms(timeout)
        return cast(list[T], await commands.ReceiveData(endpoints, type, deadline_ms, is_one=False))

    # Steps.

    step: ClassVar[StepCaller] = StepCaller()
    """Runs a function that may do anything, and records its result: see `StepCaller`."""

    read: ClassVar[StepCaller] = StepCaller(is_read=True)
    """Runs a cheap function that only reads, and records its result with the next commit.

    It needs no commit of its own. If the process dies before the next commit, the function runs
    again and may return another value; nothing outside of the flow has seen the first one then.
    """

    async def sleep(self, seconds: float) -> None:
        """Wait, for seconds or months; time passes also while the process does not run."""
        await commands.SleepUntil(seconds, self._machine.now_ms + _to_ms(seconds))

    async def wait_for_signal(self, name: str, type: type[T], timeout: float | None = None) -> T:
        """Wait for a signal sent by `FlowService.signal`; signals of other types are rejected.

        If name and type are constants in the code, `FlowService.signal` can reject wrong signals
        before the flow waits for them.
        """
        return cast(T, await commands.WaitForSignal(name, type, self._deadline_ms(timeout)))

    async def gather(
        self, *coroutines: Coroutine[Any, Any, Any], return_exceptions: bool = False
    ) -> list[Any]:
        """Run coroutines concurrently; returns their results in the order of the arguments.

        If one raises, the others are cancelled, unless `return_exceptions` is true.
        """
        return cast(list[Any], await ParallelBranches(coroutines, returns_errors=return_exceptions))

    async def select(self, **coroutines: Coroutine[Any, Any, Any]) -> tuple[str, Any]:
        """Run coroutines concurrently until the first ends; returns its name and result.

        The others are cancelled.
        """
        return cast(tuple[str, Any], await ParallelBranches([*coroutines.values()], [*coroutines]))

    async def run_subflow(
        self, definition: FlowDefinition[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run another flow as part of this one; it opens sessions under its own name."""
        return cast(
            R, await ParallelBranches([definition(self, *args, **kwargs)], scope=definition)
        )

    async def start_child(
        self, definition: FlowDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> ChildFlow[R]:
        """Start another flow of this node, with an id and a history of its own.

        It starts when this step is durable. Its end can be waited for, with `result`. If this
        flow fails, is cancelled or killed, a child that has not ended is cancelled; if it
        completes or continues as new, the child goes on.
        """
        client_id = await self._start(definition, args, kwargs, is_child=True)
        return ChildFlow(self, definition, client_id)

    async def start_flow(
        self, definition: FlowDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> str:
        """Start another flow of this node that is not a child; returns its client id."""
        return await self._start(definition, args, kwargs, is_child=False)

    async def _start(
        self,
        definition: FlowDefinition[P, R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_child: bool,
    ) -> str:
        arguments = definition.encode_arguments(args, kwargs)
        digest = values.digest_arguments(args, kwargs)
        started = StartFlow(definition.name, digest, arguments, is_child=is_child)
        return cast(str, await started)

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Start over with other arguments and an empty history, for flows that run forever.

        Sessions are closed; the id stays the same.
        """
        if self._machine.state.initiated_by is not None:
            raise UsageError(
                f"flow {self.name} responds to another one, and cannot continue as new"
            )
        raise ContinueAsNew(self._definition.encode_arguments(args, kwargs))

    # Values that are the same in each replay.

    def now(self) -> datetime.datetime:
        """Return the time at which the last wait of this flow ended."""
        return datetime.datetime.fromtimestamp(self._machine.now_ms / 1000, datetime.UTC)

    def random(self) -> random.Random:
        """Return random numbers for the code, not for its steps or query handlers."""
        if self._random is None:
            machine = self._machine
            self._random = FlowRandom(
                object() if machine.code is None else machine.code.identity,
                machine.state.seeds,
                machine.state.run_number,
                machine.count_steps,
            )
        return self._random

    def uuid(self) -> uuid.UUID:
        """Return a new UUID, for the code; pass it to steps as an argument."""
        return uuid.UUID(int=self.random().getrandbits(128), version=4)

    def patched(self, id: str) -> bool:
        """Whether to take the new path of changed code; False where the old one was taken."""
        is_patched = self._patches.get(id)
        if is_patched is None:
            is_patched = self._patches[id] = self._execute_now(commands.RecordPatch(id))
        return is_patched

    def _execute_now(self, command: FlowCommand) -> Any:
        code = self._machine.code
        assert code is not None
        command.position = code.current.next_position()
        outcome = self._machine.execute(command)
        assert outcome is not None
        return outcome.value

    # For operators.

    def set_progress(self, text: str) -> None:
        """Set the text that operators see beside the flow."""
        self._machine.state.progress = values.sanitize_text(text[:_PROGRESS_CHARS_MAX])

    def set_attributes(self, **attributes: AttributeValue | None) -> None:
        """Set search attributes, by which operators find the flow; None removes one.

        They are kept after its end. Raises UsageError for more than 20, a text of more than 200
        characters, more than 4 KiB of all together, or a value of another type.
        """
        code = self._machine.code
        if code is None or RUNNING.get() is not code.identity:
            raise UsageError(
                "ctx.set_attributes() belongs to the code of the flow: set attributes there, "
                "before or after a step, from what the step returns"
            )
        self._machine.set_attributes(attributes)

    def set_query_handler(self, query: str, function: Callable[[], Any]) -> None:
        """Call a function for queries of this name; it must not change anything."""
        self.query_handlers[query] = function

    def _deadline_ms(self, timeout: float | None) -> int | None:
        return None if timeout is None else self._machine.now_ms + _to_ms(timeout)

    def __repr__(self) -> str:
        return f"<FlowContext of {self.name} {self.id}>"


def _to_ms(seconds: float) -> int:
    if not 0 <= seconds <= _SECONDS_MAX:
        raise ConfigError(f"{seconds!r} must be a number of seconds, 0 or more")
    return round(seconds * 1000)
