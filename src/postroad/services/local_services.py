"""The services of this node: what they say of themselves, and their methods as handlers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from postroad.core.errors import ConfigError

from .action_schemas import hinted_schema
from .config import BrokerConfig
from .context import Context
from .describing import describe_service
from .gates import gated
from .method_params import MethodHandler
from .middleware import Middleware, wrapped
from .options_form import write_breaker, write_bulkhead, write_retry
from .running import Activity, limited
from .schema import ActionInfo, EventInfo, ServiceInfo
from .service import (
    ActionOptions,
    CacheOptions,
    EventOptions,
    Service,
    actions_of,
    events_of,
    merged,
    merged_dependencies,
)
from .told_schemas import KEY as SCHEMA_KEY
from .told_schemas import choose
from .ways import Handler, PlainHandler, Way, way_of

_MILLISECONDS = 1000

Options = TypeVar("Options", ActionOptions, EventOptions)


class Caching(Protocol):
    """What keeps results of actions."""

    async def start(self, namespace: str) -> None:
        """The broker starts."""
        ...

    async def stop(self) -> None:
        """The broker has stopped."""
        ...

    async def clean(self, *patterns: str) -> None:
        """Forget the results of the actions whose names fit."""
        ...

    def around(self, handler: Handler, action: ActionInfo, options: CacheOptions) -> Handler:
        """A handler that looks for a kept result first."""
        ...


class LocalEvent:
    """A handler of events of this node."""

    __slots__ = ("info", "plain", "run", "service")

    def __init__(
        self, service: str, info: EventInfo, run: Handler, plain: PlainHandler | None
    ) -> None:
        self.service = service
        self.info = info
        self.run = run
        self.plain = plain


class LocalService:
    """One service of this node, ready to be run."""

    def __init__(self, service: Service, info: ServiceInfo) -> None:
        self.service = service
        self.info = info
        self.actions: dict[str, Way] = {}
        self.events: dict[tuple[str, str], LocalEvent] = {}
        self.dependencies = merged_dependencies(service)
        self.activity = Activity()


class ServiceBuilder:
    """Makes services ready to be run, with everything around their methods."""

    def __init__(
        self,
        config: BrokerConfig,
        middlewares: Sequence[Middleware],
        caching: Caching | None,
        *,
        node_id: str,
    ) -> None:
        self._config = config
        self._middlewares = middlewares
        self._caching = caching
        self._node_id = node_id

    def build(self, service: Service) -> LocalService:
        """Make a service ready; raises ConfigError if it makes no sense."""
        actions = _by_name(actions_of(service), service)
        events = _by_name(events_of(service), service)
        service.settings = merged(service, "settings")  # type: ignore[misc]
        service.metadata = merged(service, "metadata")  # type: ignore[misc]
        info = describe_service(
            service.name or type(service).__name__.lower(),
            version=service.version,
            settings=service.settings,
            metadata=service.metadata,
            actions=_action_definitions(actions),
            events={name: _event_definition(*said) for name, said in events.items()},
        )
        service.full_name = info.full_name
        service.logger = logging.getLogger(f"postroad.services.{info.full_name}")
        built = LocalService(service, info)
        for action in info.actions:
            built.actions[action.name] = self._action(built, action, *actions[action.raw_name])
        for event in info.events:
            method, options = events[event.name]
            key = info.group_of(event), event.name
            built.events[key] = self._event(info, event, method, options)
        return built

    def _action(
        self,
        built: LocalService,
        info: ActionInfo,
        method: Callable[..., Any],
        options: ActionOptions,
    ) -> Way:
        validates = self._config.validates
        inner = MethodHandler(method, options.params, place=info.name, validates=validates)
        run = bare = _awaited(inner)
        run = wrapped(self._middlewares, "local_action", run, info)
        bulkhead = options.bulkhead or self._config.bulkhead
        if bulkhead.is_enabled:
            run = gated(run, bulkhead, place=info.name, node_id=self._node_id)
        if options.cache is not None and self._caching is not None:
            run = self._caching.around(run, info, options.cache)
        is_plain = inner.is_plain and run is bare
        return way_of(
            info,
            limited(run, built.activity),
            self._config,
            plain=inner.run if is_plain else None,
            fallback=options.fallback,
            stays_here=built.info.is_internal or not info.is_remote,
        )

    def _event(
        self,
        service: ServiceInfo,
        info: EventInfo,
        method: Callable[..., Any],
        options: EventOptions,
    ) -> LocalEvent:
        validates = self._config.validates
        place = f"{service.full_name} on {info.name}"
        inner = MethodHandler(method, options.params, place=place, validates=validates)
        run = bare = _awaited(inner)
        run = wrapped(self._middlewares, "local_event", run, info)
        bulkhead = options.bulkhead or self._config.bulkhead
        if bulkhead.is_enabled:
            run = gated(run, bulkhead, place=place, node_id=self._node_id)
        is_plain = inner.is_plain and run is bare
        return LocalEvent(service.full_name, info, run, inner.run if is_plain else None)


def _by_name(
    marked: Iterable[tuple[str, Callable[..., Any], Options]], service: Service
) -> dict[str, tuple[Callable[..., Any], Options]]:
    """Methods and what is said of them by the name or pattern that they are known by."""
    found: dict[str, tuple[Callable[..., Any], Options]] = {}
    for name, method, options in marked:
        if name in found:
            raise ConfigError(f"{service} has {name!r} twice")
        found[name] = method, options
    return found


def _awaited(handler: MethodHandler) -> Handler:
    """A handler that can be awaited, whatever the method is."""
    if not handler.is_plain:
        return handler.run
    plain = handler.run

    async def run(ctx: Context) -> Any:
        result = plain(ctx)
        return await result if isinstance(result, Awaitable) else result

    return run


def _action_definitions(
    actions: Mapping[str, tuple[Callable[..., Any], ActionOptions]],
) -> dict[str, Mapping[str, Any]]:
    schemas = choose({name: hinted_schema(*said, name) for name, said in actions.items()})
    return {
        name: _action_definition(method, options, schemas.get(name))
        for name, (method, options) in actions.items()
    }


def _action_definition(
    method: Callable[..., Any], options: ActionOptions, schema: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    said: dict[str, Any] = {
        "params": options.params,
        SCHEMA_KEY: schema,
        "description": options.description or inspect.getdoc(method),
        "visibility": options.visibility.value,
        "timeout": None if options.timeout_s is None else options.timeout_s * _MILLISECONDS,
        "strategy": options.strategy,
        "strategyOptions": options.strategy_options,
        "cache": _cache_definition(options.cache),
        "retryPolicy": options.retry and write_retry(options.retry),
        "circuitBreaker": options.breaker and write_breaker(options.breaker),
        "bulkhead": options.bulkhead and write_bulkhead(options.bulkhead),
    }
    return {**{key: value for key, value in said.items() if value is not None}, **options.more}


def _event_definition(method: Callable[..., Any], options: EventOptions) -> Mapping[str, Any]:
    said: dict[str, Any] = {
        "group": options.group or None,
        "params": options.params,
        "description": options.description or inspect.getdoc(method),
        "strategy": options.strategy,
        "strategyOptions": options.strategy_options,
    }
    return {**{key: value for key, value in said.items() if value is not None}, **options.more}


def _cache_definition(cache: CacheOptions | None) -> Any:
    if cache is None:
        return None
    said = {"keys": cache.keys and [*cache.keys], "ttl": cache.ttl_s}
    return {key: value for key, value in said.items() if value is not None} or True
