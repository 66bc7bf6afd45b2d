"""Random programs for flows, and one flow that runs any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import msgspec
from hypothesis import strategies as st

from postroad.flows import FlowContext, FlowSession, RetryPolicy, flow, responder
from postroad.flows.machine.history import Position

PEERS = ("beta", "gamma")


class Node(msgspec.Struct, kw_only=True):
    """A statement.

    Attributes:
        number: no other one of the program has it.
        is_caught: whether the program goes on when it raises.
    """

    number: int = 0
    is_caught: bool = False


class Step(Node, tag=True):
    """Run a function."""

    is_retried: bool = False


class Sleep(Node, tag=True):
    """Sleep for as many seconds as its number."""


class Send(Node, tag=True):
    """Send its number in a session."""

    slot: int = 0


class Receive(Node, tag=True):
    """Receive something in a session."""

    slot: int = 0
    timeout: int | None = None


class SendAll(Node, tag=True):
    """Send its number in all sessions."""


class ReceiveAll(Node, tag=True):
    """Receive something in all sessions."""


class Info(Node, tag=True):
    """Ask who is at the other end of a session."""

    slot: int = 0


class Close(Node, tag=True):
    """Close a session."""

    slot: int = 0


class Signal(Node, tag=True):
    """Wait for a signal that has its number for a name."""

    timeout: int | None = None


class Patch(Node, tag=True):
    """Ask whether the code is of after a change."""


class Look(Node, tag=True):
    """Look at the time, and draw random numbers."""


class Say(Node, tag=True):
    """Say how far it is."""


class Gather(Node, tag=True):
    """Do several things at the same time."""

    branches: list[list[Statement]] = []
    keeps_errors: bool = False


class Select(Node, tag=True):
    """Do several things at the same time until the first is done."""

    branches: list[list[Statement]] = []


class Call(Node, tag=True):
    """Run a subflow."""

    body: list[Statement] = []


Statement = (
    Step
    | Sleep
    | Send
    | Receive
    | SendAll
    | ReceiveAll
    | Info
    | Close
    | Signal
    | Patch
    | Look
    | Say
    | Gather
    | Select
    | Call
)
Program = list[Statement]

RECORDED_ONCE = (Step, Sleep, Send, SendAll, Signal)
"""What asks for something that nothing else in the program asks for."""


_flags = st.booleans()
_slots = st.integers(0, len(PEERS) - 1)
_timeouts = st.sampled_from([None, None, 5])
_quick: st.SearchStrategy[Statement] = st.one_of(
    st.builds(Look),
    st.builds(Patch),
    st.builds(Say),
    st.builds(Close, slot=_slots),
    st.builds(Info, slot=_slots, is_caught=_flags),
    st.builds(SendAll, is_caught=_flags),
    st.builds(ReceiveAll, is_caught=_flags),
)
_leaves: st.SearchStrategy[Statement] = st.one_of(
    st.builds(Step, is_caught=_flags, is_retried=_flags),
    st.builds(Step, is_caught=st.just(True)),
    st.builds(Sleep),
    st.builds(Send, slot=_slots, is_caught=st.just(True)),
    st.builds(Receive, slot=_slots, timeout=_timeouts, is_caught=_flags),
    st.builds(Receive, slot=_slots, is_caught=st.just(True)),
    st.builds(Signal, timeout=_timeouts, is_caught=_flags),
    _quick,
)


def _branch(inner: st.SearchStrategy[Statement]) -> st.SearchStrategy[Statement]:
    bodies = st.lists(inner, min_size=1, max_size=3)
    branches = st.lists(bodies | st.just([]), min_size=1, max_size=3)
    return st.one_of(
        st.builds(Gather, branches=branches, keeps_errors=_flags, is_caught=_flags),
        st.builds(Select, branches=branches, is_caught=_flags),
        st.builds(Call, body=bodies, is_caught=_flags),
    )


def _number(program: Program) -> Program:
    for number, node in enumerate(walk(program), start=1):
        node.number = number
    return program


programs: st.SearchStrategy[Program] = (
    st.lists(st.recursive(_leaves, _branch, max_leaves=6), min_size=3, max_size=6)
    # The same statement may have been drawn twice; each needs a number of its own.
    .map(lambda it: msgspec.convert(msgspec.to_builtins(it), Program))
    .map(_number)
)


def bodies(node: Statement) -> list[Program]:
    """What is inside a statement."""
    if isinstance(node, Gather | Select):
        return node.branches
    return [node.body] if isinstance(node, Call) else []


def walk(program: Program) -> Iterator[Statement]:
    """Every statement."""
    for node in program:
        yield node
        for body in bodies(node):
            yield from walk(body)


def change(program: Program, number: int, how: Callable[[Statement], Program]) -> Program:
    """A program with something else in place of one statement."""
    changed: Program = []
    for node in program:
        inner = [change(it, number, how) for it in bodies(node)]
        if isinstance(node, Gather | Select):
            node = msgspec.structs.replace(node, branches=inner)
        elif isinstance(node, Call):
            node = msgspec.structs.replace(node, body=inner[0])
        changed += how(node) if node.number == number else [node]
    return changed


def work(number: int) -> int:
    return number


class Interpreter:
    """Runs a program inside a flow, and notes everything that it sees.

    Attributes:
        trace: what was seen, in the order in which that was.
        places: where in the code each statement was.
        latest: the one that was made last.
    """

    latest: ClassVar[Interpreter]

    def __init__(self, ctx: FlowContext, sessions: dict[int, FlowSession] | None = None) -> None:
        self._flow = ctx
        self._sessions = sessions or {}
        self.trace: list[Any] = []
        self.places: dict[Position, int] = {}
        Interpreter.latest = self

    async def run(self, program: Program) -> int:
        try:
            for node in program:
                await self._do(node)
        finally:
            self.trace.append("left")
        return len(program)

    async def _do(self, node: Statement) -> None:
        code = self._flow._machine.code
        assert code is not None
        self.places[(*code.current.position, code.current.steps)] = node.number
        try:
            seen = await self._perform(node)
        except Exception as error:
            self.trace.append([node.number, type(error).__name__, str(error)])
            if not node.is_caught:
                raise
        else:
            self.trace.append([node.number, seen])

    async def _perform(self, node: Statement) -> Any:
        flow = self._flow
        if isinstance(node, Step):
            retry = RetryPolicy(max_attempts=3) if node.is_retried else None
            return await flow.step.with_options(name=f"s{node.number}", retry=retry)(
                work, node.number
            )
        if isinstance(node, Sleep):
            return await flow.sleep(node.number)
        if isinstance(node, Signal):
            return await flow.wait_for_signal(f"g{node.number}", int, node.timeout)
        if isinstance(node, Gather):
            branches = [self.run(it) for it in node.branches]
            found = await flow.gather(*branches, return_exceptions=node.keeps_errors)
            return [repr(it) for it in found]
        if isinstance(node, Select):
            named = {f"b{index}": self.run(it) for index, it in enumerate(node.branches)}
            return await flow.select(**named)
        if isinstance(node, Call):
            return await flow.run_subflow(within, self, node.body)
        return await self._talk(node)

    async def _talk(self, node: Statement) -> Any:
        flow = self._flow
        if isinstance(node, Send):
            return await self._session(node.slot).send(node.number)
        if isinstance(node, Receive):
            return await self._session(node.slot).receive(int, node.timeout)
        if isinstance(node, SendAll):
            return await flow.send_all(dict.fromkeys(self._all_sessions(), node.number))
        if isinstance(node, ReceiveAll):
            return await flow.receive_all(self._all_sessions(), int)
        if isinstance(node, Info):
            return (await self._session(node.slot).peer_info()).name
        if isinstance(node, Close):
            return await self._session(node.slot).close()
        if isinstance(node, Patch):
            return flow.patched(f"p{node.number}")
        if isinstance(node, Say):
            flow.set_attributes(
                **{f"n{node.number % 3}": node.number, f"n{(node.number + 1) % 3}": None}
            )
            return flow.set_progress(f"at {node.number}")
        assert isinstance(node, Look)
        return [flow.now().timestamp(), flow.random().random(), str(flow.uuid())]

    def _session(self, slot: int) -> FlowSession:
        if slot not in self._sessions:
            self._sessions[slot] = self._flow.open_session(PEERS[slot])
        return self._sessions[slot]

    def _all_sessions(self) -> list[FlowSession]:
        return [self._session(slot) for slot in range(len(PEERS))]


@flow
async def interpret(ctx: FlowContext, program: Program) -> list[Any]:
    """Run a program; everything it saw."""
    interpreter = Interpreter(ctx)
    await interpreter.run(program)
    return interpreter.trace


@responder("ask")
async def obey(ctx: FlowContext, session: FlowSession) -> list[Any]:
    """Run the program that somebody sends."""
    program = await session.receive(Program)
    interpreter = Interpreter(ctx, {0: session})
    await interpreter.run(program)
    return interpreter.trace


@flow
async def within(ctx: FlowContext, interpreter: Interpreter, program: Program) -> int:
    """Run a part of a program as a subflow."""
    return await interpreter.run(program)
