"""Calls: who gets it, how long it may take, and what is done when it fails."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

import msgspec

from postroad.core import tracing
from postroad.core.errors import UsageError

from .actions import ActionCatalog
from .breaking import Breakers
from .config import BrokerConfig
from .context import Context
from .endpoints import Endpoint
from .errors import (
    MaxCallLevelError,
    MoleculerError,
    RequestSkippedError,
    ServiceNotAvailableError,
    ServiceNotFoundError,
)
from .policies import NO_LIMIT, RetryPolicy, TimeBudget, is_too_deep
from .running import within_time
from .schema import ActionInfo
from .stream_calls import as_stream, call_with_stream
from .stream_sources import Source
from .traces import calling
from .ways import AT_ONCE, Handler, Way, is_awaitable

if TYPE_CHECKING:
    from .broker import Broker


class CallOptions(TypedDict, total=False):
    """What can be said of a call besides its action and params."""

    timeout_s: float | None
    """Time for each try; 0 is no limit. By default what the action, else the broker says."""
    meta: Mapping[str, Any] | None
    """Goes along with all calls that this one leads to."""
    headers: Mapping[str, Any] | None
    """For the action alone."""
    response_headers: dict[str, Any] | None
    """Gets the headers that come with the result, or with the error."""
    node_id: str | None
    """The node to call; no other will do."""
    retries: int | None
    """How often a failed call is tried again. By default what the action, else the broker says."""
    fallback: Any
    """The result when all else failed: a value, or a function of the context and the error."""
    stream: AsyncIterable[Any] | None
    """Bytes, or `Objects`, that go along with the call; the action reads them as `ctx.stream`.

    The time of the call ends with the answer: give it enough if that comes after the stream.
    """
    parent: Context | None
    """The call that this one is a part of."""
    request_id: str | None
    """By which everything this call leads to is known."""
    caller: str | None
    """The service that calls; by default that of the parent."""
    tracing: bool | None
    """Whether the call is traced."""
    merges_meta: bool
    """Whether what the action puts into its meta gets into that of the parent, as it should."""


Calls = Mapping[str, tuple[str, Any]] | Iterable[tuple[str, Any]]
"""Pairs of action and params, or such pairs by names."""

NO_OPTIONS: CallOptions = {}
_KNOWN_OPTIONS = CallOptions.__annotations__.keys()


class Calling:
    """Makes calls for a broker.

    Args:
        broker: whose calls they are.
        actions: what there is to call.
        way_to: finds the way to an endpoint.
        balanced: makes a call where the transporter chooses the node; None if brokers do.
        breakers: of the endpoints.
        config: settings.
    """

    def __init__(
        self,
        broker: Broker,
        actions: ActionCatalog,
        way_to: Callable[[Endpoint[ActionInfo]], Way],
        balanced: Handler | None,
        breakers: Breakers,
        config: BrokerConfig,
    ) -> None:
        self._broker = broker
        self._node_id = broker.node_id
        self._actions = actions
        self._way_to = way_to
        self._balanced = balanced
        self._breakers = breakers
        self._level_max = config.max_call_level
        self._now = asyncio.get_running_loop().time

    async def call(self, action: str, params: Any, options: CallOptions) -> Any:
        """Make a call, with everything that was asked for around it."""
        if tracing.tracer is not None:
            with calling(self._node_id, action, options):
                return await self._call_as_asked(action, params, options)
        if not options:
            ctx = Context(
                self._broker,
                params={} if params is None else params,
                action=action,
                node_id=self._node_id,
            )
            way = self._aim(ctx, NO_OPTIONS)
            if way.is_simple and self._balanced is None:
                # By far the most frequent, so nothing else is in its way.
                result = await way.run(ctx) if way.plain is None else way.plain(ctx)
                return result if type(result) in AT_ONCE else await _whole(ctx, way, result)
            return await self._make_carefully(ctx, way, NO_OPTIONS)
        return await self._call_as_asked(action, params, options)

    async def _call_as_asked(self, action: str, params: Any, options: CallOptions) -> Any:
        if not options.keys() <= _KNOWN_OPTIONS:
            _refuse_options(options)
        stream = options.get("stream")
        if stream is not None and not isinstance(stream, Source):
            return await self._call_with_stream(action, params, options, Source(stream))
        parent = options.get("parent")
        ctx = self._context(action, params, options, parent)
        try:
            if options.get("fallback") is not None:
                return await self._make_carefully(ctx, None, options)
            way = self._aim(ctx, options)
            if way.is_simple and not options.get("retries"):
                return await self._make(ctx, way, options)
            return await self._make_carefully(ctx, way, options)
        finally:
            if parent is not None and options.get("merges_meta", True):
                parent.meta.update(ctx.meta)
            received = options.get("response_headers")
            if received is not None:
                received.update(ctx.response_headers)

    async def _call_with_stream(
        self, action: str, params: Any, options: CallOptions, source: Source
    ) -> Any:
        """Make a call whose stream is closed in the end, whether anybody read it or not."""
        try:
            return await self._call_as_asked(action, params, {**options, "stream": source})
        finally:
            if not source.is_taken:
                await source.aclose()

    # What a call is.

    def _context(
        self, action: str, params: Any, options: CallOptions, parent: Context | None
    ) -> Context:
        params = {} if params is None else params
        meta, headers = options.get("meta"), options.get("headers")
        if parent is not None:
            if is_too_deep(parent.level, self._level_max):
                told = {"nodeID": self._broker.node_id, "level": parent.level}
                raise MaxCallLevelError(data=told)
            ctx = parent.child(params=params, meta=meta, headers=headers)
        else:
            ctx = Context(
                self._broker,
                params=params,
                meta={**meta} if meta else None,
                headers={**headers} if headers else None,
            )
        ctx.action, ctx.node_id = action, self._node_id
        ctx.caller = options.get("caller") or ctx.caller
        if "tracing" in options:
            ctx.tracing = options["tracing"]
        if request_id := options.get("request_id"):
            ctx._request_id = request_id
        return ctx

    def _aim(self, ctx: Context, options: CallOptions) -> Way:
        """Choose who gets a call, and say how long it may take."""
        endpoint = self._choose(ctx, options.get("node_id"))
        way: Way = endpoint.way or self._way_to(endpoint)
        ctx.endpoint, ctx.service = endpoint, endpoint.service
        self._limit(ctx, way, options)
        return way

    def _limit(self, ctx: Context, way: Way, options: CallOptions) -> None:
        """Say how long a call may take."""
        said_s, parent = options.get("timeout_s"), options.get("parent")
        ctx.timeout_s = way.timeout_s if said_s is None else self._checked(ctx, said_s)
        ctx.started_at = now = self._now()
        if parent is None or not parent.timeout_s:
            return
        budget = TimeBudget(parent.timeout_s, parent.started_at)
        if budget.is_spent(now):
            self._skip(ctx)
        ctx.timeout_s = budget.timeout_for(ctx.timeout_s, now)

    def _checked(self, ctx: Context, said_s: float) -> float:
        """The time a caller gives; one that is less than nothing is what is left of another."""
        if said_s < 0:
            self._skip(ctx)
        return said_s if said_s < math.inf else NO_LIMIT

    def _skip(self, ctx: Context) -> NoReturn:
        raise RequestSkippedError(data={"action": ctx.action, "nodeID": self._node_id})

    def _choose(self, ctx: Context, node_id: str | None) -> Endpoint[ActionInfo]:
        found = self._actions.get(ctx.action)
        if found is None:
            _refuse(ServiceNotFoundError, ctx.action, node_id)
        if node_id is not None:
            endpoint = found.at(node_id)
            if endpoint is None:
                is_there = found.has_node(node_id)
                kind = ServiceNotAvailableError if is_there else ServiceNotFoundError
                _refuse(kind, ctx.action, node_id)
            return endpoint
        endpoint = found.choose(ctx.params, ctx.meta)
        if endpoint is None:
            _refuse(ServiceNotAvailableError, ctx.action, node_id)
        return endpoint

    # How it is made.

    async def _make(self, ctx: Context, way: Way, options: CallOptions) -> Any:
        if options and (source := options.get("stream")) is not None:
            assert isinstance(source, Source)
            return await call_with_stream(ctx, way, source)
        if self._balanced is not None and self._is_balanced(way, options):
            return await self._balanced(ctx)
        result = await way.run(ctx) if way.plain is None else way.plain(ctx)
        return result if type(result) in AT_ONCE else await _whole(ctx, way, result)

    def _is_balanced(self, way: Way, options: CallOptions) -> bool:
        """Whether the transporter chooses who gets a call."""
        return self._balanced is not None and not way.stays_here and not options.get("node_id")

    async def _make_carefully(self, ctx: Context, way: Way | None, options: CallOptions) -> Any:
        """Try, try again, and fall back; also if there is nobody to give it to."""
        fallback = options.get("fallback")
        try:
            way = way or self._aim(ctx, options)
            return await self._try(ctx, way, options)
        except Exception as error:
            if fallback is None and way is not None:
                fallback = way.fallback
            if fallback is None:
                raise
            result = fallback(ctx, error) if callable(fallback) else fallback
            return await result if inspect.isawaitable(result) else result

    async def _try(self, ctx: Context, way: Way, options: CallOptions) -> Any:
        retry = 0
        while True:
            try:
                if retry:
                    way = self._aim(ctx, options)
                return await self._try_once(ctx, way, options)
            except MoleculerError as error:
                retry += 1
                pause_s = _pause(way.retry, retry, error, options)
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)
            # A new id for each try, and maybe another node.
            ctx._request_id, ctx._id = ctx.request_id, ""

    async def _try_once(self, ctx: Context, way: Way, options: CallOptions) -> Any:
        endpoint = ctx.endpoint
        if not way.breaker.is_enabled or endpoint is None or self._is_balanced(way, options):
            return await self._make(ctx, way, options)
        ticket = self._breakers.begin(endpoint, way.breaker)
        try:
            result = await self._make(ctx, way, options)
        except Exception as error:
            # Who is cancelled tells nothing of the endpoint.
            self._breakers.end(endpoint, ticket, error)
            raise
        self._breakers.end(endpoint, ticket, None)
        return result


async def _whole(ctx: Context, way: Way, result: Any) -> Any:
    """The result of an action that may be something to wait for, or a stream."""
    if way.plain is not None and is_awaitable(result):
        way.plain = None  # From now on it runs as what it is.
        result = await within_time(ctx, result)
    return as_stream(result)


def _pause(
    policy: RetryPolicy, retry: int, error: MoleculerError, options: CallOptions
) -> float | None:
    if options.get("stream") is not None:
        return None
    retries = options.get("retries")
    if retries and not policy.is_enabled:
        policy = msgspec.structs.replace(policy, is_enabled=True)
    return policy.pause_before(retry, is_retryable=error.retryable, retries=retries)


def _refuse_options(options: CallOptions) -> NoReturn:
    unknown = next(it for it in options if it not in _KNOWN_OPTIONS)
    near = get_close_matches(unknown, _KNOWN_OPTIONS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"a call has no option {unknown!r}{hint}")


def _refuse(kind: type[MoleculerError], action: str, node_id: str | None) -> NoReturn:
    told = {"action": action, "nodeID": node_id}
    raise kind(data={key: value for key, value in told.items() if value is not None})
