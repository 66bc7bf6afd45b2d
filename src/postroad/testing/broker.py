"""A broker for unit tests of services: no network, recorded calls and events, stubs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from postroad.core.errors import UsageError
from postroad.services.broker import Broker
from postroad.services.calling import CallOptions
from postroad.services.context import Context
from postroad.services.middleware import Handler, Middleware
from postroad.services.patterns import matches
from postroad.services.schema import EventInfo
from postroad.services.service import Service

NODE_ID = "test"

Next: TypeAlias = Callable[..., Any]
_NOTHING: Mapping[str, Any] = {}


class RecordedCall(msgspec.Struct, frozen=True):
    """A call that was made, by the test or by one of its services."""

    action: str
    params: Any
    meta: Mapping[str, Any]
    """The meta of this call, without the meta inherited from its parent."""
    headers: Mapping[str, Any]
    caller: str | None
    """The service that made the call."""


class RecordedEvent(msgspec.Struct, frozen=True):
    """An event that was sent, by the test or by one of its services."""

    event: str
    data: Any
    meta: Mapping[str, Any]
    groups: tuple[str, ...]
    method: str
    """`emit`, `broadcast` or `broadcast_local`."""


class Stub(msgspec.Struct, eq=False):
    """Replaces an action."""

    action: str
    """The full name of the action."""
    return_value: Any
    raises: BaseException | None
    side_effect: Next | None
    calls: list[Context] = []
    """The contexts of its calls."""

    async def call(self, ctx: Context) -> Any:
        """Record the call, and return or raise its result."""
        self.calls.append(ctx)
        if self.raises is not None:
            raise self.raises
        if self.side_effect is None:
            return self.return_value
        result = self.side_effect(ctx)
        return await result if inspect.isawaitable(result) else result


class TestBroker(Broker):
    """A broker without other nodes, which starts at once, for tests of services.

        class Shop(Service):
            name = "shop"

            @action
            async def order(self, ctx: Context, item: str) -> str:
                await ctx.call("mail.send", {"about": item})
                await ctx.emit("shop.ordered", {"item": item})
                return f"{item} is on its way"

        async def test_an_order_is_confirmed() -> None:
            async with TestBroker(Shop()) as broker:
                mail = broker.stub("mail.send", return_value="sent")
                assert await broker.call("shop.order", {"item": "tea"}) == "tea is on its way"
                assert mail.calls[0].params == {"about": "tea"}
                assert broker.events_named("shop.*")[0].data == {"item": "tea"}

    Services, validation, policies and middlewares are those of any broker. Handlers of events run
    in the background: `wait_for_handlers` waits for them. A dependency of a service counts as
    available if one of its actions is stubbed before the broker starts. Durable events are emitted
    like other events, so their handlers have no transaction.

    Args:
        services: the services under test.
        middlewares, caching, settings: as of a Broker.

    Attributes:
        calls: all calls, in the order in which they were made.
        events: all events that were sent, without the internal events of brokers.
    """

    __test__ = False  # Its name looks like a test to pytest.

    def __init__(
        self,
        *services: Service,
        middlewares: Sequence[Middleware] = (),
        caching: Any = None,
        **settings: Any,
    ) -> None:
        self.calls: list[RecordedCall] = []
        self.events: list[RecordedEvent] = []
        self._stubs: dict[str, Stub] = {}
        self._failures: list[Exception] = []
        super().__init__(
            NODE_ID,
            middlewares=(
                _RecordingMiddleware(self, self._failures),
                *middlewares,
                _StubMiddleware(self._stubs),
            ),
            caching=caching,
            **settings,
        )
        self.add(*services)
        self.use_durable_events(_NonDurableEvents(self))

    def stub(
        self,
        action: str,
        *,
        return_value: Any = None,
        raises: BaseException | None = None,
        side_effect: Next | None = None,
    ) -> Stub:
        """Replace an action, whether a service has it or not, at any time.

        Calls of it are not retried, have no timeout, and their params are not validated.

        Args:
            action: the full name.
            return_value: the result.
            raises: an exception to raise instead.
            side_effect: a function or coroutine function that is called with the context instead
                and returns the result.
        """
        if sum(effect is not None for effect in (return_value, raises, side_effect)) > 1:
            raise UsageError(
                f"cannot stub {action!r}: set only one of return_value, raises and side_effect"
            )
        stub = self._stubs[action] = Stub(action, return_value, raises, side_effect)
        return stub

    def unstub(self, action: str) -> None:
        """Remove the stub of an action: calls reach its service again."""
        self._stubs.pop(action, None)

    def calls_to(self, action: str) -> list[RecordedCall]:
        """Return the calls of an action, or of actions that match a pattern such as `mail.*`."""
        return [call for call in self.calls if matches(call.action, action)]

    def events_named(self, event: str) -> list[RecordedEvent]:
        """Return the events of a name or pattern, whichever method sent them."""
        return [record for record in self.events if matches(record.event, event)]

    def clear_records(self) -> None:
        """Delete all records; stubs stay."""
        self.calls.clear()
        self.events.clear()
        self._failures.clear()
        for stub in self._stubs.values():
            stub.calls.clear()

    async def wait_for_handlers(self, *, timeout_s: float = 5.0) -> None:
        """Wait until all handlers of events have finished, also of events that they sent.

        Raises:
            TimeoutError: a handler still runs.
            Exception: the first exception that a handler raised.
        """
        async with asyncio.timeout(timeout_s):
            await self._running().eventing.idle()
        failures, self._failures[:] = [*self._failures], []
        if failures:
            raise failures[0]

    async def wait_for_services(
        self, names: str | Iterable[str], *, timeout_s: float | None = None
    ) -> None:
        """Wait for services as a Broker does; a service with a stubbed action is available."""
        service_names = [names] if isinstance(names, str) else [*names]
        stubbed = {action.rpartition(".")[0] for action in self._stubs}
        missing = [name for name in service_names if name not in stubbed]
        if missing:
            await super().wait_for_services(missing, timeout_s=timeout_s)


class _RecordingMiddleware(Middleware):
    """Records the calls and events of a broker."""

    def __init__(self, broker: TestBroker, failures: list[Exception]) -> None:
        self._broker = broker
        self._failures = failures

    def call(self, next: Next) -> Next:
        async def call(action: str, params: Any, options: CallOptions) -> Any:
            parent = options.get("parent")
            recorded = RecordedCall(
                action,
                {} if params is None else params,
                {**(options.get("meta") or _NOTHING)},
                {**(options.get("headers") or _NOTHING)},
                options.get("caller") or (parent.service or None if parent else None),
            )
            self._broker.calls.append(recorded)
            return await next(action, params, options)

        return call

    def emit(self, next: Next) -> Next:
        return self._recorded("emit", next)

    def broadcast(self, next: Next) -> Next:
        return self._recorded("broadcast", next)

    def broadcast_local(self, next: Next) -> Next:
        return self._recorded("broadcast_local", next)

    def _recorded(self, method: str, next: Next) -> Next:
        async def send(ctx: Context, groups: Collection[str]) -> None:
            event = RecordedEvent(ctx.event, ctx.params, {**ctx.meta}, (*groups,), method)
            self._broker.events.append(event)
            await next(ctx, groups)

        return send

    def local_event(self, next: Handler, event: EventInfo) -> Handler:
        async def handle(ctx: Context) -> Any:
            try:
                return await next(ctx)
            except Exception as error:
                self._failures.append(error)
                raise

        return handle


class _NonDurableEvents:
    """Emits durable events like other events: unit tests have no store."""

    def __init__(self, broker: TestBroker) -> None:
        self._broker = broker

    async def emit(self, ctx: Context, groups: Collection[str]) -> None:
        await self._broker._eventing().emit(ctx, groups)


class _StubMiddleware(Middleware):
    """Redirects calls of stubbed actions to their stubs."""

    def __init__(self, stubs: Mapping[str, Stub]) -> None:
        self._stubs = stubs
        self._broker: Broker

    def broker_created(self, broker: Broker) -> None:
        self._broker = broker

    def call(self, next: Next) -> Next:
        async def call(action: str, params: Any, options: CallOptions) -> Any:
            stub = self._stubs.get(action)
            if stub is None:
                return await next(action, params, options)
            return await self._call_stub(stub, {} if params is None else params, options)

        return call

    async def _call_stub(self, stub: Stub, params: Any, options: CallOptions) -> Any:
        parent, meta, headers = (options.get(key) for key in ("parent", "meta", "headers"))
        origin = parent if isinstance(parent, Context) else self._broker.context()
        ctx = origin.child(params=params, meta=_object(meta), headers=_object(headers))
        ctx.action = stub.action
        try:
            return await stub.call(ctx)
        except Exception as error:
            fallback = options.get("fallback")
            if fallback is None:
                raise
            result = fallback(ctx, error) if callable(fallback) else fallback
            return await result if inspect.isawaitable(result) else result
        finally:
            origin.meta.update(ctx.meta)


def _object(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None
