"""Which signals the source of a flow says that it asks for."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

from postroad.flows import Flow, WrongSignal, flow
from postroad.flows.awaited_signals import find_signals
from postroad.flows.values import encode

ARRIVED = "arrived"


class Parcel(msgspec.Struct):
    weight: int


async def wait_elsewhere(minutes: int, flow: Flow) -> None:
    await flow.signal("elsewhere", float, timeout=minutes * 60)


@flow
async def part(flow: Flow) -> str:
    return await flow.signal("part", str)


@flow
async def whole(flow: Flow, count: int) -> list[Any]:
    """Ask in every way that the source tells."""

    async def wait_within() -> int:
        return await flow.signal("within", int)

    first = await flow.signal(ARRIVED, Parcel)
    # It is a type to msgspec, but not to mypy.
    second = await flow.signal(name="named", type=dict[str, int] | None)  # type: ignore[arg-type]
    await wait_elsewhere(count, flow)
    await wait_elsewhere(minutes=count, flow=flow)
    await flow.call(part)
    await part(flow)
    kind = int
    third = await flow.signal("local type", kind)
    assert str(flow) != flow.id
    await flow.select(one=flow.signal("selected", str), two=flow.sleep(1))
    return [first, second, third, await wait_within(), await flow.signal("named", str)]


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
    def __init__(self, flow: Flow) -> None:
        self.flow = flow


async def by_variable(flow: Flow, name: str) -> None:
    await flow.signal(name, str)


async def by_alias(flow: Flow) -> None:
    wait = flow.signal
    await wait("x", str)


async def by_object(flow: Flow) -> None:
    await Helper(flow).flow.signal("x", str)


async def by_getattr(flow: Flow) -> None:
    await getattr(flow, "signal")("x", str)  # noqa: B009


async def by_other_name(flow: Flow) -> None:
    other = flow
    await other.signal("x", str)


async def by_partial(flow: Flow) -> None:
    await functools.partial(wait_elsewhere, 1, flow)()


async def by_lambda(flow: Flow) -> None:
    await (lambda flow: flow.signal("x", str))(flow)


async def by_star(flow: Flow) -> None:
    given: Any = ["x", str]
    await flow.signal(*given)


async def by_list(flow: Flow) -> None:
    await [flow][0].signal("x", str)


async def by_many(*flows: Flow) -> None:
    await flows[0].signal("x", str)


@functools.wraps(by_variable)
async def by_decorator(flow: Flow) -> None:
    await by_variable(flow, "x")


@pytest.mark.parametrize(
    "function",
    [
        by_variable, by_alias, by_object, by_getattr, by_other_name, by_partial, by_lambda, by_star,
        by_list, by_many, by_decorator, print, functools.partial(by_alias),
    ],
)  # fmt: skip
def test_where_the_source_does_not_tell_nothing_is_said(function: Any) -> None:
    assert find_signals(function) is None


def test_functions_that_call_each_other_are_looked_into_once() -> None:
    assert find_signals(ping) == {"a": [int], "b": [str]}


async def ping(flow: Flow) -> None:
    await flow.signal("a", int)
    await pong(flow)


async def pong(flow: Flow) -> None:
    await flow.signal("b", str)
    await ping(flow)


def test_a_signal_is_checked_against_what_the_code_asks_for() -> None:
    for name, value in [
        ("arrived", Parcel(5)), ("named", None), ("named", "text"), ("elsewhere", 5),
        ("local type", b"?"),
    ]:  # fmt: skip
        whole.check_signal(name, encode(value, "it"))
    with pytest.raises(WrongSignal, match="asks for no signal 'arrivedd'; did you mean 'arrived'"):
        whole.check_signal("arrivedd", encode(Parcel(5), "it"))
    with pytest.raises(WrongSignal, match=r"'xyz'\. It asks for: 'part'$"):
        part.check_signal("xyz", b"")
    with pytest.raises(WrongSignal, match=r"'arrived' .* cannot have this value: Expected `int`"):
        whole.check_signal("arrived", encode({"weight": "abc"}, "it"))
