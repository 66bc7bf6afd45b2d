"""Methods as handlers: how params are checked and handed over."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from postroad.core.errors import ConfigError
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import ValidationError
from postroad.services.method_params import MethodHandler
from postroad.services.service import Service, action
from tests.support.cases import each

BROKER = Broker("near")


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclass
class Size:
    width: int


class Named(TypedDict):
    name: str


def plain(ctx: Context) -> Any:
    return ctx.params


def one(ctx: Context, a: int) -> Any:
    return a


def untyped(ctx, a, b=5):  # type: ignore[no-untyped-def]
    return a, b


def defaults(ctx: Context, a: int = 1, b: str | None = None) -> Any:
    return a, b


def keywords(ctx: Context, a: int = 1, *, b: str, c: int = 3) -> Any:
    return a, b, c


def only_keywords(ctx: Context, *, b: str) -> Any:
    return b


def positional(ctx: Context, a: int, /, b: int = 2) -> Any:
    return a, b


def constrained(ctx: Context, a: Annotated[int, msgspec.Meta(ge=1, le=5)]) -> Any:
    return a


def chosen(ctx: Context, a: Literal["x", "y"] = "x") -> Any:
    return a


def either(ctx: Context, a: int | str) -> Any:
    return a


def changeable(ctx: Context, a: list[int] = [], b: dict[str, int] = {}) -> Any:  # noqa: B006
    a.append(1)
    b["x"] = len(a)
    return a, b


def whole(ctx: Context, params: Point) -> Any:
    return params


def whole_dataclass(ctx: Context, params: Size) -> Any:
    return params


def whole_dict(ctx: Context, params: Named) -> Any:
    return params


def whole_list(ctx: Context, params: list[int]) -> Any:
    return params


def nested(ctx: Context, at: Point, when: datetime | None = None) -> Any:
    return at, when


async def later(ctx: Context, a: int) -> Any:
    return a


def run(method: Callable[..., Any], params: Any, schema: Any = None, **options: Any) -> Any:
    handler = MethodHandler(method, schema, place="some.action", **options)
    return handler.run(Context(BROKER, params=params, node_id="caller"))


@each(
    (plain, {"a": 1}, {"a": 1}),
    (plain, [1], [1]),
    (one, {"a": 1, "more": 2}, 1),
    (untyped, {"a": None}, (None, 5)),
    (defaults, {}, (1, None)),
    (defaults, None, (1, None)),
    (defaults, {"a": 2, "b": "x"}, (2, "x")),
    (keywords, {"b": "x"}, (1, "x", 3)),
    (keywords, {"b": "x", "a": 5, "c": 6}, (5, "x", 6)),
    (only_keywords, {"b": "x"}, "x"),
    (positional, {"a": 1}, (1, 2)),
    (constrained, {"a": 5}, 5),
    (chosen, {"a": "y"}, "y"),
    (either, {"a": "text"}, "text"),
    (either, {"a": 5}, 5),
    (whole, {"x": 1}, Point(1)),
    (whole, Point(3, 4), Point(3, 4)),
    (whole_dataclass, {"width": 1}, Size(1)),
    (whole_dict, {"name": "n"}, {"name": "n"}),
    (whole_list, [1, 2], [1, 2]),
    (nested, {"at": {"x": 1}}, (Point(1), None)),
)
def test_params_are_handed_over(method: Callable[..., Any], params: Any, result: Any) -> None:
    assert run(method, params) == result


@each(
    (one, {}, "a", "required"),
    (one, {"a": "1"}, "a", "number"),
    (one, {"a": None}, "a", "number"),
    (one, {"a": 1.5}, "a", "number"),
    (one, [1], None, "object"),
    (one, "text", None, "object"),
    (keywords, {"a": 1}, "b", "required"),
    (constrained, {"a": 6}, "a", "number"),
    (chosen, {"a": "z"}, "a", "invalid"),
    (either, {"a": []}, "a", "number"),
    (whole, {"y": 1}, "x", "required"),
    (whole, None, "x", "required"),
    (whole_list, {}, None, "array"),
    (nested, {"at": {"x": "one"}}, "at.x", "number"),
)
def test_params_are_refused(
    method: Callable[..., Any], params: Any, field: str | None, type: str
) -> None:
    with pytest.raises(ValidationError, match="Parameters validation error!") as caught:
        run(method, params)
    (problem,) = caught.value.data
    assert (problem.get("field"), problem["type"]) == (field, type)
    assert (problem["nodeID"], problem["action"]) == ("caller", "some.action")


async def test_handler_knows_its_defaults_and_kind() -> None:
    handler = MethodHandler(changeable, None, place="some.action")
    for _ in range(2):
        assert handler.run(Context(BROKER, params={})) == ([1], {"x": 1})
    assert MethodHandler(one, None, place="x").is_plain
    handler = MethodHandler(later, None, place="x")
    assert not handler.is_plain
    assert await handler.run(Context(BROKER, params={"a": 1})) == 1


def test_schema_of_the_original() -> None:
    schema = {"limit": {"type": "number", "optional": True, "default": 10}}
    assert run(plain, {}, schema) == {"limit": 10}
    assert run(plain, {"limit": 5}, schema) == {"limit": 5}
    with pytest.raises(ValidationError) as caught:
        run(plain, {"limit": "x"}, schema)
    assert caught.value.data[0]["type"] == "number"
    assert run(plain, {"limit": "x"}, schema, validates=False) == {"limit": "x"}


def many(ctx: Context, *args: int) -> None: ...
def any_names(ctx: Context, **names: int) -> None: ...
def without() -> None: ...
def by_name(*, ctx: Context) -> None: ...
def unknown(ctx: Context, a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@each(
    (many, None, r"\*args: 'int' cannot be filled|\*args: int cannot be filled"),
    (any_names, None, r"\*\*names: int cannot be filled"),
    (without, None, "takes a context first"),
    (by_name, None, "takes a context first"),
    (unknown, None, "a type hint cannot be read: name 'Nowhere'"),
    (one, {"a": "number"}, "from a schema or from type hints, not both"),
    (plain, {"a": "nonsense"}, "type 'nonsense' is none of"),
)
def test_methods_that_cannot_be_handlers(
    method: Callable[..., Any], schema: Any, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        MethodHandler(method, schema, place="some.action")


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


class Adder:
    async def __call__(self, ctx: Context, a: int, b: int = 1) -> int:
        return a + b


class Giver:
    def __call__(self, ctx: Context) -> str:
        return "given"


class Odd(Service):
    """Actions of every sort."""

    name = "odd"

    @action
    @staticmethod
    async def inner_static(ctx: Context, a: int) -> int:
        return a

    @staticmethod
    @action
    def outer_static(ctx: Context, a: int) -> int:
        return a

    @action
    @classmethod
    def of_class(cls, ctx: Context, a: int) -> str:
        return f"{cls.__name__} {a}"

    @action
    @passed_on
    async def wrapped(self, ctx: Context, a: int) -> int:
        return a

    @action
    def gives_a_coroutine(self, ctx: Context) -> Any:
        return self.wrapped(ctx, 7)

    adder = action(Adder())
    giver = action(Giver())
    partial = action(functools.partial(Giver()))


@each(
    ("inner_static", {"a": 1}, 1),
    ("outer_static", {"a": 1}, 1),
    ("of_class", {"a": 1}, "Odd 1"),
    ("wrapped", {"a": 1}, 1),
    ("gives_a_coroutine", None, 7),
    ("adder", {"a": 1}, 2),
    ("giver", None, "given"),
    ("partial", None, "given"),
)
async def test_all_that_can_be_called_can_be_an_action(name: str, params: Any, result: Any) -> None:
    broker = Broker("odd")
    broker.add(Odd())
    async with broker:
        for _ in range(3):
            assert await broker.call(f"odd.{name}", params) == result
