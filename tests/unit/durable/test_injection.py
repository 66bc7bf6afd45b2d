"""Parameters that are filled in by annotation."""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import pytest

from postroad.core.errors import UsageError
from postroad.durable.injection import (
    INJECTED,
    Unresolved,
    fill,
    find_injections,
    find_parameters,
)

if TYPE_CHECKING:
    from elsewhere import Gift, Order  # type: ignore[import-not-found] # Not at run time.

T = TypeVar("T")


class Tool: ...


class Box(Generic[T]): ...


def source_of(hint: Any) -> str | None:
    return {Tool: "tool", Box: "box"}.get(hint)


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function as the library does."""
    parameters = find_parameters(function)
    injections = find_injections(function, parameters, source_of, ("Tool", "Box", "Gift"))
    values = {"tool": "a tool", "box": "a box"}
    by_position, by_name = fill(injections, values, args, kwargs)
    return function(*by_position, **by_name)


class Worker:
    def __call__(self, number: int, tool: Tool = INJECTED) -> Any:
        return number, tool

    def work(self, number: int, tool: Tool = INJECTED) -> Any:
        return number, tool


def last(number: int, tool: Tool) -> Any:
    return number, tool


def first(tool: Tool, number: int) -> Any:
    return number, tool


def marked(number: int, tool: Tool = INJECTED) -> Any:
    return number, tool


def by_name(number: int, *, tool: Tool) -> Any:
    return number, tool


def as_text(number: int, tool: "Tool" = INJECTED) -> Any:
    return number, tool


def annotated(number: int, tool: Annotated[Tool, "sharp"] = INJECTED) -> Any:
    return number, tool


def beside_unknown(number: "Order", tool: "Tool" = INJECTED) -> Any:
    return number, tool


@functools.lru_cache
def wrapped(number: int, tool: Tool = INJECTED) -> Any:
    return number, tool


@pytest.mark.parametrize(
    "function",
    [
        *(last, first, marked, by_name, as_text, annotated, beside_unknown, wrapped),
        *(Worker(), Worker().work, functools.partial(marked)),
    ],
)
def test_parameter_is_injected_by_annotation(function: Callable[..., Any]) -> None:
    assert call(function, 1) == (1, "a tool")
    assert call(function, number=1) == (1, "a tool")


def test_generic_annotation_is_matched_by_its_class() -> None:
    def put(box: Box[int], number: int, tool: Tool = INJECTED) -> Any:
        return box, number, tool

    assert call(put, 1) == ("a box", 1, "a tool")


def test_parameter_that_is_given_is_not_filled() -> None:
    assert call(marked, 1, tool="own") == (1, "own")
    assert call(functools.partial(marked, tool="own"), 1) == (1, "own")  # type: ignore[arg-type]


def test_parameter_with_own_default_is_not_injected() -> None:
    def maybe(tool: Tool | None = None, box: "Gift | None" = None, *tools: Tool) -> Any:
        return tool, box, tools

    assert call(maybe) == (None, None, ())


def test_annotation_that_cannot_be_resolved_hides_no_other() -> None:
    parameters = {
        parameter.name: parameter.annotation for parameter in find_parameters(beside_unknown)
    }
    assert parameters == {"number": Unresolved("Order"), "tool": Tool}


def test_unreadable_annotation_that_may_be_meant_is_explained() -> None:
    def meant(present: "Gift") -> None: ...
    def marked_as_such(present: "Order" = INJECTED) -> None: ...

    for function, text in ((meant, "Gift"), (marked_as_such, "Order")):
        expected = f"`{text}` of parameter `present` of .* import the type at run time"
        with pytest.raises(UsageError, match=expected):
            call(function)


def test_parameter_that_cannot_be_filled_is_explained() -> None:
    def of_no_use(number: int = INJECTED) -> None: ...
    def without_name(tool: Tool, /) -> None: ...

    with pytest.raises(UsageError, match=r"`number` of .* none of Tool, Box"):
        call(of_no_use)
    with pytest.raises(UsageError, match="positional-only"):
        call(without_name)


def test_classes_and_builtin_functions_have_no_such_parameters() -> None:
    assert find_parameters(dict) == []
    assert call(len, "abc") == 3
    assert call(lambda tool: tool, 1) == 1


def test_missing_injection_raises_error_with_remedy() -> None:
    assert "= INJECTED)" in str(inspect.signature(marked))
    with pytest.raises(UsageError, match=r"`\.cut` .*ctx\.step"):
        INJECTED.cut()
