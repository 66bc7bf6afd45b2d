"""Definitions of flows: the function, its name and version, and the flow that it responds to."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    get_type_hints,
    overload,
)

import msgspec
from msgspec import UNSET, UnsetType

from postroad.core.errors import ConfigError, UsageError
from postroad.core.json_schema import json_schema
from postroad.flows.errors import WrongSignalError
from postroad.flows.machine import values
from postroad.flows.nondeterminism_lint import find_nondeterministic_calls, format_findings
from postroad.flows.sessions.messages import is_valid_name
from postroad.flows.signal_analysis import Signals, find_signals

if TYPE_CHECKING:
    from postroad.flows.context import FlowContext, FlowSession
    from postroad.flows.sync_context import SyncFlowContext, SyncFlowSession

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

FlowFunction = Callable[Concatenate["FlowContext", P], Coroutine[Any, Any, R]]
SyncFlowFunction = Callable[Concatenate["SyncFlowContext", P], R]


_SEVERAL = {
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
}


class NondeterminismWarning(UserWarning):
    """The code of a flow calls a function whose result may differ when the code is replayed."""


class FlowDefinition(Generic[P, R_co]):
    """A flow that can be started, or that responds to another one.

    Attributes:
        name: its name at every node.
        version: sent to the other end of each session.
        app: the application that it belongs to; sent likewise.
        concurrency: the most flows of this name that run on one node at the same time; None: any.
        timeout_s: seconds after which a flow fails; None: never.
        responds_to: the name of the flow that opens sessions with it.
        versions: versions of that flow that are accepted; None: all.
    """

    _signals: Signals | UnsetType | None = UNSET

    def __init__(
        self,
        function: FlowFunction[P, R_co] | SyncFlowFunction[P, R_co],
        *,
        name: str | None = None,
        version: int = 1,
        app: str = "",
        concurrency: int | None = None,
        timeout_s: float | None = None,
        responds_to: str | None = None,
        versions: Iterable[int] | None = None,
    ) -> None:
        self._start = _starter(function)
        self.function: Callable[..., Any] = function
        self.name = name or function.__name__
        self.version = version
        self.app = app
        self.concurrency = concurrency
        self.timeout_s = timeout_s
        self.responds_to = responds_to
        self.versions = None if versions is None else frozenset(versions)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__wrapped__ = function
        self._check()
        self._signature = inspect.signature(function)
        # Annotations may name later definitions, so they are resolved when the flow first runs.
        self._types: dict[str, Any] | None = None
        if impurities := find_nondeterministic_calls(function):
            warnings.warn(
                NondeterminismWarning(format_findings(impurities, function)), stacklevel=4
            )

    def _check(self) -> None:
        if not is_valid_name(self.name):
            raise ConfigError(
                f"a flow cannot be called {self.name!r}: 1 to 200 characters that can be printed"
            )
        if self.app and not is_valid_name(self.app):
            raise ConfigError(
                f"app={self.app!r} of flow {self.name!r}: 1 to 200 characters that can be printed"
            )
        if self.version < 1:
            raise ConfigError(f"version={self.version} of flow {self.name!r} must be 1 or more")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(
                f"concurrency={self.concurrency} of flow {self.name!r} must be 1 or more"
            )
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(f"timeout={self.timeout_s} of flow {self.name!r} must be above 0")

    def __call__(
        self, ctx: FlowContext, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R_co]:
        """Return the code of the flow as a coroutine."""
        return self._start(ctx, *args, **kwargs)

    def rejection_reason(self, initiator: str, version: int) -> str | None:
        """Return why it does not respond to a flow of this version; None if it does."""
        if self.versions is None or version in self.versions:
            return None
        versions = ", ".join(map(str, sorted(self.versions)))
        return f"{self.name} talks to versions {versions} of {initiator}, not to {version}"

    def encode_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Encode arguments for the store; raises UsageError if they do not fit."""
        if kwargs or not self._fits(len(args)):
            try:
                self._signature.bind(None, *args, **kwargs)
            except TypeError as error:
                raise UsageError(f"flow {self.name!r}: {error}") from None
        return values.encode_value((args, kwargs), f"an argument of flow {self.name!r}")

    def name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return arguments by parameter name; unchanged if they do not fit any more."""
        try:
            bound = self._signature.bind(None, *args, **kwargs)
        except TypeError:
            return [args, kwargs]
        return dict(list(bound.arguments.items())[1:])

    def _fits(self, count: int) -> bool:
        """Whether this number of positional arguments is certainly valid."""
        plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [*self._signature.parameters.values()][1:]
        return count == len(parameters) and all(parameter.kind is plain for parameter in parameters)

    def decode_arguments(self, encoded: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Decode arguments as the types of its parameters."""
        args, kwargs = values.decode_value(encoded, tuple[list[Any], dict[str, Any]])
        types = self._find_types()
        if not kwargs and self._fits(len(args)):
            names = [*self._signature.parameters][1:]
            converted = map(_convert, args, map(types.get, names))
            return list(converted), {}
        bound = self._signature.bind(None, *args, **kwargs)
        for name, value in list(bound.arguments.items())[1:]:
            hint = types.get(name)
            kind = bound.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple([_convert(element, hint) for element in value])
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: _convert(each, hint) for key, each in value.items()}
            else:
                bound.arguments[name] = _convert(value, hint)
        return list(bound.args[1:]), bound.kwargs

    def _find_types(self) -> dict[str, Any]:
        if self._types is None:
            try:
                self._types = get_type_hints(self.function)
            except Exception:
                # Annotations may name what exists for type checkers only.
                self._types = {}
        return self._types

    def check_signal(self, name: str, encoded: bytes) -> None:
        """Raise WrongSignalError if its code waits for no such signal, as far as can be known."""
        if self._signals is UNSET:
            # Not earlier: the code may name later definitions.
            self._signals = find_signals(self.function)
        signal_types = self._signals
        if signal_types is None:
            return
        if name not in signal_types:
            similar_names = get_close_matches(name, signal_types, 1)
            hint = f"; did you mean {similar_names[0]!r}?" if similar_names else "."
            names = ", ".join(map(repr, sorted(signal_types))) or "none"
            raise WrongSignalError(
                f"the code of flow {self.name!r} waits for no signal {name!r}{hint} It waits for: "
                f"{names}"
            )
        problems = [values.type_mismatch(encoded, expected) for expected in signal_types[name]]
        if None not in problems:
            raise WrongSignalError(
                f"signal {name!r} of flow {self.name!r} cannot have this value: {problems[0]}"
            )

    @property
    def description(self) -> str:
        """The docstring of its function."""
        return inspect.getdoc(self.function) or ""

    def arguments_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of its arguments by name; None if they have none."""
        arguments_type = self.arguments_type()
        return None if arguments_type is None else json_schema(arguments_type)

    def arguments_type(self) -> type[msgspec.Struct] | None:
        """Return a struct type of its arguments by name; None if they have none."""
        parameters = [*self._signature.parameters.values()][1:]
        if self.responds_to is not None or {each.kind for each in parameters} & _SEVERAL:
            return None
        types = self._find_types()
        fields = [
            (parameter.name, types.get(parameter.name, Any))
            if parameter.default is parameter.empty
            else (parameter.name, types.get(parameter.name, Any), parameter.default)
            for parameter in parameters
        ]
        return msgspec.defstruct("Arguments", fields, kw_only=True)

    @property
    def result_type(self) -> Any:
        """The annotated type of its result."""
        return values.result_type(self.function)

    def __repr__(self) -> str:
        return f"<flow {self.name} version {self.version}>"


def _convert(value: Any, hint: Any) -> Any:
    if hint is None or hint is Any or value.__class__ is hint:
        return value
    return msgspec.convert(value, hint)


class _Define(Protocol):
    """The type of `flow(...)`, for functions of both forms."""

    @overload
    def __call__(self, function: FlowFunction[P, R], /) -> FlowDefinition[P, R]: ...
    @overload
    def __call__(self, function: SyncFlowFunction[P, R], /) -> FlowDefinition[P, R]: ...


class _DefineResponder(Protocol):
    """The type of `responder(...)`, for functions of both forms."""

    @overload
    def __call__(
        self, function: FlowFunction[[FlowSession], R], /
    ) -> FlowDefinition[[FlowSession], R]: ...
    @overload
    def __call__(
        self, function: SyncFlowFunction[[SyncFlowSession], R], /
    ) -> FlowDefinition[[SyncFlowSession], R]: ...


@overload
def flow(function: FlowFunction[P, R], /) -> FlowDefinition[P, R]: ...


@overload
def flow(function: SyncFlowFunction[P, R], /) -> FlowDefinition[P, R]: ...


@overload
def flow(
    *,
    name: str | None = None,
    version: int = 1,
    app: str = "",
    concurrency: int | None = None,
    timeout: float | None = None,
) -> _Define: ...


def flow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    app: str = "",
    concurrency: int | None = None,
    timeout: float | None = None,
) -> Any:
    """Make a flow of a function.

        @flow
        async def ping(ctx: FlowContext, peer: str) -> str:
            return await ctx.open_session(peer).send_and_receive("Ping", str)

    A plain `def` gets a `SyncFlowContext`, whose methods wait without `await`.

    Args:
        name: its name at every node; by default that of the function.
        version: sent to the other end of each session.
        app: the application that it belongs to; sent likewise.
        concurrency: the most flows of this name that run on one node at the same time.
        timeout: seconds after which the flow fails.
    """

    def define(function: Callable[..., Any]) -> FlowDefinition[Any, Any]:
        return FlowDefinition(
            function,
            name=name,
            version=version,
            app=app,
            concurrency=concurrency,
            timeout_s=timeout,
        )

    return define if function is None else define(function)


def responder(
    initiator: FlowDefinition[Any, Any] | str,
    *,
    name: str | None = None,
    version: int = 1,
    app: str = "",
    versions: Iterable[int] | None = None,
    concurrency: int | None = None,
    timeout: float | None = None,
) -> _DefineResponder:
    """Make a flow that is started when another one opens a session with this node.

    Args:
        initiator: the other flow, or its name.
        versions: versions of the other flow that are accepted; sessions of others are rejected.
        name: this and the other parameters are as for `flow`.
    """
    initiator_name = initiator if isinstance(initiator, str) else initiator.name

    def define(function: Callable[..., Any]) -> FlowDefinition[Any, Any]:
        return FlowDefinition(
            function,
            name=name,
            version=version,
            app=app,
            concurrency=concurrency,
            timeout_s=timeout,
            responds_to=initiator_name,
            versions=versions,
        )

    return define


def _starter(function: object) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a function that starts the code of a flow as a coroutine, for both forms."""
    if inspect.iscoroutinefunction(function):
        return function
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if is_generator or not callable(function):
        raise UsageError(f"a flow is an `async def` or a `def` function, and {function!r} is none")
    from postroad.flows.sync_context import starter

    return starter(function)


