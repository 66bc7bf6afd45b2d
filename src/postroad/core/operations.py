"""Tables of operations: what operators can ask and do, described once for every interface.

An operation is a function of a subject, such as a node or a domain, and of parameters. Its
signature is its schema, its docstring its help, and its name, noun and verb, is the same
everywhere.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from postroad.core.errors import ConfigError, PostroadError, UsageError

_LACKING = "Object missing required field "

Run = Callable[..., Awaitable[Any]]
F = TypeVar("F", bound=Run)


class Effect(enum.Enum):
    """What an operation does to its subject."""

    READ = "read"
    """Nothing."""
    CHANGE = "change"
    """It changes what can be changed back."""
    DANGER = "danger"
    """It ends or loses something, so people are asked first."""


class Parameter(NamedTuple):
    """Parameter of an operation."""

    name: str
    type: Any
    default: Any
    """`inspect.Parameter.empty` for a required one."""

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty


class Operation(NamedTuple):
    """One thing that operators can do."""

    name: str
    effect: Effect
    run: Run
    parameters: tuple[Parameter, ...]
    result: Any
    """Type of the result."""
    params: type[msgspec.Struct]
    """All parameters: what arrives from outside is read as one of these."""
    scope: str | None
    """The read operation of the same parameters that shows what would be touched."""
    error: type[PostroadError]
    """Raised if parameters are invalid."""

    @property
    def noun(self) -> str:
        """First part of the name: what it is about."""
        return self.name.partition(".")[0]

    @property
    def verb(self) -> str:
        """Second part of the name: what is done."""
        return self.name.partition(".")[2]

    @property
    def help(self) -> str:
        """Full description."""
        return inspect.getdoc(self.run) or ""

    @property
    def summary(self) -> str:
        """First line of the description."""
        return self.help.partition("\n")[0]

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing."""
        return self.effect is Effect.READ

    async def __call__(self, subject: Any, params: msgspec.Struct | None = None) -> Any:
        """Run it with parameters that were read already."""
        return await self.run(subject, **({} if params is None else msgspec.structs.asdict(params)))

    def read_params(self, values: Mapping[str, Any], *, strict: bool = True) -> msgspec.Struct:
        """Return the parameters as a struct; raises `error`, which names what is nearest.

        `strict` is False where everything is text, as in a query string.
        """
        names = [parameter.name for parameter in self.parameters]
        for name in values:
            if name not in names:
                near = get_close_matches(name, names, 1)
                listed = ", ".join(names) or "none"
                hint = f"; did you mean {near[0]!r}?" if near else f"; it has {listed}"
                raise self.error(f"{self.name} has no parameter {name!r}{hint}")
        try:
            return msgspec.convert(values, self.params, strict=strict)
        except msgspec.ValidationError as error:
            raise self.error(f"{self.name}: {explain(error)}") from None


def explain(error: msgspec.ValidationError) -> str:
    """Return what is wrong with which parameter."""
    problem, at, path = str(error).partition(" - at `$.")
    if problem.startswith(_LACKING):
        problem = f"{problem.removeprefix(_LACKING)} is missing"
    return f"{path.removesuffix('`')}: {problem}" if at else problem


class Operations(Mapping[str, Operation]):
    """Operations by name; they raise `error` if parameters are invalid."""

    def __init__(self, error: type[PostroadError] = ConfigError) -> None:
        self._error = error
        self._all: dict[str, Operation] = {}

    def operation(
        self, name: str, effect: Effect = Effect.READ, *, scope: str | None = None
    ) -> Callable[[F], F]:
        """Return a decorator that adds a function; its first parameter is the subject.

        Args:
            name: noun and verb, `queue.pause`.
            effect: what it does.
            scope: the read operation of the same parameters that shows what would be touched.
        """

        def add(function: F) -> F:
            subject, *declared = inspect.signature(function).parameters.values()
            # The type of the subject may be known to mypy alone.
            annotations = dict(function.__annotations__)
            annotations.pop(subject.name, None)
            holder = SimpleNamespace(__annotations__=annotations)
            hints = get_type_hints(holder, function.__globals__, include_extras=True)
            parameters = tuple(
                Parameter(parameter.name, hints.get(parameter.name, str), parameter.default)
                for parameter in declared
            )
            fields = [
                (parameter.name, parameter.type)
                if parameter.is_required
                else (parameter.name, parameter.type, parameter.default)
                for parameter in parameters
            ]
            title = "".join(part.capitalize() for part in re.split(r"\W", name))
            params = msgspec.defstruct(
                f"{title}Params", fields, kw_only=True, frozen=True, forbid_unknown_fields=True
            )
            result = hints.get("return", Any)
            self.add(
                Operation(name, effect, function, parameters, result, params, scope, self._error)
            )
            return function

        return add

    def add(self, operation: Operation) -> None:
        """Add an operation; raises UsageError if there is one of its name."""
        if operation.name in self._all:
            raise UsageError(f"there are two operations {operation.name!r}")
        self._all[operation.name] = operation

    def include(
        self,
        others: Operations,
        subject_of: Callable[[Any], Any],
        name_of: Callable[[str], str] = str,
    ) -> None:
        """Add the operations of another table, whose subject is part of the subject here.

        Those that this table defines already are left out.
        """
        for operation in others.values():
            name = name_of(operation.name)
            if name not in self:
                run = _run_on(operation.run, subject_of)
                self.add(operation._replace(name=name, run=run, error=self._error))

    def find(self, name: str) -> Operation:
        """Return the operation of a name; raises an error that names the nearest."""
        match = self._all.get(name)
        if match is None:
            near = get_close_matches(name, self._all, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise self._error(f"there is no operation {name!r}{hint}")
        return match

    def __getitem__(self, name: str) -> Operation:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all))

    def __len__(self) -> int:
        return len(self._all)


def _run_on(run: Run, subject_of: Callable[[Any], Any]) -> Run:
    @wraps(run)
    async def run_on(subject: Any, **values: Any) -> Any:
        return await run(subject_of(subject), **values)

    return run_on
