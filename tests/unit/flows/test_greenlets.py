"""Plain functions that are driven as coroutines are."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Generator
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.flows.greenlets import GreenletCoroutine, wait_for

COLOR: ContextVar[str] = ContextVar("COLOR", default="none")


class Ask:
    """Hands a name to the driver, and returns what comes back."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __await__(self) -> Generator[Ask, Any, Any]:
        return (yield self)


def ask(name: str) -> Any:
    return wait_for(Ask(name))


def sum_of_two() -> int:
    return int(ask("first") + ask("second"))


def finish(coroutine: GreenletCoroutine[Any], value: Any) -> Any:
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(value)
    return stopped.value.value


def test_greenlet_waits_for_commands_and_returns_result() -> None:
    coroutine = GreenletCoroutine(sum_of_two)
    assert coroutine.send(None).name == "first"
    assert coroutine.send(2).name == "second"
    assert finish(coroutine, 3) == 5
    with pytest.raises(RuntimeError, match="cannot reuse"):
        coroutine.send(None)
    coroutine.close()


def test_two_functions_take_turns() -> None:
    first, second = GreenletCoroutine(sum_of_two), GreenletCoroutine(sum_of_two)
    for coroutine in (first, second):
        coroutine.send(None)
    for coroutine in (second, first):
        coroutine.send(1)
    assert (finish(first, 10), finish(second, 20)) == (11, 21)


def test_errors_are_raised_where_the_function_waits() -> None:
    def patient() -> str:
        try:
            return str(ask("first"))
        except LookupError as error:
            return f"{error} {ask('second')}"

    coroutine = GreenletCoroutine(patient)
    coroutine.send(None)
    assert coroutine.throw(LookupError("lost")).name == "second"
    assert finish(coroutine, "found") == "lost found"


def test_errors_of_the_function_reach_the_driver() -> None:
    def fail() -> None:
        ask("first")
        raise KeyError("wrong")

    def stop() -> None:
        raise StopIteration("odd")

    coroutine = GreenletCoroutine(fail)
    coroutine.send(None)
    with pytest.raises(KeyError, match="wrong"):
        coroutine.send(None)
    with pytest.raises(RuntimeError, match="StopIteration"):
        GreenletCoroutine(stop).send(None)


def test_close_runs_finally_blocks() -> None:
    closed: list[str] = []

    def careful() -> None:
        try:
            ask("first")
        finally:
            closed.append("careful")

    def stubborn() -> None:
        try:
            ask("first")
        finally:
            ask("more")

    coroutine = GreenletCoroutine(careful)
    coroutine.close()
    with pytest.raises(GeneratorExit):
        GreenletCoroutine(careful).throw(GeneratorExit())
    assert closed == []
    coroutine = GreenletCoroutine(careful)
    coroutine.send(None)
    coroutine.close()
    assert closed == ["careful"]
    coroutine = GreenletCoroutine(stubborn)
    coroutine.send(None)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        coroutine.close()
    coroutine.close()


def test_greenlet_uses_context_of_its_driver() -> None:
    def paint() -> str:
        before = COLOR.get()
        COLOR.set("green")
        ask("first")
        return f"{before} {COLOR.get()}"

    branch = copy_context()
    branch.run(COLOR.set, "red")
    coroutine = GreenletCoroutine(paint)
    branch.run(coroutine.send, None)
    assert (COLOR.get(), branch[COLOR]) == ("none", "green")
    assert branch.run(finish, coroutine, None) == "red green"


async def test_coroutines_and_functions_wait_for_each_other() -> None:
    async def double(name: str) -> int:
        return int(2 * await Ask(name))

    def inner() -> int:
        return wait_for(double("third")) + wait_for(GreenletCoroutine(sum_of_two))

    async def outer() -> int:
        return await GreenletCoroutine(inner)

    coroutine = GreenletCoroutine(lambda: wait_for(outer()))
    names = [coroutine.send(None).name, coroutine.send(1).name, coroutine.send(2).name]
    assert names == ["third", "first", "second"]
    assert finish(coroutine, 3) == 7


def test_waiting_outside_of_a_function_under_way_is_refused() -> None:
    errors: list[Exception] = []

    def wait() -> None:
        try:
            ask("first")
        except UsageError as error:
            errors.append(error)

    wait()

    def start_thread() -> None:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()

    with pytest.raises(StopIteration):
        GreenletCoroutine(start_thread).send(None)
    assert ["belongs to the code of the flow" in str(error) for error in errors] == [True, True]


def test_unawaited_coroutine_is_rejected() -> None:
    async def double() -> int:
        return 2

    with pytest.raises(UsageError, match="returned a coroutine"):
        GreenletCoroutine(double).send(None)


def test_function_that_has_ended_leaves_nothing_behind() -> None:
    class Big:
        """Something the function holds."""

    alive: list[weakref.ref[Big]] = []

    def hold() -> None:
        big = Big()
        alive.append(weakref.ref(big))
        ask("first")

    def hold_and_close() -> None:
        coroutine = GreenletCoroutine(hold)
        coroutine.send(None)
        coroutine.close()

    for _ in range(3):
        hold_and_close()
    gc.collect()
    assert [each() for each in alive] == [None] * 3


def test_without_greenlet_only_plain_functions_are_refused() -> None:
    program = """
import sys
sys.modules["greenlet"] = None
import postroad.flows
from postroad import SyncFlowContext, flow
from postroad.core.errors import MissingExtraError

@flow
async def works(ctx): ...

try:
    @flow
    def fails(ctx: SyncFlowContext): ...
except MissingExtraError as error:
    print(error.extra, "plain `def`" in str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "sync True\n"
