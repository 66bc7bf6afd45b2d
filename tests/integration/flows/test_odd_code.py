"""Code that does what code should not: the flow suffers, and nobody else."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowError,
    FlowSession,
    FlowStatus,
    StepId,
    flow,
    responder,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.flows.nodes import FlowNodes


class Fussy(FlowError):
    """Cannot be made again from its arguments."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"because {reason}")


@flow
async def fine(ctx: FlowContext) -> str:
    return await ctx.step(str, "fine")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_code_cannot_end_the_process(nodes: FlowNodes, error: type[BaseException]) -> None:
    @flow
    async def exits(ctx: FlowContext) -> None:
        await ctx.step(str, 1)
        raise error("from the code")

    alpha = await nodes.start("alpha", exits, fine)
    handle = await alpha.begin(exits)
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert parked.error == f"{error.__name__}: from the code"
    assert await alpha.run(fine) == "fine"


async def test_a_function_that_is_cancelled_from_within(nodes: FlowNodes) -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    @flow
    async def cancelled(ctx: FlowContext) -> None:
        await ctx.step(give_up)

    alpha = await nodes.start("alpha", cancelled, fine)
    handle = await alpha.begin(cancelled)
    parked = await alpha.until(handle.id, FlowStatus.PARKED)
    assert "cancelled" in str(parked.error)
    assert await alpha.run(fine) == "fine"


async def test_code_that_catches_everything(nodes: FlowNodes) -> None:
    @flow
    async def greedy(ctx: FlowContext) -> str:
        try:
            return await ctx.wait_for_signal("go", str)
        except BaseException as error:
            # It wants to say something else, whatever happens to it.
            caught.append(type(error).__name__)
            return "caught"

    caught: list[str] = []
    alpha = await nodes.start("alpha", greedy, fine)
    first, second = await alpha.begin(greedy), await alpha.begin(greedy)
    await alpha.flows.admin.pause(first.id)
    await alpha.flows.admin.kill(second.id)
    await alpha.restart_flows()
    await alpha.flows.admin.resume(first.id)
    await alpha.flows.signal(first.id, "go", "went")
    assert await alpha.result(first.id) == "went"
    assert set(caught) <= {"GeneratorExit"}
    assert await alpha.run(fine) == "fine"


async def test_two_branches_receive_in_one_session(nodes: FlowNodes) -> None:
    @flow
    async def share(ctx: FlowContext, peer: str) -> list[int]:
        session = ctx.open_session(peer)
        await session.send(4)
        return sorted(await ctx.gather(*(session.receive(int) for _ in range(4))))

    @responder(share)
    async def count(ctx: FlowContext, session: FlowSession) -> None:
        for number in range(await session.receive(int)):
            await session.send(number)

    alpha, _ = await nodes.pair(share, count)
    assert await alpha.run(share, "beta") == [0, 1, 2, 3]


async def test_sessions_opened_by_branches_stay_apart(nodes: FlowNodes) -> None:
    @flow
    async def spread(ctx: FlowContext, peer: str) -> list[int]:
        async def one(number: int) -> int:
            await ctx.step(later, number)
            session = ctx.open_session(peer)
            await ctx.step(later, -number)
            doubled = await session.send_and_receive(number, int)
            await ctx.sleep(0.001)
            return await session.send_and_receive(doubled, int)

        return await ctx.gather(*(one(number) for number in range(8)))

    async def later(number: int) -> None:
        await asyncio.sleep(0.002 * (number % 3))

    @responder(spread)
    async def double(ctx: FlowContext, session: FlowSession) -> None:
        for _ in range(2):
            await session.send(2 * await session.receive(int))

    alpha, beta = await nodes.pair(spread, double)
    handle = await alpha.begin(spread, "beta")
    await alpha.until_steps(handle.id, 10)
    await alpha.restart_flows()
    assert await alpha.result(handle.id) == [4 * number for number in range(8)]
    await beta.until_listed("double", FlowStatus.COMPLETED, 8)


