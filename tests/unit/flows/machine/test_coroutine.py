"""Runs the code of flows: branches, their ends, and what is not recorded."""

import asyncio
import inspect
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.flows.errors import UnrecordedAwaitError
from postroad.flows.machine.commands import CommandResult, FlowCommand, ParallelBranches
from postroad.flows.machine.coroutine import FlowCoroutine, close_quietly
from postroad.flows.machine.history import CommandKind
from tests.support.cases import each
from tests.support.flows.sync_form import OnStack

# What the code runs as.
FORM: ContextVar[Callable[[Any], Coroutine[Any, Any, Any]]] = ContextVar("FORM")


@pytest.fixture(autouse=True, params=[lambda coroutine: coroutine, OnStack], ids=["loop", "stack"])
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    token = FORM.set(request.param)
    yield
    FORM.reset(token)


class Wait(FlowCommand):
    """Waits until it is answered."""

    __slots__ = ()
    kind = CommandKind.SIGNAL


class Do(FlowCommand):
    """Is answered at once, with its own name."""

    __slots__ = ()
    kind = CommandKind.PATCH
    is_immediate = True


async def wait(name: str) -> Any:
    return await Wait(name)


async def do(name: str) -> Any:
    return await Do(name)


async def awaiting(awaitable: Any) -> Any:
    return await awaitable


def gather(*coroutines: Coroutine[Any, Any, Any], keeps_errors: bool = False) -> ParallelBranches:
    return ParallelBranches(coroutines, returns_errors=keeps_errors)


def select(**coroutines: Coroutine[Any, Any, Any]) -> ParallelBranches:
    return ParallelBranches([*coroutines.values()], [*coroutines])


