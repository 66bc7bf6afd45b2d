"""Bodies as values of a type: what goes through, and what is said of the rest."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from postroad.core.errors import ConfigError, MalformedPayloadError, UsageError
from postroad.node.queues.codec import Codec


class Order(msgspec.Struct):
    item: str
    count: int = 1


@dataclasses.dataclass
class Parcel:
    orders: list[Order]


class Label(TypedDict):
    street: str
    floor: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: int


class Invoice(pydantic.BaseModel):
    total: int
    lines: list[int] = []


class Fussy(pydantic.BaseModel):
    size: int

    @pydantic.field_validator("size")
    @classmethod
    def check(cls, size: int) -> int:
        raise ZeroDivisionError("no size")


class Nameless(msgspec.Struct):
    item: str

    def __repr__(self) -> str:
        raise ValueError("no name")


VALUES = [
    (Order, Order("tea", 2)),
    (Parcel, Parcel([Order("tea")])),
    (Label, {"street": "Main", "floor": 3}),
    (Point, Point(1, 2)),
    (Invoice, Invoice(total=3, lines=[1, 2])),
    (dict[str, int], {"a": 1}),
    (float, 1.5),
    (str, "tea"),
    (bytes, b"\x00raw"),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda it: getattr(it, "__name__", ""))
def test_codec_decodes_what_it_encoded(kind: Any, value: object) -> None:
    codec: Codec[Any] = Codec(kind)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (Order, b'{"count": 1}', "as Order: Object missing required field `item`"),
        (Order, b'{"item": "a", "count": "b"}', r"Expected `int`, got `str` - at `\$\.count`"),
        (Parcel, b'{"orders": [{"item": 1}]}', r"\$\.orders\[0\]\.item"),
        (Order, b"\xff", "as Order"),
        (Order, b"", "as Order"),
        (Invoice, b'{"total": 1, "lines": [1, "x"]}', r"at `\$\.lines\[1\]`$"),
        (Invoice, b"[]", r"Input should be an object - at `\$`$"),
        (Invoice, b'{"total": 1, "lines": ["x", "x", "x", "x", "x"]}', r"\[2\]`; and 2 more$"),
        (Fussy, b'{"size": 1}', "does not decode as Fussy: ZeroDivisionError: no size"),
        (Order, b"[" * 100_000, "as Order"),
        (Label, b"[]", "Expected `object`, got `array`"),
    ],
)
def test_body_of_another_shape_is_refused_with_the_place(kind: Any, body: bytes, text: str) -> None:
    with pytest.raises(MalformedPayloadError, match=text):
        Codec(kind).decode(body)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Order, Point(1, 2), "expected Order, got Point"),
        (Order, Order("tea", "two"), r"no valid Order: .*\$\.count.*Order\(item='tea'"),  # type: ignore[arg-type] # Sent so.
        (Label, {"floor": 1}, "missing required field `street`"),
        (str, 1, "no valid str"),
        (bytes, "text", "expected bytes, got str"),
        (Order, Order(object()), "cannot be encoded: TypeError"),  # type: ignore[arg-type] # Sent so.
        (Order, Order("\ud800"), "cannot be encoded: UnicodeEncodeError"),
        (float, float("nan"), "no valid float"),
        (Nameless, Nameless(1), "Expected `str`, got `int`.*<its repr raises ValueError>"),  # type: ignore[arg-type] # Sent so.
    ],
)
def test_value_of_another_type_is_refused_at_the_sender(kind: Any, value: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Codec(kind).encode(value)


def test_encoder_of_a_model_that_raises_is_an_error_of_the_sender() -> None:
    class Odd(pydantic.BaseModel):
        size: int

        @pydantic.field_serializer("size")
        def give_up(self, size: int) -> int:
            raise ZeroDivisionError("no size")

    with pytest.raises(UsageError, match=r"Odd cannot be encoded: .*no size"):
        Codec(Odd).encode(Odd(size=1))


def test_type_without_a_json_form_is_refused_when_declared() -> None:
    class Odd(msgspec.Struct):
        both: int | dict[str, int] | Order | Parcel

    with pytest.raises(ConfigError, match="Odd cannot be the type of messages"):
        Codec(Odd)


def test_long_values_are_shortened_in_errors() -> None:
    with pytest.raises(UsageError) as raised:
        Codec(Order).encode("x" * 100_000)  # type: ignore[arg-type] # Sent so.
    assert len(str(raised.value)) < 400


def test_schemas_name_required_fields() -> None:
    order = Codec(Order).schema()
    assert (order["required"], sorted(order["properties"])) == (["item"], ["count", "item"])
    assert Codec(Invoice).schema()["required"] == ["total"]
    assert Codec(bytes).schema() == {}
