"""What makes a function a flow, and which ones a node has."""

import datetime
import types
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.flows import (
    FlowContext,
    FlowDefinition,
    FlowSession,
    NondeterminismWarning,
    flow,
    responder,
)
from postroad.flows.definition import FlowRegistry
from postroad.flows.errors import SerializationError
from tests.support.cases import each


class Order(msgspec.Struct):
    number: int


@flow
async def pay(ctx: FlowContext, amount: int, to: str = "beta") -> int:
    """Pays."""
    return amount


@flow(name="shop.buy", version=3, app="shop", concurrency=2, timeout=60)
async def buy(ctx: FlowContext, /, *orders: Order, **when: datetime.date) -> None:
    """Buys."""


@responder(pay, versions=[1, 2])
async def get_paid(ctx: FlowContext, session: FlowSession) -> None:
    """Is paid."""


def test_definition_keeps_its_options() -> None:
    assert (pay.description, get_paid.description) == ("Pays.", "Is paid.")
    schema = pay.arguments_schema()
    assert schema is not None
    assert schema["required"] == ["amount"]
    assert schema["properties"] == {
        "amount": {"type": "integer"},
        "to": {"type": "string", "default": "beta"},
    }
    # Others begin it, or it takes as many as are given.
    assert get_paid.arguments_schema() is None
    assert buy.arguments_schema() is None
    assert (pay.name, pay.version, pay.app) == ("pay", 1, "")
    assert (pay.concurrency, pay.timeout_s, pay.responds_to, pay.versions) == (None,) * 4
    assert (pay.__doc__, pay.__name__) == ("Pays.", "pay")
    assert repr(pay) == "<flow pay version 1>"
    assert pay.result_type is int
    assert (buy.name, buy.version, buy.app) == ("shop.buy", 3, "shop")
    assert (buy.concurrency, buy.timeout_s) == (2, 60)
    assert get_paid.responds_to == "pay"
    assert get_paid.versions == frozenset({1, 2})

    @responder("shop.buy")
    async def sell(ctx: FlowContext, session: FlowSession) -> None:
        """Sells."""

    assert sell.responds_to == "shop.buy"
    assert sell.versions is None
    coroutine = pay(None, 5)  # type: ignore[arg-type]  # Its code does not look at it.
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    assert stop.value.value == 5


async def code(ctx: FlowContext) -> None:
    """Does nothing."""


@each(
    ({"name": "x" * 201}, "1 to 200 characters"),
    ({"name": "a\nb"}, "1 to 200 characters"),
    ({"version": 0}, "version=0 of flow 'code' must be 1 or more"),
    ({"concurrency": 0}, "concurrency=0 of flow 'code' must be 1 or more"),
    ({"timeout": 0}, "timeout=0 of flow 'code' must be above 0"),
    ({"timeout": -1.5}, "timeout=-1.5 of flow 'code' must be above 0"),
    ({"timeout": float("nan")}, "timeout=nan of flow 'code' must be above 0"),
)
def test_settings_that_make_no_sense(facts: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        flow(**facts)(code)


def test_invalid_flow_function_is_rejected_or_warned() -> None:
    def yields(ctx: FlowContext) -> Iterator[None]:
        yield

    async def yields_too(ctx: FlowContext) -> AsyncIterator[None]:
        yield

    for wrong in (yields, yields_too, "pay"):
        with pytest.raises(UsageError, match="a flow is an `async def` or a `def` function"):
            flow(wrong)  # type: ignore[arg-type]  # That is the mistake.
    import time

    async def hasty(ctx: FlowContext) -> float:
        return time.time()

    with pytest.warns(NondeterminismWarning, match=r"ctx\.now") as warned:
        flow(hasty)
    assert len(warned) == 1


def through(definition: FlowDefinition[..., Any], *args: Any, **kwargs: Any) -> Any:
    return definition.decode_arguments(definition.encode_arguments(args, kwargs))


def test_arguments_come_back_as_the_types_of_their_parameters() -> None:
    assert through(pay, 5) == ([5], {})
    assert through(pay, to="gamma", amount=5) == ([5, "gamma"], {})
    day = datetime.date(2026, 3, 1)
    args, kwargs = through(buy, Order(1), Order(2), due=day)
    assert [*args] == [Order(1), Order(2)]
    assert kwargs == {"due": day}

    @flow
    async def named(
        ctx: FlowContext, first: int, *, order: Order, many: tuple[int, ...] = ()
    ) -> None:
        """Takes an order."""

    assert through(named, 1, order=Order(7), many=(1, 2)) == (
        [1],
        {"order": Order(7), "many": (1, 2)},
    )

    @flow
    async def vague(flow, first, second: "Nowhere"):  # type: ignore[no-untyped-def, name-defined] # noqa: F821
        """Takes anything."""

    assert through(vague, (1, 2), "x") == ([[1, 2], "x"], {})


@each(
    ((), {}, "missing a required argument: 'amount'"),
    ((1, "b", 3), {}, "too many positional arguments"),
    ((1,), {"from_": "x"}, "unexpected keyword argument 'from_'"),
)
def test_arguments_that_do_not_fit(
    args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=f"flow 'pay': .*{reason}"):
        pay.encode_arguments(args, kwargs)


def test_arguments_that_cannot_be_written_or_read_are_refused() -> None:
    with pytest.raises(SerializationError, match="an argument of flow 'pay' cannot be serialized"):
        pay.encode_arguments((object(),), {})
    encoded = pay.encode_arguments(("five",), {})
    with pytest.raises(msgspec.ValidationError):
        pay.decode_arguments(encoded)


def test_registry_finds_flows_of_a_list_or_module() -> None:
    registry = FlowRegistry([pay, buy, get_paid])
    assert registry.find("shop.buy") is buy
    assert registry.find("buy") is None
    assert registry.find_responder("pay") is get_paid
    assert registry.find_responder("get_paid") is None
    assert [*registry] == [pay, buy, get_paid]
    module = types.ModuleType("flows_of_somebody")
    vars(module).update(pay=pay, again=pay, other=7, buy=buy)
    assert {*FlowRegistry(module)} == {pay, buy}


def test_registry_refuses_names_and_responders_that_clash() -> None:
    @flow(name="pay")
    async def other(ctx: FlowContext) -> None:
        """Pays, too."""

    with pytest.raises(ConfigError, match="two flows are called 'pay'"):
        FlowRegistry([pay, other])

    @responder(pay)
    async def respond(ctx: FlowContext, session: FlowSession) -> None:
        """Is paid, too."""

    with pytest.raises(ConfigError, match="'respond' and 'get_paid' both respond to 'pay'"):
        FlowRegistry([get_paid, respond])
    with pytest.raises(UsageError, match="is no flow: decorate it with @flow or @responder"):
        FlowRegistry([code])  # type: ignore[list-item]  # That is the mistake.
