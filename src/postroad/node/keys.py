"""Every setting by its dotted name: of which type it is, what it is by default, what it means."""

from __future__ import annotations

import ast
import enum
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from .settings import NodeConfig

PREFIX = "POSTROAD_"
HIDDEN = "********"

_SECRETS = frozenset({"admin.token", "admin.read_token", "node.secret"})
_PASSWORD_IN_URL = re.compile(r"(://[^:@/\s]*:)[^\s]*(@)")
_TOKEN_IN_URL = re.compile(r"(\bnats://)[^:@/\s]+(@)")
_PASSWORD_IN_QUERY = re.compile(r"(?i)\b(password|passwd|secret|token)=[^&\s'\"]+")
_CONTAINERS = (dict, list, set, tuple)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One setting."""

    name: str
    """Dotted, as in `queues.tuning.handler_timeout_s`."""
    kind: Any
    """Its type."""
    default: Any
    meaning: str
    is_computed: bool = False
    """Whether the default is another one on another machine."""
    is_required: bool = False
    """Whether it must be given if anything of its section is."""

    @property
    def section(self) -> str:
        """The table it stands in."""
        return self.name.rpartition(".")[0]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return variable_of(self.name)

    @property
    def is_secret(self) -> bool:
        """Whether its value is never shown."""
        return self.name in _SECRETS

    @property
    def type_name(self) -> str:
        """Its type, for people."""
        return describe(self.kind)

    def show(self, value: Any) -> Any:
        """A value of it as plain data, without what is secret."""
        if self.is_secret and value is not None:
            return HIDDEN
        return _without_passwords(msgspec.to_builtins(value))


def variable_of(name: str) -> str:
    """Return the environment variable that sets a setting."""
    return PREFIX + name.replace(".", "_").upper()


@cache
def settings_keys() -> Mapping[str, Key]:
    """All settings, in the order of the tree."""
    return {it.name: it for it in _walk(NodeConfig, NodeConfig(), "")}


@cache
def sections() -> Mapping[str, str]:
    """The names of all tables, and what each is about."""
    return dict(_sections(NodeConfig, ""))


def _walk(owner: type[msgspec.Struct], defaults: Any, prefix: str) -> Iterator[Key]:
    kinds = get_type_hints(owner)
    meanings = dict(docstrings(owner))
    for field in msgspec.structs.fields(owner):
        kind = kinds[field.name]
        default = None if defaults is None else getattr(defaults, field.name)
        if (inner := struct_in(kind)) is not None:
            yield from _walk(inner, default, f"{prefix}{field.name}.")
            continue
        if defaults is None and field.default is not msgspec.NODEFAULT:
            default = field.default
        factory = field.default_factory
        yield Key(
            name=f"{prefix}{field.name}",
            kind=kind,
            default=default,
            meaning=meanings.get(field.name, ""),
            is_computed=factory is not msgspec.NODEFAULT and factory not in _CONTAINERS,
            is_required=field.required,
        )


def _sections(owner: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str]]:
    meanings = dict(docstrings(owner))
    for name, kind in get_type_hints(owner).items():
        if (inner := struct_in(kind)) is not None:
            about = meanings.get(name) or inspect.getdoc(inner) or ""
            yield f"{prefix}{name}", about
            yield from _sections(inner, f"{prefix}{name}.")


def struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a type is, or may be; None if it is another type."""
    for it in alternatives(kind):
        if inspect.isclass(it) and issubclass(it, msgspec.Struct):
            return it
    return None


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def is_optional(kind: Any) -> bool:
    """Whether a setting of this type may be left open."""
    return NoneType in alternatives(kind)


def essence(kind: Any) -> Any:
    """The type of what somebody gives: there is no None to write."""
    return next(it for it in alternatives(kind) if it is not NoneType)


def describe(kind: Any) -> str:
    """A type, for people."""
    kind = essence(kind)
    named = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
    if kind in named:
        return named[kind]
    if choices := choices_of(kind):
        return f"one of {', '.join(choices)}"
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        choices = choices_of(item)
        if choices:
            return f"a list of {', '.join(choices)}"
        return "a list of texts" if struct_in(item) is None else "a list of texts and tables"
    return "a table"


def choices_of(kind: Any) -> list[str]:
    """All there is of a type that has few values."""
    if get_origin(kind) is Literal:
        return [str(it) for it in get_args(kind)]
    if inspect.isclass(kind) and issubclass(kind, enum.Enum):
        return [str(it.value) for it in kind]
    return []


def docstrings(owner: type) -> Iterator[tuple[str, str]]:
    """Fields of a class and what stands below each, on one line."""
    tree = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(tree, ast.ClassDef)
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            yield ast.unparse(field.target), " ".join(ast.literal_eval(text.value).split())


def without_passwords(text: str) -> str:
    """A text in which passwords of URLs and connection strings are hidden."""
    text = _PASSWORD_IN_URL.sub(rf"\1{HIDDEN}\2", text)
    text = _TOKEN_IN_URL.sub(rf"\1{HIDDEN}\2", text)
    return _PASSWORD_IN_QUERY.sub(rf"\1={HIDDEN}", text)


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return without_passwords(value)
    if isinstance(value, dict):
        return {key: _without_passwords(it) for key, it in value.items()}
    if isinstance(value, list | tuple):
        return [_without_passwords(it) for it in value]
    return value