class FlowRegistry:
    """The flows of a node, by name and by the flow they respond to."""

    def __init__(self, flows: Iterable[FlowDefinition[Any, Any]] | ModuleType) -> None:
        self._flows: dict[str, FlowDefinition[Any, Any]] = {}
        self._responders: dict[str, FlowDefinition[Any, Any]] = {}
        definitions = _flows_of(flows) if isinstance(flows, ModuleType) else list(flows)
        for definition in definitions:
            self.add(definition)

    def add(self, definition: FlowDefinition[Any, Any]) -> None:
        """Register a flow."""
        if not isinstance(definition, FlowDefinition):
            raise UsageError(f"{definition!r} is no flow: decorate it with @flow or @responder")
        registered = self._flows.setdefault(definition.name, definition)
        if registered is not definition:
            raise ConfigError(f"two flows are called {definition.name!r}: give one another name")
        if definition.responds_to is not None:
            registered = self._responders.setdefault(definition.responds_to, definition)
            if registered is not definition:
                raise ConfigError(
                    f"{definition.name!r} and {registered.name!r} both respond to "
                    f"{definition.responds_to!r}"
                )

    def check_startable(self, definition: FlowDefinition[Any, Any]) -> None:
        """Raise UsageError if this node cannot start the flow."""
        if self.find(definition.name) is not definition:
            raise UsageError(f"{definition!r} is no flow of this node; add it to its flows")
        if definition.responds_to is not None:
            raise UsageError(
                f"{definition!r} responds to {definition.responds_to}; only that flow starts it"
            )

    def find(self, name: str) -> FlowDefinition[Any, Any] | None:
        """Return the flow of this name, or None."""
        return self._flows.get(name)

    def find_responder(self, initiator: str) -> FlowDefinition[Any, Any] | None:
        """Return the flow that responds to another one, or None."""
        return self._responders.get(initiator)

    def __iter__(self) -> Iterator[FlowDefinition[Any, Any]]:
        return iter(self._flows.values())


def _flows_of(module: ModuleType) -> list[FlowDefinition[Any, Any]]:
    return [value for value in vars(module).values() if isinstance(value, FlowDefinition)]
