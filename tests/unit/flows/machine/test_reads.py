"""Steps that are recorded with the next commit of their flow."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.flows import INJECTED, FlowContext, FlowError, FlowStatus, StoreConnection, flow
from postroad.flows.machine.events import (
    FlowKillRequested,
    FlowPauseRequested,
    FlowResumeRequested,
    FlowRetryRequested,
    SignalReceived,
    StepCompleted,
    StepFailed,
)
from postroad.flows.machine.state_machine import FLOW_RECORDS_MAX
from postroad.flows.machine.values import encode_value
from tests.support.flows.driven import Driven, begun, labels, runs


def look(what: str) -> int:
    raise AssertionError(what)


@flow
async def browse(ctx: FlowContext) -> list[Any]:
    first = await ctx.read(look, "first")
    second = await ctx.read(look, "second")
    third = await ctx.step(look, "third")
    last = await ctx.read.with_options(name="peek")(look, "last")
    return [first, second, third, last]


def test_reads_are_recorded_with_what_follows_them() -> None:
    driven = begun(browse)
    first = driven.tell(StepCompleted((0,), 1))
    assert (first.is_empty, runs(first)) == (True, [(1,)])
    second = driven.tell(StepCompleted((1,), 2))
    # Before the step runs, which may do anything with them.
    assert (second.first, labels(second)) == (0, ["0 step(look)", "1 step(look)"])
    assert runs(second) == [(2,)]
    third = driven.tell(StepCompleted((2,), 3))
    assert (labels(third), runs(third)) == (["2 step(look)"], [(3,)])
    last = driven.tell(StepCompleted((3,), 4))
    assert labels(last) == ["3 step(peek)"]
    assert driven.result == [1, 2, 3, 4]


def test_read_that_was_not_recorded_runs_again() -> None:
    driven = begun(browse)
    driven.tell(StepCompleted((0,), 1))
    assert runs(driven.load()) == [(0,)]
    driven.tell(StepCompleted((0,), 10))
    driven.tell(StepCompleted((1,), 20))
    driven.load()
    driven.tell(StepCompleted((2,), 30))
    driven.load()
    driven.tell(StepCompleted((3,), 40))
    assert driven.result == [10, 20, 30, 40]


@flow
async def listen(ctx: FlowContext) -> list[Any]:
    async def hear() -> list[Any]:
        return [await ctx.wait_for_signal("go", int), await ctx.step(look, "heard")]

    async def see() -> list[Any]:
        return [await ctx.read(look, "one"), await ctx.read(look, "two")]

    return await ctx.gather(hear(), see())


def test_deferred_reads_are_recorded_with_next_entry() -> None:
    driven = begun(listen)
    assert driven.tell(StepCompleted((0, 1, 0), 1)).is_empty
    transition = driven.tell(SignalReceived("go", encode_value(5, "it")))
    assert labels(transition) == ["0.1.0 step(look)", "0.0.0 signal(go)"]
    driven.load()
    driven.tell(StepCompleted((0, 1, 1), 2))
    driven.tell(StepCompleted((0, 0, 1), 3))
    assert driven.result == [[5, 3], [1, 2]]


def test_operators_find_reads_recorded() -> None:
    driven = begun(browse)
    driven.tell(StepCompleted((0,), 1))
    assert driven.machine.has_deferred
    with pytest.raises(UsageError):
        driven.machine.handle(FlowRetryRequested(), driven.now_ms)
    # What could not happen has changed nothing.
    assert driven.machine.has_deferred
    assert labels(driven.tell(FlowPauseRequested())) == ["0 step(look)"]
    driven.tell(FlowResumeRequested())
    driven.load()
    assert [entry.label for entry in driven.records] == ["0 step(look)"]
    assert driven.machine.record_deferred().is_empty
    driven.tell(StepCompleted((1,), 2))
    driven.tell(FlowKillRequested("enough"))
    assert len(driven.records) == 2


def test_reads_that_answer_a_query_are_recorded_for_it() -> None:
    driven = begun(browse)
    driven.tell(StepCompleted((0,), 1))
    transition = driven.machine.record_deferred()
    driven.commit(transition)
    assert labels(transition) == ["0 step(look)"]
    assert not driven.machine.has_deferred
    transition = driven.tell(StepCompleted((1,), 2))
    assert (transition.first, labels(transition)) == (1, ["1 step(look)"])


def test_code_that_waits_for_no_read_has_none_unrecorded() -> None:
    @flow
    async def rest(ctx: FlowContext) -> int:
        seen = await ctx.read(look, "first")
        return seen + await ctx.wait_for_signal("go", int)

    driven = begun(rest)
    assert labels(driven.tell(StepCompleted((0,), 1))) == ["0 step(look)"]


def test_read_that_fails_is_recorded_like_others() -> None:
    @flow
    async def careful(ctx: FlowContext) -> str:
        try:
            await ctx.read(look, "first")
        except FlowError as error:
            return f"{error} {await ctx.read(look, 'second')}"
        return ""

    driven = begun(careful)
    assert driven.tell(StepFailed((0,), FlowError("dark"))).is_empty
    driven.tell(StepCompleted((1,), 2))
    assert driven.result == "dark 2"
    assert driven.records[0].error is not None
    driven = begun(careful)
    driven.tell(StepFailed((0,), LookupError("dark")))
    assert driven.head.status is not FlowStatus.RUNNING
    assert driven.records == []


def test_endless_reading_is_recorded_from_time_to_time() -> None:
    @flow
    async def endless(ctx: FlowContext) -> None:
        while True:
            await ctx.read(look, "more")

    driven: Driven = begun(endless)
    lengths = []
    for number in range(3_000):
        transition = driven.tell(StepCompleted((number,), number))
        if not transition.is_empty:
            lengths.append(len(transition.entries))
    assert lengths
    assert max(lengths) <= FLOW_RECORDS_MAX


def test_read_in_a_transaction_is_refused() -> None:
    def insert(connection: StoreConnection = INJECTED) -> None: ...

    @flow
    async def wrong(ctx: FlowContext) -> None:
        await ctx.read(insert)

    driven = begun(wrong)
    assert driven.head.status is not FlowStatus.COMPLETED
    assert "run it with ctx.step" in driven.trouble
