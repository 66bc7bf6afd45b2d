"""What the code of a flow works with."""

import functools
import random
import uuid
from typing import Any

from postroad.flows import FlowContext, FlowStatus, flow
from postroad.flows.machine.events import FlowAdmitted, StepCompleted
from tests.support.cases import each
from tests.support.flows.driven import Driven, begun, labels


def work(number: int = 0) -> int:
    return number


class Worker:
    def __call__(self) -> int:
        return 1


def outcome(body: Any) -> str:
    """What becomes of a flow that does something wrong."""
    driven = begun(flow(body))
    assert driven.head.status is FlowStatus.PARKED
    assert driven.said == []
    return driven.trouble


@each(-1, float("nan"), float("inf"), 1e12)
def test_times_that_are_none(seconds: float) -> None:
    async def sleeps(ctx: FlowContext) -> None:
        await ctx.sleep(seconds)

    async def receives(ctx: FlowContext) -> None:
        await ctx.wait_for_signal("go", int, timeout=seconds)

    assert "must be a number of seconds" in outcome(sleeps)
    assert "must be a number of seconds" in outcome(receives)


def test_faulty_calls_park_the_flow() -> None:
    async def opens(ctx: FlowContext) -> None:
        ctx.open_session("no such/name")

    assert "no such/name" in outcome(opens)

    async def sends(ctx: FlowContext) -> None:
        await ctx.open_session("beta").send("x" * 101)

    driven = begun(flow(sends), settings={"payload_max": 100})
    assert "cannot send 103 bytes to beta: the limit is 100" in driven.trouble
    assert driven.said == []

    async def sends_object(ctx: FlowContext) -> None:
        await ctx.open_session("beta").send(object())

    assert "what is sent to beta cannot be serialized" in outcome(sends_object)

    async def receives(ctx: FlowContext) -> None:
        session = ctx.open_session("beta")
        await ctx.receive_all([session, session], int)

    assert "got a session twice" in outcome(receives)


def test_session_commands_without_sessions_send_nothing() -> None:
    @flow
    async def nobody(ctx: FlowContext) -> list[int]:
        await ctx.send_all({})
        return await ctx.receive_all([], int)

    driven = Driven(nobody)
    assert labels(driven.tell(FlowAdmitted())) == []
    assert driven.result == []

    @flow
    async def shy(ctx: FlowContext) -> str:
        return ctx.open_session("beta").peer

    driven = begun(shy)
    assert (driven.result, driven.said) == ("beta", [])

    @flow
    async def shows(ctx: FlowContext) -> str:
        return repr(ctx.open_session("beta"))

    assert begun(shows).result == "<FlowSession 1 with beta fresh>"


@each((work, "work"), (functools.partial(work, 1), "work"), (Worker(), "Worker"), (len, "len"))
def test_steps_are_called_as_their_functions_whenever_they_run(function: Any, name: str) -> None:
    @flow
    async def steps(ctx: FlowContext) -> None:
        await ctx.step(function)

    driven = begun(steps)
    (label,) = driven.waiting
    assert name in label
    assert "0x" not in label


def test_context_and_step_names() -> None:
    @flow
    async def steps(ctx: FlowContext) -> None:
        await ctx.step.with_options(name="other")(work)

    assert begun(steps).waiting == ["0 step(other)"]

    @flow(name="shop.buy", version=3)
    async def buy(ctx: FlowContext) -> list[Any]:
        return [ctx.id, ctx.name, ctx.version, repr(ctx)]

    assert begun(buy).result == [
        "0000000000000009",
        "shop.buy",
        3,
        "<FlowContext of shop.buy 0000000000000009>",
    ]


def test_random_numbers_and_uuids_derive_from_seed() -> None:
    @flow
    async def draws(ctx: FlowContext) -> list[Any]:
        assert isinstance(ctx.random(), random.Random)
        return [ctx.random().random(), ctx.random().random(), ctx.uuid(), ctx.uuid()]

    first, again, other = begun(draws), begun(draws), begun(draws, seed=b"f" * 16)
    assert first.result == again.result
    assert len({*map(str, first.result), *map(str, other.result)}) == 8
    assert uuid.UUID(first.result[2]).version == 4


def test_answers_are_there_for_queries() -> None:
    @flow
    async def asked(ctx: FlowContext) -> None:
        seen = [1]
        ctx.set_query_handler("seen", lambda: list(seen))
        await ctx.step(work)
        seen.append(2)
        await ctx.step(work)

    driven = begun(asked)
    driven.tell(StepCompleted((0,), 0))
    driven.load()
    assert driven.flow is not None
    assert driven.flow.query_handlers["seen"]() == [1, 2]
