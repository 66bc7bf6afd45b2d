"""What an operation can be told, as arguments and options of a command."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

import click
import msgspec

from postroad.admin.operations import Operation, Parameter

from .completion import completer_of
from .helping import Argument
from .meanings import meaning_of
from .spelling import Spelling
from .tables import unwrap
from .values import parse_json, parse_said


class Pairs(click.ParamType):  # type: ignore[type-arg]
    """`name=value`, where the value is JSON or else text."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        name, found, text = str(value).partition("=")
        if not (found and name):
            told = f"{value!r} is not of the form name=value, as in count=2.{_other(ctx)}"
            self.fail(told, param, ctx)
        return name, parse_said(text)


def _other(ctx: click.Context | None) -> str:
    """How everything can be said at once, if it can."""
    for it in () if ctx is None else ctx.command.params:
        if isinstance(it.type, Document):
            return f" All at once is {it.opts[0]} '{it.type.example}'."
    return ""


class Document(click.ParamType):  # type: ignore[type-arg]
    """JSON.

    Args:
        example: one that works.
        is_object: whether names and values are wanted, and nothing else.
    """

    name = "JSON"

    def __init__(self, example: str, *, is_object: bool) -> None:
        self.example = example
        self._is_object = is_object

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            read = parse_json(value)
        except ValueError as error:
            self.fail(f"{error}. This works: '{self.example}'", param, ctx)
        if self._is_object and not isinstance(read, dict):
            self.fail(
                f"{value} is no JSON object: parameters have names, as in '{self.example}'",
                param,
                ctx,
            )
        return read


class Said(click.ParamType):  # type: ignore[type-arg]
    """A value: JSON if it is JSON, else text."""

    name = "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return parse_said(value) if isinstance(value, str) else value


PAIRS, SAID = Pairs(), Said()


def make_parameters(operation: Operation, spelling: Spelling) -> Iterator[click.Parameter]:
    """Arguments for what must be said, in order, and options for what may be."""
    for it in operation.parameters:
        is_argument = it.is_required or it.name in spelling.positional
        help = spelling.help.get(it.name) or meaning_of(operation, it.name)
        yield _argument(it, spelling, help) if is_argument else _option(it, help)


def make_options(
    operation: Operation, names: Iterable[str], spelling: Spelling
) -> Iterator[click.Option]:
    """Options for some of the parameters of an operation."""
    for it in operation.parameters:
        if it.name in names:
            yield _option(it, spelling.help.get(it.name) or meaning_of(operation, it.name))


def _argument(it: Parameter, spelling: Spelling, help: str) -> Argument:
    kind = unwrap(it.type)
    title = it.name.upper()
    told: dict[str, Any] = {"nargs": -1, "shell_complete": completer_of(it.name)}
    if it.name == spelling.each:
        told |= {"required": spelling.every is None, "metavar": f"{title}..."}
    elif it.name == spelling.joined:
        told |= {"required": True, "metavar": f"{title}..."}
    elif _is_mapping(kind) or it.name in spelling.pairs:
        told |= {"type": PAIRS, "metavar": "NAME=VALUE..."}
    elif get_origin(kind) is list:
        told |= {"required": it.is_required, "metavar": f"{title.removesuffix('S')}..."}
    else:
        told |= {"nargs": 1, "type": _click_type(kind), "required": it.is_required}
    if not told.get("required") and "metavar" in told:
        told["metavar"] = f"[{told['metavar']}]"
    return Argument([it.name], help=help, **told)


def _option(it: Parameter, help: str) -> click.Option:
    kind = unwrap(it.type)
    flag = f"--{it.name.replace('_', '-')}"
    if kind is bool:
        return click.Option([flag, it.name], is_flag=True, default=bool(it.default), help=help)
    if _is_mapping(kind):
        return click.Option([flag, it.name], type=PAIRS, multiple=True, help=help)
    if get_origin(kind) is list:
        return click.Option([flag, it.name], multiple=True, help=help)
    has_default = it.default is not None
    return click.Option(
        [flag, it.name],
        shell_complete=completer_of(it.name),
        type=_within(it.type, kind) or _click_type(kind),
        metavar={int: "INTEGER", float: "FLOAT"}.get(kind),
        default=it.default if has_default else None,
        show_default=has_default,
        help=help,
    )


def _within(annotated: Any, kind: Any) -> click.ParamType[Any] | None:
    """The numbers that a parameter may be, if it says so."""
    bounds = _bounds(annotated)
    if bounds is None or kind not in (int, float):
        return None
    if kind is int:
        least, most = (it if it is None else int(it) for it in (bounds.ge, bounds.le))
        return click.IntRange(least, most)
    is_open = bounds.gt is not None
    return click.FloatRange(bounds.gt if is_open else bounds.ge, bounds.le, min_open=is_open)


def _bounds(annotated: Any) -> msgspec.Meta | None:
    for it in (annotated, *get_args(annotated)):
        for note in getattr(it, "__metadata__", ()):
            if isinstance(note, msgspec.Meta):
                return note
    return None


def _click_type(kind: Any) -> click.ParamType[Any]:
    if kind is int:
        return click.INT
    if kind is float:
        return click.FLOAT
    if get_origin(kind) is Literal:
        return click.Choice([str(it) for it in get_args(kind)])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return click.Choice([str(it.value) for it in kind])
    return SAID if kind is Any else click.STRING


def _is_mapping(kind: Any) -> bool:
    return kind is dict or get_origin(kind) is dict


def read_said(parameters: Iterable[Parameter], given: dict[str, Any]) -> dict[str, Any]:
    """What was said, of what click has read: what was left out is left to the operation."""
    said: dict[str, Any] = {}
    for it in parameters:
        value = given.get(it.name)
        if isinstance(value, tuple):
            if not value and not it.is_required:
                continue
            is_pairs = bool(value) and isinstance(value[0], tuple)
            value = dict(value) if is_pairs or _is_mapping(unwrap(it.type)) else [*value]
        if value is None and not it.is_required:
            continue
        said[it.name] = value
    return said
