"""What an operation can be told, as arguments and options of a command."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

import click

from postroad.admin.operations import Parameter

from .completion import completer_of
from .spelling import Spelling
from .tables import unwrap
from .values import parse_said


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
            self.fail(f"{value!r} is not of the form name=value.", param, ctx)
        return name, parse_said(text)


class Said(click.ParamType):  # type: ignore[type-arg]
    """A value: JSON if it is JSON, else text."""

    name = "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return parse_said(value) if isinstance(value, str) else value


PAIRS, SAID = Pairs(), Said()


def make_parameters(
    parameters: Iterable[Parameter], spelling: Spelling
) -> Iterator[click.Parameter]:
    """Arguments for what must be said, in order, and options for what may be."""
    for it in parameters:
        is_argument = it.is_required or it.name in spelling.positional
        yield _argument(it, spelling) if is_argument else _option(it, spelling)


def _argument(it: Parameter, spelling: Spelling) -> click.Argument:
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
    return click.Argument([it.name], **told)


def _option(it: Parameter, spelling: Spelling) -> click.Option:
    kind = unwrap(it.type)
    flag = f"--{it.name.replace('_', '-')}"
    help = spelling.help.get(it.name)
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
        type=_click_type(kind),
        default=it.default if has_default else None,
        show_default=has_default,
        help=help,
    )


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
