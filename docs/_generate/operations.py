"""The table of operations, and what their results hold."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from postroad.admin.operations import OPERATIONS, Effect, Operation, Parameter
from postroad.node.keys import docstrings

from .tables import table

_EFFECTS = {Effect.READ: "reads", Effect.CHANGE: "**changes**", Effect.DANGER: "**danger**"}
_PLAIN = {str: "text", int: "number", float: "number", bool: "yes or no", Any: "anything"}


def operations_tables() -> str:
    """Every operation, by what it is about."""
    nouns = dict.fromkeys(it.noun for it in OPERATIONS.values())
    return "\n\n".join(_about(noun) for noun in nouns)


def views_tables() -> str:
    """What every result holds."""
    found: dict[str, type[msgspec.Struct]] = {}
    for operation in OPERATIONS.values():
        for view in _structs_in(operation.result):
            found[view.__name__] = view
    return "\n\n".join(_view(found[name]) for name in sorted(found))


def _about(noun: str) -> str:
    rows = [_row(it) for it in OPERATIONS.values() if it.noun == noun]
    head = ("operation", "", "parameters", "result", "what it does")
    return f"### {noun}\n\n{table(head, rows)}"


def _row(it: Operation) -> tuple[str, ...]:
    parameters = ", ".join(map(_parameter, it.parameters)) or "none"
    return f"`{it.name}`", _EFFECTS[it.effect], parameters, _result(it.result), it.summary


def _parameter(it: Parameter) -> str:
    if it.is_required:
        return f"`{it.name}`"
    if it.default is None or it.default == {}:
        return f"[`{it.name}`]"
    return f"[`{it.name}` = `{it.default}`]"


def _result(kind: Any) -> str:
    if get_origin(kind) is list:
        return f"list of {_result(get_args(kind)[0])}"
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def _view(view: type[msgspec.Struct]) -> str:
    meanings = dict(docstrings(view))
    rows = [
        (f"`{field.name}`", _type(field.type), meanings.get(field.name, ""))
        for field in msgspec.structs.fields(view)
    ]
    said = (view.__doc__ or "").partition("\n")[0]
    return f"### {view.__name__}\n\n{said}\n\n{table(('field', 'type', 'meaning'), rows)}"


def _type(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type(inner[0])
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"{_type(inner[1])} by name"
    if origin is Literal:
        return ", ".join(f"`{it}`" for it in inner)
    if origin is Union or type(kind).__name__ == "UnionType":
        return " or ".join("none" if it is type(None) else _type(it) for it in inner)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(f"`{it.value}`" for it in kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _result(kind)
    return _PLAIN.get(kind, "anything")


def _structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from _structs_in(field.type)
    for inner in get_args(kind):
        yield from _structs_in(inner)
