"""What operators can ask of a node and do to it: one table, for HTTP, CLI, shell and dashboard.

An operation is a function that takes the office, and whatever the operator says. Its signature is
its schema, its docstring its help, and its name, noun and verb, is the same everywhere:
`queue.pause` is `POST /api/v1/queue/pause`, `postroad queue pause`, and a button.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from postroad.admin.errors import InvalidRequest
from postroad.core.errors import UsageError

from .office import Office

_LACKING = "Object missing required field "

Run = Callable[..., Awaitable[Any]]
F = TypeVar("F", bound=Run)


class Effect(enum.Enum):
    """What an operation does to the node."""

    READ = "read"
    """Nothing."""
    CHANGE = "change"
    """It changes what can be changed back."""
    DANGER = "danger"
    """It ends or loses something, so people are asked first."""


class Parameter(NamedTuple):
    """Something that an operator says."""

    name: str
    type: Any
    default: Any
    """`inspect.Parameter.empty` if it must be said."""

    @property
    def is_required(self) -> bool:
        """Whether it must be said."""
        return self.default is inspect.Parameter.empty


class Operation(NamedTuple):
    """One thing that operators can do."""

    name: str
    effect: Effect
    run: Run
    parameters: tuple[Parameter, ...]
    result: Any
    """The type of what it returns."""
    params: type[msgspec.Struct]
    """All parameters together: what arrives from outside is read as one of these."""
    scope: str | None
    """What it counts before it is done, for those who ask first: the name of a read operation."""

    @property
    def noun(self) -> str:
        """What it is about."""
        return self.name.partition(".")[0]

    @property
    def verb(self) -> str:
        """What is done."""
        return self.name.partition(".")[2]

    @property
    def help(self) -> str:
        """All that is to be said about it."""
        return inspect.getdoc(self.run) or ""

    @property
    def summary(self) -> str:
        """Its first sentence."""
        return self.help.partition("\n")[0]

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing."""
        return self.effect is Effect.READ

    async def __call__(self, office: Office, params: msgspec.Struct | None = None) -> Any:
        """Do it, with parameters that were read already."""
        said = {} if params is None else msgspec.structs.asdict(params)
        return await self.run(office, **said)

    def read_params(self, said: Mapping[str, Any], *, strict: bool = True) -> msgspec.Struct:
        """What an operator said, checked.

        Args:
            strict: False where everything is text, as in a query string.

        Raises:
            InvalidRequest: it does not fit; names what is nearest.
        """
        known = [it.name for it in self.parameters]
        for name in said:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else _knows(known)
                raise InvalidRequest(f"{self.name} has no parameter {name!r}{hint}")
        try:
            return msgspec.convert(said, self.params, strict=strict)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{self.name}: {explain(error)}") from None


def _knows(known: list[str]) -> str:
    return f"; it has {', '.join(known)}" if known else "; it has none"


def explain(error: msgspec.ValidationError) -> str:
    """What is wrong with which parameter."""
    what, at, path = str(error).partition(" - at `$.")
    if what.startswith(_LACKING):
        what = f"{what.removeprefix(_LACKING)} is missing"
    return f"{path.removesuffix('`')}: {what}" if at else what


class Operations(Mapping[str, Operation]):
    """All operations, by name."""

    def __init__(self) -> None:
        self._all: dict[str, Operation] = {}

    def add(self, operation: Operation) -> None:
        """Know one more."""
        if operation.name in self._all:
            raise UsageError(f"there are two operations {operation.name!r}")
        self._all[operation.name] = operation

    def find(self, name: str) -> Operation:
        """The operation of a name; raises InvalidRequest that names the nearest."""
        found = self._all.get(name)
        if found is None:
            near = get_close_matches(name, self._all, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidRequest(f"there is no operation {name!r}{hint}")
        return found

    def __getitem__(self, name: str) -> Operation:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._all))

    def __len__(self) -> int:
        return len(self._all)


OPERATIONS = Operations()


def operation(
    name: str, effect: Effect = Effect.READ, *, scope: str | None = None
) -> Callable[[F], F]:
    """Add a function to the table.

    Args:
        name: noun and verb, `queue.pause`.
        effect: what it does to the node.
        scope: the read operation of the same parameters that shows what would be touched.
    """

    def add(function: F) -> F:
        hints = get_type_hints(function, include_extras=True)
        said = [*inspect.signature(function).parameters.values()][1:]
        parameters = tuple(Parameter(it.name, hints[it.name], it.default) for it in said)
        fields = [
            (it.name, it.type) if it.is_required else (it.name, it.type, it.default)
            for it in parameters
        ]
        title = "".join(part.capitalize() for part in name.replace("-", ".").split("."))
        params = msgspec.defstruct(
            f"{title}Params", fields, kw_only=True, frozen=True, forbid_unknown_fields=True
        )
        OPERATIONS.add(
            Operation(name, effect, function, parameters, hints["return"], params, scope)
        )
        return function

    return add