async def test_a_subflow_that_calls_itself(nodes: FlowNodes) -> None:
    @flow
    async def factorial(ctx: FlowContext, number: int) -> int:
        if number == 0:
            return 1
        below: int = await ctx.run_subflow(factorial, number - 1)
        return await ctx.step.with_options(name=f"times {number}")(lambda: number * below)

    alpha, handle = await nodes.begin(factorial, 12)
    assert await handle.result(DEADLINE_S) == 479001600
    history = await alpha.flows.admin.history(handle.id)
    assert history[0].place == ".".join("0" * 11 + "1") and history[-1].place == "1"


async def test_errors_of_a_subflow_can_be_caught(nodes: FlowNodes) -> None:
    @flow
    async def part(ctx: FlowContext, peer: str) -> None:
        session = ctx.open_session(peer)
        await session.send("x")
        await ctx.sleep(0.001)
        raise FlowError("only this part")

    @flow
    async def whole(ctx: FlowContext, peer: str) -> str:
        try:
            await ctx.run_subflow(part, peer)
        except FlowError as error:
            return f"lives on after: {error}"
        return ""

    @responder(part)
    async def partner(ctx: FlowContext, session: FlowSession) -> str:
        await session.receive(str)
        try:
            await session.receive(str)
        except FlowError as error:
            return type(error).__name__
        return ""

    alpha, beta = await nodes.pair(whole, partner)
    assert (await alpha.run(whole, "beta")).startswith("lives on after: ")
    (partnering,) = await beta.until_listed("partner", FlowStatus.COMPLETED)
    # The flow as a whole has finished well.
    assert await beta.result(partnering.id) == "SessionEndedError"


async def test_context_methods_reject_bad_arguments(nodes: FlowNodes) -> None:
    @flow
    async def clumsy(ctx: FlowContext) -> list[str]:
        async def sleep_back() -> None:
            await ctx.sleep(-1)

        async def open_nobody() -> None:
            ctx.open_session("")

        async def send_a_file() -> None:
            await ctx.open_session("beta").send(object())

        seen = []
        for attempt in (sleep_back, open_nobody, send_a_file):
            try:
                await attempt()
            except (ConfigError, UsageError, TypeError, ValueError) as error:
                seen.append(str(error))
        return [*seen, await ctx.step(str, "after")]

    asleep, nobody, file, after = await nodes.run(clumsy)
    assert "-1 must be a number of seconds" in asleep
    assert nobody
    assert "what is sent to beta cannot be serialized" in file
    assert after == "after"


async def test_continue_as_new_of_responder_parks(nodes: FlowNodes) -> None:
    @flow
    async def ask(ctx: FlowContext, peer: str) -> str:
        return await ctx.open_session(peer).send_and_receive("x", str)

    @responder(ask)
    async def again(ctx: FlowContext, session: FlowSession) -> None:
        try:
            ctx.continue_as_new(await session.receive(str))
        except UsageError as error:
            await session.send(str(error))

    alpha, _ = await nodes.pair(ask, again)
    text = await alpha.run(ask, "beta")
    assert "flow again responds to another one, and cannot continue as new" in text


async def test_a_step_runs_another_flow_and_waits_for_it(nodes: FlowNodes) -> None:
    async def run_fine(step_id: StepId = INJECTED) -> str:
        # Once, however often this function is called.
        handle = await alpha.flows.start_flow_with_id(step_id, fine)
        return await handle.result(DEADLINE_S)

    @flow
    async def outer(ctx: FlowContext) -> str:
        return await ctx.step(run_fine)

    alpha = await nodes.start("alpha", fine, outer)
    assert await alpha.run(outer) == "fine"


