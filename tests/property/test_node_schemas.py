"""Schemas of two types: what is found compatible decodes, and each break has a proof."""

from __future__ import annotations

import datetime
import decimal
import itertools
import uuid
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pydantic
from hypothesis import assume, given, note
from hypothesis import strategies as st
from msgspec import UNSET, Meta, Struct

from postroad.core.errors import MalformedPayloadError
from postroad.core.json_schema import make_json_schema
from postroad.node.queues.codec import Codec
from postroad.node.queues.schema_compatibility import find_breaks

NAMES = ("a", "b", "c")
BOUNDED = (
    Annotated[int, Meta(ge=0)],
    Annotated[int, Meta(ge=-3, lt=7)],
    Annotated[int, Meta(multiple_of=2)],
    Annotated[int, Meta(multiple_of=4, gt=0)],
    Annotated[float, Meta(gt=0.5)],
    Annotated[float, Meta(ge=0.5, le=9)],
    Annotated[str, Meta(min_length=1)],
    Annotated[str, Meta(max_length=3)],
    Annotated[list[int], Meta(max_length=2)],
    Annotated[dict[str, int], Meta(min_length=1)],
)
PLAIN = (int, float, bool, str, bytes, type(None), decimal.Decimal, uuid.UUID, Any)
TIMES = (datetime.date, datetime.timedelta, datetime.datetime, datetime.time)
SCALARS = (*PLAIN, *TIMES, Literal["x", "y"], Literal["x", 1, None], Literal["x"], *BOUNDED)
numbers = itertools.count()


def containers(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Types made of types, which are made at run time and no business of type checkers."""
    make: dict[str, Callable[[Any], Any]] = {
        "list": list.__class_getitem__,
        "dict": lambda item: dict.__class_getitem__((str, item)),
        "numbered": lambda item: dict.__class_getitem__((int, item)),
        "tuple": lambda item: tuple.__class_getitem__((item, int)),
        "optional": lambda item: Union[item, None],  # noqa: UP007 # Of a value.
    }
    return st.one_of(*(items.map(each) for each in make.values()), structs(items))


@st.composite
def structs(draw: st.DrawFn, items: st.SearchStrategy[Any]) -> Any:
    fields: list[Any] = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        type_ = draw(items)
        fields.append((name, type_) if draw(st.booleans()) else optional(name, type_))
    fields.sort(key=len)
    # Classes of equal names would share a definition.
    return msgspec.defstruct(
        f"S{next(numbers)}",
        fields,
        forbid_unknown_fields=draw(st.booleans()),
        array_like=draw(st.booleans()),
    )


def optional(name: str, type_: Any) -> tuple[str, Any, None]:
    """A field that may be left out."""
    return name, Union[type_, None], None  # noqa: UP007 # Of a value.


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, -1.5, "", "x", "y"]),
    lambda items: st.lists(items, max_size=2) | st.dictionaries(st.sampled_from(NAMES), items),
    max_leaves=3,
)


def values(type_: Any) -> st.SearchStrategy[Any]:
    """Values of a type; some break its bounds."""
    if type_ is Any:
        return JSON
    origin, parts = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return values(parts[0])
    if type_ is bool:
        return st.booleans()
    if type_ is int:
        return st.integers(-9, 9)
    if type_ is float:
        return st.sampled_from([-0.5, 0.5, 1.0, 2.5, 9.0])
    if type_ is str:
        return st.text("xy0", max_size=4)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in (Union, UnionType):
        return st.one_of(*map(values, parts))
    if origin is list:
        return st.lists(values(parts[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values, parts))
    if origin is dict:
        return st.dictionaries(values(parts[0]), values(parts[1]), max_size=2)
    if isinstance(type_, type) and issubclass(type_, Struct):
        fields = {each.name: values(each.type) for each in msgspec.structs.fields(type_)}
        return st.builds(type_, **fields)
    return st.from_type(type_)


def is_valid(type_: Any) -> bool:
    try:
        Codec(type_)
    except Exception:
        return False
    return True


types = st.recursive(st.sampled_from(SCALARS), containers, max_leaves=6).filter(is_valid)
# As the type of a queue, bytes are no JSON.
types = types.filter(lambda type_: type_ is not bytes)


@st.composite
def versions(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two types, often with much in common."""
    old = draw(types)
    if draw(st.booleans()) or not (isinstance(old, type) and issubclass(old, Struct)):
        return old, draw(types)
    fields: list[Any] = [
        (each.name, each.type) if each.required else (each.name, each.type, None)
        for each in msgspec.structs.fields(old)
        if draw(st.integers(0, 4))
    ]
    if draw(st.booleans()):
        fields.append(optional("new", draw(types)))
    fields.sort(key=len)
    array_like = old.__struct_config__.array_like
    new = msgspec.defstruct(f"S{next(numbers)}", fields, array_like=array_like)
    assume(is_valid(new))
    return old, new


def decodes(codec: Codec[Any], value: Any) -> bool:
    try:
        codec.decode(msgspec.json.encode(value))
    except MalformedPayloadError:
        return False
    return True


@given(versions(), st.data())
def test_compatible_types_decode_and_each_break_has_a_counterexample(
    pair: tuple[Any, Any], data: st.DataObject
) -> None:
    old, new = pair
    writer, reader = Codec(old), Codec(new)
    breaks = find_breaks(writer.schema(), reader.schema())
    note(f"{writer.schema()} -> {reader.schema()}")
    for each in breaks:
        assert each.example is not UNSET, each
        assert decodes(writer, each.example), each
        assert not decodes(reader, each.example), each
    if not breaks:
        body = msgspec.json.encode(data.draw(values(old)))
        assume(decodes_body(writer, body))
        reader.decode(body)


def decodes_body(codec: Codec[Any], body: bytes) -> bool:
    try:
        codec.decode(body)
    except MalformedPayloadError:
        return False
    return True


@given(types)
def test_type_is_compatible_with_itself(type_: Any) -> None:
    schema = make_json_schema(type_)
    assert find_breaks(schema, schema) == []


@given(st.data())
def test_compatible_pydantic_models_decode(data: st.DataObject) -> None:
    old, new = data.draw(models()), data.draw(models())
    writer: Codec[Any] = Codec(old)
    reader: Codec[Any] = Codec(new)
    breaks = find_breaks(writer.schema(), reader.schema())
    note(f"{writer.schema()} -> {reader.schema()}")
    if breaks:
        # pydantic converts some values that its schema does not allow.
        assert all(each.example is UNSET or decodes(writer, each.example) for each in breaks)
        return
    fields = {name: data.draw(values(each.annotation)) for name, each in old.model_fields.items()}
    reader.decode(writer.encode(old(**fields)))


@st.composite
def models(draw: st.DrawFn) -> Any:
    kinds = st.sampled_from([int, float, str, bool, list[int], dict[str, float], Literal["x", "y"]])
    fields: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)):
        type_ = draw(kinds)
        is_required = draw(st.booleans())
        fields[name] = (type_, ...) if is_required else optional(name, type_)[1:]
    config = pydantic.ConfigDict(extra=draw(st.sampled_from(["ignore", "forbid"])))
    return pydantic.create_model(f"M{next(numbers)}", __config__=config, **fields)
