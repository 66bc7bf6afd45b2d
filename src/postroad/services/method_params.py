"""Methods as handlers: params are checked, and handed over as the method wants them."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from postroad.core.errors import ConfigError

from .context import Context
from .errors import ValidationError
from .validation import MESSAGE, Checker, compile_params, compile_type

Handler = Callable[[Context], Awaitable[Any]]
PlainHandler = Callable[[Context], Any]
WHOLE = "params"
"""A parameter with this name gets all params at once."""

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_FILLABLE = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    _KEYWORD,
)


class _Field(NamedTuple):
    """One parameter of a method after the context."""

    type: Any
    default: Any
    is_keyword: bool


class MethodHandler:
    """A method of a service that takes a context.

    Attributes:
        run: calls it; a coroutine function if the method is one.
        is_plain: whether the method is no coroutine function, and gives its result at once.
        type: what the params are checked against, if the method says so by type hints.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        schema: Mapping[str, Any] | Sequence[Any] | None,
        *,
        place: str,
        validates: bool = True,
    ) -> None:
        """`place` is told in errors; raises ConfigError if the method cannot be a handler."""
        self.is_plain = not _is_coroutine_function(method)
        self.type: Any = None
        fields = _fields_of(method, place)
        if schema is not None and fields:
            raise ConfigError(f"{place}: params come from a schema or from type hints, not both")
        if schema is not None:
            check = compile_params(schema) if validates else None
            self.run: PlainHandler = _with_schema(method, check, place)
        elif not fields:
            self.run = method
        elif [*fields] == [WHOLE]:
            self.type = fields[WHOLE].type
            self.run = _with_whole(method, _reader(self.type, place))
        else:
            self.type = _struct_of(fields, place)
            self.run = _with_fields(method, _reader(self.type, place), fields)


def _with_schema(method: PlainHandler, check: Checker | None, place: str) -> PlainHandler:
    if check is None:
        return method

    def run(ctx: Context) -> Any:
        ctx.params = _checked(check, ctx, place)
        return method(ctx)

    return run


def _with_whole(method: Callable[..., Any], read: PlainHandler) -> PlainHandler:
    def run(ctx: Context) -> Any:
        return method(ctx, read(ctx))

    return run


def _with_fields(
    method: Callable[..., Any], read: PlainHandler, fields: Mapping[str, _Field]
) -> PlainHandler:
    spread = msgspec.structs.astuple
    keywords = [name for name, field in fields.items() if field.is_keyword]
    first = len(fields) - len(keywords)

    def run(ctx: Context) -> Any:
        return method(ctx, *spread(read(ctx)))

    def run_with_keywords(ctx: Context) -> Any:
        values = spread(read(ctx))
        return method(ctx, *values[:first], **dict(zip(keywords, values[first:], strict=True)))

    return run_with_keywords if keywords else run


def _reader(type: Any, place: str) -> PlainHandler:
    """Gives params in the type that they are annotated with, or tells what is wrong with them."""
    check, convert = compile_type(type), msgspec.convert
    try:
        check({})
    except TypeError as error:
        raise ConfigError(f"{place}: params cannot be checked by type: {error}") from None

    def read(ctx: Context) -> Any:
        try:
            return convert(ctx.params, type)
        except msgspec.ValidationError:
            # There are none at all, or there is something to tell.
            return _checked(check, ctx, place)

    return read


def _is_coroutine_function(method: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(
        getattr(method, "__call__", None)  # noqa: B004
    )


def _checked(check: Checker, ctx: Context, place: str) -> Any:
    value, problems = check(ctx.params)
    if problems:
        facts = {"nodeID": ctx.node_id, "action": place}
        raise ValidationError(MESSAGE, data=[it.to_wire(**facts) for it in problems])
    return value


def _fields_of(method: Callable[..., Any], place: str) -> dict[str, _Field]:
    """What there is after the context, in its order."""
    parameters = [*inspect.signature(method).parameters.values()]
    if not parameters or parameters[0].kind is _KEYWORD:
        raise ConfigError(f"{place}: a handler takes a context first: def method(self, ctx)")
    hints = hints_of(method, place)
    fields = {}
    for parameter in parameters[1:]:
        if parameter.kind not in _FILLABLE:
            raise ConfigError(f"{place}: {parameter} cannot be filled from params")
        name, is_keyword = parameter.name, parameter.kind is _KEYWORD
        fields[name] = _Field(hints.get(name, Any), parameter.default, is_keyword)
    return fields


def hints_of(method: Callable[..., Any], place: str) -> dict[str, Any]:
    """The type hints of a function, of a method, or of an object that can be called."""
    function = method
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{place}: a type hint cannot be read: {error}") from None


def _struct_of(fields: Mapping[str, _Field], place: str) -> type[msgspec.Struct]:
    described: list[Any] = []
    for name, field in fields.items():
        if field.default is inspect.Parameter.empty:
            described.append((name, field.type))
        else:
            described.append((name, field.type, _kept(field.default)))
    # Only then those without a default may come after those with one.
    return msgspec.defstruct(place.replace(".", "_"), described, kw_only=True)


def _kept(default: Any) -> Any:
    """A default of any sort: msgspec wants changeable ones to be made anew."""
    if isinstance(default, list | dict | set | bytearray):
        return msgspec.field(default_factory=default.copy)
    return default
