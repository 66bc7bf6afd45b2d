"""Values and errors in records: what is read back, and what cannot be serialized."""

import dataclasses
import datetime
import enum
import pkgutil
import sqlite3
import sys
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.errors import MalformedPayloadError
from postroad.flows.errors import (
    FlowError,
    FlowTimeoutError,
    PeerFlowFailedError,
    SerializationError,
    StepFailedError,
)
from postroad.flows.machine import values
from postroad.flows.machine.renamed_errors import RENAMED_ERRORS
from postroad.flows.machine.values import RecordedError
from tests.support.cases import each, naming


class Order(msgspec.Struct):
    number: int
    lines: list[str]


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Colour(enum.StrEnum):
    RED = "red"


class Insolvent(Exception):
    """An error that can be made again."""


class Awkward(Exception):
    """Its arguments are not those it is made with."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Forgetful(Exception):
    """It says something else when it is made again."""

    count = 0

    def __str__(self) -> str:
        type(self).count += 1
        return str(self.count)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing can be said of it")


@each(
    (None, None),
    (True, bool),
    (7, int),
    (7, float),
    ("größe", str),
    (b"\x00\xff", bytes),
    ([1, 2], list[int]),
    ((1, "a"), tuple[int, str]),
    ({1: "a"}, dict[int, str]),
    ({3, 4}, set[int]),
    (Order(1, ["a"]), Order),
    (Point(1.0, 2.5), Point),
    (uuid.UUID(int=5), uuid.UUID),
    (datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC), datetime.datetime),
    (datetime.timedelta(seconds=3), datetime.timedelta),
)
def test_value_round_trips_as_its_type(value: Any, kind: Any) -> None:
    encoded = values.encode_value(value, "it")
    read = values.decode_value(encoded, kind)
    assert read == value
    assert values.roundtrip(value, encoded, kind) == read
    assert type(values.roundtrip(value, encoded, kind)) is type(read)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=9), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=10,
)


@given(PLAIN)
def test_result_is_round_tripped_before_code_sees_it(value: Any) -> None:
    encoded = values.encode_value(value, "it")
    first, later = values.roundtrip(value, encoded, Any), values.decode_value(encoded)
    assert repr(first) == repr(later)


def test_values_are_of_the_type_that_was_announced() -> None:
    for kind, plain in ((Any, str), (Colour, Colour)):
        encoded = values.encode_value(Colour.RED, "it")
        assert type(values.roundtrip(Colour.RED, encoded, kind)) is plain, (kind, plain)
    value = (1, 2)
    assert values.roundtrip(value, values.encode_value(value, "it"), Any) == [1, 2]
    with pytest.raises(msgspec.ValidationError):
        values.roundtrip("text", values.encode_value("text", "it"), int)
    with pytest.raises(SerializationError, match="no value can be read as"):
        values.decode_value(b"\x01", int | list[int] | tuple[int, ...])


def endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def test_unserializable_value_is_named_in_error() -> None:
    for value in (
        object(),
        lambda: 1,
        sqlite3.Row,
        1 << 64,
        "\ud800",
        {"a": [object()]},
        endless(),
    ):
        with (
            naming(value),
            pytest.raises(SerializationError, match="what it returned cannot be serialized"),
        ):
            values.encode_value(value, "what it returned")


def test_digests_tell_arguments_apart() -> None:
    one = values.digest_arguments((1,), {})
    assert one == values.digest_arguments((1,), {})
    others = [((2,), {}), (("1",), {}), ((), {"a": 1}), ((1, 1), {})]
    assert len({values.digest_arguments(*arguments) for arguments in others} | {one}) == 5


@pytest.mark.parametrize("args", [(), (object(),), (1 << 64,), (endless(),)])
def test_arguments_that_cannot_be_compared_have_no_digest(args: tuple[Any, ...]) -> None:
    assert values.digest_arguments(args, {}) == b""


def announces() -> list[int]:
    return []


def says_nothing():  # type: ignore[no-untyped-def]
    return 1


def unreadable() -> "sqlite3.Nothing":  # type: ignore[name-defined]
    return 1


def ambiguous() -> list[int] | tuple[int, ...]:
    return []


async def later() -> int:
    return 1


@each(
    (announces, list[int]),
    (later, int),
    (says_nothing, Any),
    (unreadable, Any),
    (ambiguous, Any),
    (len, Any),
)
def test_type_a_function_announces(function: Any, kind: Any) -> None:
    assert values.result_type(function) == kind


def again(error: BaseException) -> Exception:
    """An error as it is made from its record."""
    encoded = msgspec.msgpack.encode(values.record_error(error))
    return values.restore_error(msgspec.msgpack.decode(encoded, type=RecordedError))


@each(
    Insolvent("beta", 7),
    Insolvent(),
    ValueError("x"),
    KeyError("x"),
    FlowError("no money"),
    PeerFlowFailedError("it has failed", "beta", "e1", "Insolvent"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    FileNotFoundError(2, "nothing there"),
)
def test_error_is_made_again(error: Exception) -> None:
    restored = again(error)
    assert type(restored) is type(error)
    assert (restored.args, str(restored)) == (error.args, str(error))
    assert vars(restored) == vars(error)


def local_error() -> Exception:
    class Hidden(Exception):
        """Cannot be found by its name."""

    return Hidden("x")


@each(
    Awkward("a", "b"),
    Forgetful(),
    Insolvent(object()),
    local_error(),
    KeyboardInterrupt("x"),
    SystemExit(1),
)
def test_error_that_cannot_be_made_again_is_a_failed_step(error: BaseException) -> None:
    restored = again(error)
    assert type(restored) is StepFailedError
    assert type(error).__name__ in str(restored)


def test_errors_with_any_text_are_recorded() -> None:
    failure = values.record_error(ValueError("x" * 10_000))
    assert len(failure.text) == 2_000
    assert type(values.restore_error(failure)) is ValueError
    error = Unspeakable("x")
    assert "cannot tell" in values.record_error(error).text
    assert type(again(error)) is Unspeakable
    # As in names of files that are not in the encoding of the system.
    assert "no such file: name" in str(again(ValueError("no such file: name\udcff")))
    once = again(local_error())
    twice = again(once)
    assert isinstance(twice, StepFailedError)
    assert str(twice) == str(once)
    for kind in (
        "",
        ":",
        "nowhere:Error",
        "builtins:",
        "builtins:int",
        "builtins:nothing",
        "os:path.join",
    ):
        restored = values.restore_error(RecordedError(kind, "text", b"\x90"))
        assert isinstance(restored, StepFailedError), kind
        assert restored.detail == "text", kind


def test_error_of_a_module_that_is_not_loaded_is_imported_only_if_that_is_allowed() -> None:
    sys.modules.pop("wave", None)
    failure = RecordedError("wave:Error", "broken", msgspec.msgpack.encode(["broken"]))
    assert isinstance(values.restore_error(failure, may_import=False), StepFailedError)
    assert "wave" not in sys.modules
    assert type(values.restore_error(failure)).__module__ == "wave"


def test_error_recorded_under_an_earlier_name_is_made_again() -> None:
    for current in RENAMED_ERRORS.values():
        assert issubclass(pkgutil.resolve_name(current), Exception)
    args = msgspec.msgpack.encode(["no text"])
    error = values.restore_error(
        RecordedError("postroad.core.errors:MalformedPayload", "no text", args)
    )
    assert type(error) is MalformedPayloadError


@pytest.mark.parametrize(
    ("recorded", "current"),
    [("PeerFailed", PeerFlowFailedError), ("FlowTimeout", FlowTimeoutError)],
)
def test_flow_error_recorded_under_an_earlier_name_is_restored_as_its_class(
    recorded: str, current: type[FlowError]
) -> None:
    failure = values.record_error(current("too late"))
    earlier = msgspec.structs.replace(failure, kind=f"postroad.flows.errors:{recorded}")
    assert type(values.restore_error(earlier)) is current
