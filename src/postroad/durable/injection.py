"""Injection of parameters, which a function requests by annotation."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple, NoReturn, get_type_hints

from postroad.core.errors import UsageError

if sys.version_info >= (3, 14):
    from annotationlib import Format

    _signature = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    _signature = inspect.signature

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _Injected:
    """Stands for a value that was not injected."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(
            f"`.{name}` was used of a parameter whose default INJECTED was not replaced: "
            "run the function with ctx.step(), or call it with a value for the parameter"
        )

    def __repr__(self) -> str:
        return "INJECTED"


INJECTED: Any = _Injected()
"""The default of an injected parameter: it lets type checkers accept a call without it.

    async def charge(order: Order, tx: Transaction = INJECTED) -> str: ...

    await ctx.step(charge, order)
"""


class Unresolved(NamedTuple):
    """An annotation with a name that is not known at run time."""

    text: str

    def __repr__(self) -> str:
        return self.text


class Injection(NamedTuple):
    """A parameter that is injected.

    Attributes:
        name: of the parameter.
        position: its index among positional parameters; None if it is keyword-only.
        source: of the injected value.
    """

    name: str
    position: int | None
    source: Any


def find_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function; each annotation is resolved, or `Unresolved`.

    Classes, and built-in functions without a signature, have none.
    """
    if isinstance(function, type):
        return []
    try:
        parameters = [*_signature(function).parameters.values()]
    except (TypeError, ValueError):
        return []
    target = _annotated(function)
    try:
        hints = get_type_hints(target)
    except Exception:
        # One annotation that cannot be resolved must not affect the others.
        names = getattr(target, "__globals__", {})
        hints = {each.name: _resolve(each.annotation, names) for each in parameters}
    return [each.replace(annotation=hints.get(each.name, each.empty)) for each in parameters]


def find_injections(
    function: Callable[..., Any],
    parameters: Iterable[inspect.Parameter],
    source_of: Callable[[Any], Any],
    names: Iterable[str],
) -> list[Injection]:
    """Return the parameters to be injected: those annotated so, and without a default.

    Args:
        parameters: as from `find_parameters`.
        source_of: returns the source for a type, or None.
        names: of these types.

    Raises:
        UsageError: one cannot be injected, or seems to be meant to be.
    """
    injections: list[Injection] = []
    position = 0
    for parameter in parameters:
        if parameter.kind in _MANY:
            continue
        is_marked = parameter.default is INJECTED
        source = None
        if is_marked or parameter.default is parameter.empty:
            source = source_of(_origin(parameter.annotation))
        if source is None:
            _check_not_meant(function, parameter, names, is_marked=is_marked)
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(
                f"parameter `{parameter.name}` of {name_of(function)} is filled in, so it cannot "
                "be positional-only: put it after the `/`"
            )
        else:
            is_named = parameter.kind is parameter.KEYWORD_ONLY
            injections.append(Injection(parameter.name, None if is_named else position, source))
        position += 1
    return injections


def fill(
    injections: Iterable[Injection],
    values: Mapping[Any, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, together with the injected ones."""
    by_position, by_name = list(args), dict(kwargs)
    for name, position, source in injections:
        if name in by_name:
            continue
        if position is None or position > len(by_position):
            by_name[name] = values[source]
        else:
            by_position.insert(position, values[source])
    return by_position, by_name


def is_async_function(function: Callable[..., Any]) -> bool:
    """Whether a function, also one that is wrapped, returns a coroutine; it may be any callable."""
    wrapped = inspect.unwrap(function)
    return inspect.iscoroutinefunction(wrapped) or inspect.iscoroutinefunction(
        getattr(wrapped, "__call__", None)  # noqa: B004
    )


def name_of(function: object) -> str:
    """Return the name of a function or coroutine for error messages."""
    name: str = getattr(function, "__qualname__", None) or repr(function)
    return name


def _annotated(function: Callable[..., Any]) -> Any:
    """Return the object that has the annotations of a function."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if isinstance(function, FunctionType | MethodType | BuiltinFunctionType):
        return function
    return type(function).__call__


def _resolve(annotation: Any, names: dict[str, Any]) -> Any:
    text = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(text, str):
        return annotation
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"hint": text}), names)["hint"]
    except Exception:
        return Unresolved(text)


def _origin(hint: Any) -> Any:
    """Return the class of a generic type."""
    return getattr(hint, "__origin__", hint)


def _check_not_meant(
    function: Callable[..., Any],
    parameter: inspect.Parameter,
    names: Iterable[str],
    *,
    is_marked: bool,
) -> None:
    hint = parameter.annotation
    if isinstance(hint, Unresolved):
        is_open = parameter.default is parameter.empty
        if is_marked or (is_open and set(re.findall(r"\w+", hint.text)).intersection(names)):
            raise UsageError(
                f"the annotation `{hint.text}` of parameter `{parameter.name}` of "
                f"{name_of(function)} cannot be read: import the type at run time, not only "
                "under TYPE_CHECKING"
            )
    elif is_marked:
        raise UsageError(
            f"parameter `{parameter.name}` of {name_of(function)} has the default INJECTED, and "
            f"its annotation is none of {', '.join(names)}"
        )
