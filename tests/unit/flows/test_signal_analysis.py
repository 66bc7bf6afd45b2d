"""Which signals the source of a flow says that it asks for."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

from postroad.flows import FlowContext, SyncFlowContext, WrongSignalError, flow
from postroad.flows.machine.values import encode_value
from postroad.flows.signal_analysis import find_signals

ARRIVED = "arrived"


class Parcel(msgspec.Struct):
    weight: int


async def wait_elsewhere(minutes: int, ctx: FlowContext) -> None:
    await ctx.wait_for_signal("elsewhere", float, timeout=minutes * 60)


@flow
async def part(ctx: FlowContext) -> str:
    return await ctx.wait_for_signal("part", str)


@flow
async def whole(ctx: FlowContext, count: int) -> list[Any]:
    """Ask in every way that the source tells."""

    async def wait_within() -> int:
        return await ctx.wait_for_signal("within", int)

    first = await ctx.wait_for_signal(ARRIVED, Parcel)
    # It is a type to msgspec, but not to mypy.
    second = await ctx.wait_for_signal(name="named", type=dict[str, int] | None)  # type: ignore[arg-type]
    await wait_elsewhere(count, ctx)
    await wait_elsewhere(minutes=count, ctx=ctx)
    await ctx.run_subflow(part)
    await part(ctx)
    kind = int
    third = await ctx.wait_for_signal("local type", kind)
    assert str(ctx) != ctx.id
    await ctx.select(one=ctx.wait_for_signal("selected", str), two=ctx.sleep(1))
    return [first, second, third, await wait_within(), await ctx.wait_for_signal("named", str)]


def test_names_and_types_are_found_wherever_the_flow_is_given_to() -> None:
    assert find_signals(whole.function) == {
        "arrived": [Parcel],
        "named": [dict[str, int] | None, str],
        "elsewhere": [float, float],
        "part": [str],
        "local type": [Any],
        "selected": [str],
        "within": [int],
    }
    assert find_signals(part.function) == {"part": [str]}


class Helper:
    def __init__(self, ctx: FlowContext) -> None:
        self.flow = ctx


async def by_variable(ctx: FlowContext, name: str) -> None:
    await ctx.wait_for_signal(name, str)


async def by_alias(ctx: FlowContext) -> None:
    wait = ctx.wait_for_signal
    await wait("x", str)


async def by_object(ctx: FlowContext) -> None:
    await Helper(ctx).flow.wait_for_signal("x", str)


async def by_getattr(ctx: FlowContext) -> None:
    await getattr(ctx, "wait_for_signal")("x", str)  # noqa: B009


async def by_other_name(ctx: FlowContext) -> None:
    other = ctx
    await other.wait_for_signal("x", str)


async def by_partial(ctx: FlowContext) -> None:
    await functools.partial(wait_elsewhere, 1, ctx)()


async def by_lambda(ctx: FlowContext) -> None:
    await (lambda ctx: ctx.wait_for_signal("x", str))(ctx)


async def by_star(ctx: FlowContext) -> None:
    arguments: Any = ["x", str]
    await ctx.wait_for_signal(*arguments)


async def by_list(ctx: FlowContext) -> None:
    await [ctx][0].wait_for_signal("x", str)


async def by_many(*flows: FlowContext) -> None:
    await flows[0].wait_for_signal("x", str)


@functools.wraps(by_variable)
async def by_decorator(ctx: FlowContext) -> None:
    await by_variable(ctx, "x")


@pytest.mark.parametrize(
    "function",
    [
        by_variable, by_alias, by_object, by_getattr, by_other_name, by_partial, by_lambda, by_star,
        by_list, by_many, by_decorator, print, functools.partial(by_alias),
    ],
)  # fmt: skip
def test_signals_of_unreadable_source_are_unknown(function: Any) -> None:
    assert find_signals(function) is None


def test_functions_that_call_each_other_are_looked_into_once() -> None:
    assert find_signals(ping) == {"a": [int], "b": [str]}


async def ping(ctx: FlowContext) -> None:
    await ctx.wait_for_signal("a", int)
    await pong(ctx)


async def pong(ctx: FlowContext) -> None:
    await ctx.wait_for_signal("b", str)
    await ping(ctx)


def test_signal_is_checked_against_awaited_signals() -> None:
    for name, value in [
        ("arrived", Parcel(5)), ("named", None), ("named", "text"), ("elsewhere", 5),
        ("local type", b"?"),
    ]:  # fmt: skip
        whole.check_signal(name, encode_value(value, "it"))
    with pytest.raises(
        WrongSignalError, match="waits for no signal 'arrivedd'; did you mean 'arrived'"
    ):
        whole.check_signal("arrivedd", encode_value(Parcel(5), "it"))
    with pytest.raises(WrongSignalError, match=r"'xyz'\. It waits for: 'part'$"):
        part.check_signal("xyz", b"")
    with pytest.raises(
        WrongSignalError, match=r"'arrived' .* cannot have this value: Expected `int`"
    ):
        whole.check_signal("arrived", encode_value({"weight": "abc"}, "it"))


@flow
def plain(ctx: SyncFlowContext) -> list[Any]:
    first = ctx.wait_for_signal("first", int)
    bound = functools.partial(ctx.wait_for_signal, "bound", str)
    ctx.run_subflow(plain_part)
    return [first, ctx.select(a=bound, b=lambda: ctx.wait_for_signal("inline", float))]


@flow
def plain_part(ctx: SyncFlowContext) -> bool:
    return ctx.wait_for_signal("part", bool)


def test_signals_of_a_def_are_found_also_in_its_branches() -> None:
    assert find_signals(plain.function) == {
        "first": [int], "bound": [str], "part": [bool], "inline": [float],
    }  # fmt: skip