async def test_query_error_reaches_only_its_caller(nodes: FlowNodes) -> None:
    @flow
    async def wait(ctx: FlowContext) -> int:
        ctx.set_query_handler("bad", lambda: 1 // 0)
        return await ctx.wait_for_signal("go", int)

    alpha, handle = await nodes.begin(wait)
    with pytest.raises(ZeroDivisionError):
        await alpha.flows.query(handle.id, "bad")
    await alpha.flows.signal(handle.id, "go", 1)
    assert await handle.result(DEADLINE_S) == 1


async def test_values_and_errors_that_are_hard_to_write_down(nodes: FlowNodes) -> None:
    def fail_twice() -> None:
        raise ExceptionGroup("several", [ValueError("a"), KeyError("b")])

    def fail_oddly() -> None:
        raise ValueError("half of a character: \ud800")

    @flow
    async def work(ctx: FlowContext) -> list[str]:
        ctx.set_progress("half of a character: \ud800")
        seen = []
        for function in (lambda: "\ud800", lambda: 1 << 70, fail_twice, fail_oddly):
            try:
                await ctx.step.with_options(name="odd")(function)
            except Exception as error:
                seen.append(type(error).__name__)
        return seen

    seen = await nodes.run(work)
    assert seen[:3] == ["SerializationError", "SerializationError", "StepFailedError"]
    assert seen[3] in ("ValueError", "StepFailedError")


async def test_a_flow_error_that_cannot_be_made_again_is_still_one(nodes: FlowNodes) -> None:
    def fuss() -> None:
        raise Fussy(reason="of the step")

    @flow
    async def fail_in_step(ctx: FlowContext) -> None:
        await ctx.step(fuss)

    @flow
    async def fail_in_code(ctx: FlowContext) -> None:
        await ctx.step(str, 1)
        raise Fussy(reason="of the code")

    alpha = await nodes.start("alpha", fail_in_step, fail_in_code)
    for definition, text in ((fail_in_step, "of the step"), (fail_in_code, "of the code")):
        handle = await alpha.begin(definition)
        with pytest.raises(FlowError, match=f"because {text}"):
            await handle.result(DEADLINE_S)
        assert (await alpha.flows.admin.show(handle.id)).status is FlowStatus.FAILED


async def test_a_session_of_another_flow_cannot_be_used(nodes: FlowNodes) -> None:
    lent: list[FlowSession] = []

    @flow
    async def lends(ctx: FlowContext) -> str:
        ctx.open_session("alpha")
        session = ctx.open_session("alpha")
        await session.send("lent")
        lent.append(session)
        await ctx.wait_for_signal("go", bool)
        return await session.receive(str)

    @responder(lends)
    async def echoes(ctx: FlowContext, session: FlowSession) -> None:
        await session.send(await session.receive(str))

    @flow
    async def borrows(ctx: FlowContext) -> list[str]:
        errors = []
        for use in (lent[0].send("stolen"), lent[0].receive(str), lent[0].close()):
            try:
                await use
            except UsageError as error:
                errors.append(str(error))
        return errors

    alpha = await nodes.start("alpha", lends, echoes, borrows, fine)
    handle = await alpha.begin(lends)
    errors = await alpha.run(borrows)
    assert len(errors) == 3
    assert all("another flow or an earlier run opened it" in error for error in errors)
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == "lent"
    assert await alpha.run(fine) == "fine"


@pytest.mark.parametrize("depth", [50, 1_200])
async def test_subflows_within_subflows(nodes: FlowNodes, depth: int) -> None:
    @flow
    async def deep(ctx: FlowContext, depth_left: int) -> int:
        if depth_left == 0:
            await ctx.wait_for_signal("go", bool)
            return await ctx.step(int, 7)
        return await ctx.run_subflow(deep, depth_left - 1)

    alpha, handle = await nodes.begin(deep, depth)
    await alpha.restart_flows()
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == 7


async def test_an_object_that_can_be_called_and_not_hashed(nodes: FlowNodes) -> None:
    @dataclasses.dataclass
    class Adder:
        amount: int

        def __call__(self, number: int) -> int:
            return number + self.amount

    @flow
    async def adds(ctx: FlowContext) -> list[object]:
        return [
            await ctx.step(Adder(3), 4),
            await ctx.step.with_options(name="more")(Adder(4), 4),
        ]

    alpha, handle = await nodes.begin(adds)
    assert await alpha.result(handle.id) == [7, 8]
    assert [step.name for step in await alpha.flows.admin.history(handle.id)][1:] == ["more"]
