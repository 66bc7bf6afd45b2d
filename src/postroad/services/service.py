"""Services as classes: actions and events are methods, mixins are base classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

import msgspec

from postroad.core.errors import ConfigError

from .breakers import BreakerConfig
from .bulkheads import BulkheadConfig
from .policies import RetryPolicy
from .schema import Version, Visibility

if TYPE_CHECKING:
    from .broker import Broker

Method = TypeVar("Method", bound=Callable[..., Any])
_ACTION = "__postroad_action__"
_EVENT = "__postroad_event__"


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How results of an action are kept."""

    keys: tuple[str, ...] | None = None
    """The params that make two calls the same; `#name` is one of meta, `@name` a header.

    None for all params, and nothing else: a result that depends on meta, as on who calls, needs it
    among the keys.
    """
    ttl_s: float | None = None
    """How long a result is good; None for what the cache says."""


class ActionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of an action besides its code."""

    name: str | None = None
    params: Mapping[str, Any] | Sequence[Any] | None = None
    visibility: Visibility = Visibility.PUBLISHED
    timeout_s: float | None = None
    cache: CacheOptions | None = None
    retry: RetryPolicy | None = None
    breaker: BreakerConfig | None = None
    bulkhead: BulkheadConfig | None = None
    strategy: str | None = None
    strategy_options: Mapping[str, Any] | None = None
    fallback: Callable[..., Any] | None = None
    description: str = ""
    more: Mapping[str, Any] = msgspec.field(default_factory=dict)


class EventOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a handler of events besides its code."""

    pattern: str
    group: str = ""
    params: Mapping[str, Any] | Sequence[Any] | None = None
    bulkhead: BulkheadConfig | None = None
    strategy: str | None = None
    strategy_options: Mapping[str, Any] | None = None
    description: str = ""
    more: Mapping[str, Any] = msgspec.field(default_factory=dict)


@overload
def action(function: Method, /) -> Method: ...


@overload
def action(
    *,
    name: str | None = None,
    params: Mapping[str, Any] | Sequence[Any] | None = None,
    visibility: Visibility | str = Visibility.PUBLISHED,
    timeout_s: float | None = None,
    cache: bool | Sequence[str] | CacheOptions = False,
    retry: RetryPolicy | None = None,
    breaker: BreakerConfig | None = None,
    bulkhead: BulkheadConfig | None = None,
    strategy: str | None = None,
    strategy_options: Mapping[str, Any] | None = None,
    fallback: Callable[..., Any] | None = None,
    description: str = "",
    **more: Any,
) -> Callable[[Method], Method]: ...


def action(
    function: Method | None = None, /, *, cache: Any = False, visibility: Any = None, **said: Any
) -> Method | Callable[[Method], Method]:
    """Make a method an action, which any node can call by the name of its service and its own.

    The method gets a Context. What comes after that are fields of the params, checked by their
    type hints: `async def add(self, ctx, a: int, b: int = 0)`. A single one called `params` gets
    all of them at once, in the type it is annotated with.

    Args:
        function: the method, when it is used without parentheses.
        name: instead of the name of the method.
        params: a schema in the notation of Moleculer, instead of type hints.
        visibility: who may call it: `published`, `public`, `protected` or `private`.
        timeout_s: time for a call whose caller names none; 0 is no limit.
        cache: keep results; a list names the params that tell calls apart.
        retry: whether a failed call is tried again, and when.
        breaker: when a node that fails is left alone.
        bulkhead: how many calls run at once at a node.
        strategy: how one of several nodes is chosen.
        strategy_options: settings of the strategy.
        fallback: called as `fallback(ctx, error)` for a result when all else failed.
        description: for people; the docstring of the method if not given.
        more: anything else that others shall read in the registry, such as `rest`.
    """
    if function is not None:
        return action()(function)
    _check_time(said)
    known = {it.name for it in msgspec.structs.fields(ActionOptions)}
    options = ActionOptions(
        cache=_cache_options(cache),
        visibility=_visibility(visibility),
        more={key: value for key, value in said.items() if key not in known},
        **{key: value for key, value in said.items() if key in known},
    )

    def mark(method: Method) -> Method:
        setattr(method, _ACTION, options)
        return method

    return mark


def event(
    pattern: str,
    *,
    group: str = "",
    params: Mapping[str, Any] | Sequence[Any] | None = None,
    bulkhead: BulkheadConfig | None = None,
    strategy: str | None = None,
    strategy_options: Mapping[str, Any] | None = None,
    description: str = "",
    **more: Any,
) -> Callable[[Method], Method]:
    """Make a method a handler of events whose name fits a pattern.

    Args:
        pattern: a name; `*` stands for one part of it, `**` for any number of parts.
        group: each event comes once to each group; by default the name of the service.
        params: a schema in the notation of Moleculer for the data, instead of type hints.
        bulkhead: how many events are handled at once.
        strategy: how one of several nodes is chosen.
        strategy_options: settings of the strategy.
        description: for people; the docstring of the method if not given.
        more: anything else that others shall read in the registry.
    """
    options = EventOptions(
        pattern=pattern,
        group=group,
        params=params,
        bulkhead=bulkhead,
        strategy=strategy,
        strategy_options=strategy_options,
        description=description,
        more=more,
    )

    def mark(method: Method) -> Method:
        setattr(method, _EVENT, options)
        return method

    return mark