class Run:
    """Code under way, by the names of what it waits for."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], scope: object = None) -> None:
        coroutine = FORM.get()(coroutine)
        self.asked: list[str] = []
        self.withdrawn: list[str] = []
        self.code = FlowCoroutine(
            coroutine, scope, self.answer, lambda command: self.withdrawn.append(command.name)
        )
        self.code.start()

    def answer(self, command: FlowCommand) -> CommandResult | None:
        self.asked.append(command.label)
        if command.name == "broken":
            raise KeyError("cannot be answered")
        return CommandResult(command.name) if command.is_immediate else None

    @property
    def waiting(self) -> list[str]:
        commands = [branch.command for branch in self.code.waiting.values()]
        return [command.name for command in commands if isinstance(command, FlowCommand)]

    def give(self, name: str, value: Any = None, error: BaseException | None = None) -> None:
        for position, branch in self.code.waiting.items():
            if isinstance(branch.command, FlowCommand) and branch.command.name == name:
                self.code.resume(position, CommandResult(value, error))
                return
        raise AssertionError(f"nobody waits for {name}")

    @property
    def result(self) -> Any:
        assert self.code.result is not None
        if self.code.result.error is not None:
            raise self.code.result.error
        return self.code.result.value


def test_coroutine_numbers_its_commands() -> None:
    async def code() -> int:
        return 7

    assert Run(code()).result == 7

    async def counting() -> list[Any]:
        return [await do("a"), await wait("b"), await do("c")]

    run = Run(counting())
    assert run.waiting == ["b"]
    run.give("b", 2)
    assert run.result == ["a", 2, "c"]
    assert run.asked == ["0 patch(a)", "1 signal(b)", "2 patch(c)"]


def test_error_is_raised_where_the_code_waits() -> None:
    async def code() -> str:
        try:
            await wait("a")
        except KeyError as error:
            return f"caught {error}"
        return "nothing"

    run = Run(code())
    run.give("a", error=KeyError(1))
    assert run.result == "caught 1"

    async def unanswered() -> str:
        with pytest.raises(KeyError, match="cannot be answered"):
            await do("broken")
        return "alive"

    assert Run(unanswered()).result == "alive"

    async def explained() -> str:
        try:
            await asyncio.sleep(0)
        except UnrecordedAwaitError:
            return "told"
        return "not told"

    assert Run(explained()).result == "told"


@each(ValueError(1), KeyboardInterrupt(), SystemExit(2))
def test_any_error_is_the_end(error: BaseException) -> None:
    async def code() -> None:
        await wait("a")
        raise error

    run = Run(code())
    run.give("a")
    assert run.code.result is not None
    assert run.code.result.error is error
    assert not run.code.waiting


@types.coroutine
def yielding(value: object) -> Generator[object, Any, Any]:
    return (yield value)


async def rest() -> None:
    await asyncio.sleep(0)


async def await_future() -> None:
    loop = asyncio.new_event_loop()
    try:
        await loop.create_future()
    finally:
        loop.close()


async def await_object() -> None:
    await yielding(object())


@each((rest, "the event loop"), (await_future, "Future"), (await_object, "object"))
def test_waiting_for_anything_else_is_explained(
    code: Callable[[], Coroutine[Any, Any, Any]], named: str
) -> None:
    with pytest.raises(
        UnrecordedAwaitError, match=f"awaited {named}, which cannot be recorded: use"
    ):
        _ = Run(code()).result


def test_branches_run_in_their_order_until_each_waits() -> None:
    async def branch(name: str) -> Any:
        await do(f"{name}1")
        return await wait(f"{name}2")

    async def code() -> Any:
        await do("first")
        return await gather(branch("a"), branch("b"))

    run = Run(code())
    assert run.asked == [
        "0 patch(first)",
        "1.0.0 patch(a1)",
        "1.0.1 signal(a2)",
        "1.1.0 patch(b1)",
        "1.1.1 signal(b2)",
    ]
    run.give("b2", 2)
    assert run.code.result is None
    run.give("a2", 1)
    assert run.result == [1, 2]


def test_fork_of_nothing_is_empty_or_refused() -> None:
    async def code() -> Any:
        return [await gather(), await do("after")]

    run = Run(code())
    assert run.result == [[], "after"]
    assert run.asked == ["1 patch(after)"]

    with pytest.raises(UsageError, match="needs something to wait for"):
        _ = Run(awaiting(select())).result


def test_first_of_a_choice_wins() -> None:
    run = Run(awaiting(select(a=wait("a"), b=wait("b"), c=wait("c"))))
    run.give("b", 2)
    assert run.result == ("b", 2)
    assert run.withdrawn == ["a", "c"]
    assert not run.code.waiting

    run = Run(awaiting(select(a=do("a"), b=do("b"))))
    assert run.result == ("a", "a")
    assert run.asked == ["0.0.0 patch(a)"]


def test_branch_error_cancels_others_or_is_returned() -> None:
    async def code() -> Any:
        try:
            await gather(wait("a"), wait("b"))
        except KeyError:
            return await wait("c")

    run = Run(code())
    run.give("b", error=KeyError())
    assert (run.withdrawn, run.waiting) == (["a"], ["c"])
    run.give("c", 3)
    assert run.result == 3
    error = KeyError()

    run = Run(awaiting(gather(wait("a"), wait("b"), keeps_errors=True)))
    run.give("a", error=error)
    run.give("b", 2)
    assert run.result == [error, 2]


@each(False, True)
def test_base_exception_in_branch_ends_coroutine(keeps_errors: bool) -> None:
    async def leave() -> None:
        await wait("a")
        raise KeyboardInterrupt

    async def code() -> None:
        try:
            await gather(leave(), wait("b"), keeps_errors=keeps_errors)
        except Exception:
            await wait("never")

    run = Run(code())
    run.give("a")
    assert run.withdrawn == ["b"]
    with pytest.raises(KeyboardInterrupt):
        _ = run.result


def test_branches_within_branches() -> None:
    async def inner(name: str) -> Any:
        return await gather(wait(f"{name}1"), wait(f"{name}2"))

    run = Run(awaiting(select(a=inner("a"), b=inner("b"))))
    assert run.waiting == ["a1", "a2", "b1", "b2"]
    assert [*run.code.waiting] == [
        (0, 0, 0, 0, 0),
        (0, 0, 0, 1, 0),
        (0, 1, 0, 0, 0),
        (0, 1, 0, 1, 0),
    ]
    run.give("b1", 1)
    run.give("b2", 2)
    assert run.result == ("b", [1, 2])
    assert run.withdrawn == ["a1", "a2"]


def test_subflow_has_the_position_of_its_step_and_a_scope_of_its_own() -> None:
    scopes: list[object] = []

    async def inner() -> Any:
        scopes.append(run.code.current.scope)
        await wait("a")
        return await gather(deeper())

    async def deeper() -> Any:
        scopes.append(run.code.current.scope)
        return await wait("b")

    async def code() -> Any:
        await wait("start")
        result = await ParallelBranches([inner()], scope="sub")
        scopes.append(run.code.current.scope)
        return result

    run = Run(code(), "main")
    run.give("start")
    run.give("a")
    run.give("b", 5)
    assert run.result == [5]
    assert run.asked == ["0 signal(start)", "1.0 signal(a)", "1.1.0.0 signal(b)"]
    assert scopes == ["sub", "sub", "main"]


def test_branch_that_is_dropped_is_closed() -> None:
    seen: list[str] = []

    async def tidy() -> None:
        try:
            await wait("a")
        finally:
            seen.append("closed")

    async def code() -> Any:
        result = await select(a=tidy(), b=wait("b"))
        seen.append("after")
        return result

    run = Run(code())
    run.give("b", 1)
    assert run.result == ("b", 1)
    assert seen == ["closed", "after"]


def test_branch_that_is_dropped_may_not_wait() -> None:
    async def clinging() -> None:
        try:
            await wait("a")
        finally:
            await wait("late")

    run = Run(awaiting(select(a=clinging(), b=wait("b"))))
    run.give("b", 1)
    assert run.result == ("b", 1)
    assert run.asked == ["0.0.0 signal(a)", "0.1.0 signal(b)"]


def test_branch_that_swallows_cancellation_is_closed() -> None:
    async def deaf() -> str:
        try:
            await wait("a")
        except GeneratorExit:
            return "still here"
        return "done"

    async def stubborn() -> None:
        try:
            await wait("a")
        except GeneratorExit:
            await wait("c")

    run = Run(awaiting(select(a=deaf(), b=wait("b"), c=stubborn())))
    run.give("b", 1)
    assert run.result == ("b", 1)
    assert run.withdrawn == ["a", "a"]


def test_error_during_branch_cleanup_is_ignored() -> None:
    async def angry() -> None:
        try:
            await wait("a")
        finally:
            raise ValueError

    run = Run(awaiting(select(a=angry(), b=wait("b"))))
    run.give("b", 1)
    assert run.result == ("b", 1)


def test_branch_that_is_ready_does_not_run_after_it_was_dropped() -> None:
    async def fails() -> None:
        await wait("a")
        raise KeyError

    async def outer() -> Any:
        return await gather(wait("b"))

    async def code() -> Any:
        try:
            return await gather(fails(), outer())
        except KeyError:
            return "failed"

    run = Run(code())
    run.give("a")
    assert run.result == "failed"
    assert run.withdrawn == ["b"]


def test_closing_ends_every_branch() -> None:
    seen: list[str] = []

    async def tidy(name: str) -> None:
        try:
            await wait(name)
        finally:
            seen.append(name)

    async def code() -> None:
        try:
            await gather(tidy("a"), gather_more())
        finally:
            seen.append("root")

    async def gather_more() -> None:
        await gather(tidy("b"), tidy("c"))

    run = Run(code())
    run.code.close()
    assert seen == ["a", "b", "c", "root"]
    assert not run.code.waiting
    assert run.withdrawn == []


def test_close_quietly_suppresses_all_errors() -> None:
    async def shouts() -> None:
        try:
            await wait("a")
        finally:
            raise SystemExit

    coroutine = shouts()
    coroutine.send(None)
    close_quietly(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