class Service:
    """Base of all services. A mixin is a base class with actions, events or settings of its own.

    What a mixin has can be overridden, and be taken away by `find = None`. Settings, metadata and
    dependencies of all of them are merged.

    Attributes:
        name: by which it is called.
        version: a number or a text; part of the full name, `v2.posts`.
        settings: for the service itself, and for others to read but those in `$secureSettings`.
        metadata: for others to read.
        dependencies: services that must be there before this one starts.
        dependency_timeout_s: how long it waits for them; None for as long as it takes.
        broker: the broker it was added to.
        logger: with the full name of the service.
    """

    name: str = ""
    version: Version | None = None
    settings: ClassVar[Mapping[str, Any]] = {}
    metadata: ClassVar[Mapping[str, Any]] = {}
    dependencies: ClassVar[Sequence[str]] = ()
    dependency_timeout_s: float | None = None

    broker: Broker
    logger: logging.Logger
    full_name: str

    def created(self) -> None:
        """Called when it is added to a broker."""
        return

    async def started(self) -> None:
        """Called when its broker starts and its dependencies are there; then it is announced."""
        return

    async def stopped(self) -> None:
        """Called when its broker stops, and its last call has ended."""
        return

    def __repr__(self) -> str:
        return f"<Service {getattr(self, 'full_name', self.name)}>"


def actions_of(service: Service) -> Iterator[tuple[str, Callable[..., Any], ActionOptions]]:
    """The actions of a service: the name, the bound method, and what is said of it."""
    for attribute, method, options in _marked(service, _ACTION):
        yield options.name or attribute, method, options


def events_of(service: Service) -> Iterator[tuple[str, Callable[..., Any], EventOptions]]:
    """The handlers of events of a service: the pattern, the bound method, and the options."""
    for _, method, options in _marked(service, _EVENT):
        yield options.pattern, method, options


def merged(service: Service, attribute: str) -> dict[str, Any]:
    """The settings or metadata of a service and its mixins; what is nearer to the service wins.

    Objects in both are merged as well.
    """
    found: dict[str, Any] = {}
    for said in _said_by_all(service, attribute):
        found = _merged(found, said)
    return found


def merged_dependencies(service: Service) -> tuple[str, ...]:
    """What a service and its mixins depend on."""
    names: dict[str, None] = {}
    for said in _said_by_all(service, "dependencies"):
        names.update(dict.fromkeys([said] if isinstance(said, str) else said))
    return tuple(names)


def _said_by_all(service: Service, attribute: str) -> Iterator[Any]:
    """What each class says, those that are farthest first, and the service itself last."""
    for kind in (*reversed(type(service).__mro__), service):
        if attribute in vars(kind):
            yield vars(kind)[attribute]


def _merged(far: Mapping[str, Any], near: Mapping[str, Any]) -> dict[str, Any]:
    found = {**far}
    for key, value in near.items():
        before = found.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = _merged(before, value)
        found[key] = value
    return found


def _marked(service: Service, mark: str) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """What is marked in a class or one of its bases; an override need not be."""
    found: dict[str, Any] = {}
    for kind in type(service).__mro__:
        for attribute, value in vars(kind).items():
            function = getattr(value, "__func__", value)
            options = getattr(function, mark, None) or getattr(value, mark, None)
            if options is not None:
                found.setdefault(attribute, options)
    for attribute, options in found.items():
        method = getattr(service, attribute)
        if method is not None:
            yield attribute, method, options


def _check_time(said: Mapping[str, Any]) -> None:
    if "timeout" in said:
        # Others would read it as milliseconds.
        raise ConfigError("an action has no timeout; say timeout_s, in seconds")
    time_s = said.get("timeout_s")
    is_number = isinstance(time_s, int | float) and not isinstance(time_s, bool)
    if time_s is not None and not (is_number and time_s >= 0):
        raise ConfigError(f"timeout_s={time_s!r} must be a number, 0 or more")


def _cache_options(said: Any) -> CacheOptions | None:
    if isinstance(said, bool) or said is None:
        return CacheOptions() if said else None
    return said if isinstance(said, CacheOptions) else CacheOptions(keys=tuple(said))


def _visibility(said: Visibility | str | None) -> Visibility:
    if said is None:
        return Visibility.PUBLISHED
    try:
        return Visibility(said)
    except ValueError:
        valid = ", ".join(it.value for it in Visibility)
        raise ConfigError(f"visibility {said!r} is none of {valid}") from None
