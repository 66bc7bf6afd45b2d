"""Events as users of a broker send them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from postroad.core.errors import UsageError

from .config import BrokerConfig
from .context import Context
from .describing import check_name
from .durability import IDEMPOTENCY_KEY, METADATA, TRANSACTION, DurableEmitter
from .middleware import Middleware, wrapped

if TYPE_CHECKING:
    from .broker import Broker
    from .eventing import Eventing


class Emitting(ABC):
    """The part of a broker that sends events."""

    node_id: str
    config: BrokerConfig
    _durable: DurableEmitter | None = None

    def _wrap_events(self, middlewares: Sequence[Middleware]) -> None:
        """Put the middlewares around everything here; called once, when the broker is made."""
        self._emit = wrapped(middlewares, "emit", self._emit_plainly)
        self._emit_acked = wrapped(middlewares, "emit", self._emit_acked_plainly)
        self._emit_durable = wrapped(middlewares, "emit", self._emit_durable_plainly)
        self._broadcast = wrapped(middlewares, "broadcast", self._broadcast_plainly)
        self._broadcast_local = wrapped(
            middlewares, "broadcast_local", self._broadcast_local_plainly
        )

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether it was started, or is just being so, and has not stopped."""

    def use_durable_events(self, emitter: DurableEmitter) -> None:
        """Have something carry durable events; said before the broker starts."""
        if self.is_running:
            raise UsageError("the broker runs already; say what carries durable events before")
        self._durable = emitter

    def can_handle(self, event: str, group: str) -> bool:
        """Whether a group has a handler for an event at this node now."""
        return self.is_running and self._eventing().can_handle(event, group)

    async def handle_in_turn(self, ctx: Context, group: str) -> None:
        """Run the handlers of a group at this node one after the other, for what carries events.

        Raises what the first of them raises.
        """
        await self._eventing().handle_in_turn(ctx, group)

    def _own_metadata(self) -> Mapping[str, Any]:
        said = self.config.metadata
        return said if self._durable is None else {**said, METADATA: True}

    @abstractmethod
    def _eventing(self) -> Eventing:
        """What moves events; raises UsageError while the broker does not run."""

    def emit(
        self,
        event: str,
        data: Any = None,
        *,
        groups: Collection[str] = (),
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        parent: Context | None = None,
        ack: bool = False,
        timeout_s: float | None = None,
        durable: bool = False,
        idempotency_key: str | None = None,
        transaction: Any = None,
    ) -> Coroutine[Any, Any, None]:
        """Tell one handler of each group that something happened.

        By default this does not wait for the handlers, and does not know whether they succeed.
        With `ack` it waits until one handler of every group has succeeded, which all nodes that
        are chosen must be able to tell: those of Moleculer in JavaScript are not. A group that
        failed may be asked again with `groups`; the others had the event already. An event that
        nobody listens to has succeeded, unless `groups` names somebody.

        With `durable` it returns once the event is on this node's disk, and then one node of each
        group handles it once, whatever dies meanwhile; see `postroad.node.DurableEvents`. Who is
        known to listen now gets it, and the groups that are named, even if nobody of them is there.

        Args:
            event: the name.
            data: what the handlers get.
            groups: only these.
            meta, headers: as those of calls.
            parent: the call or event that this is a part of.
            ack: wait for the handlers.
            timeout_s: how long, 0 for any time; by default as long as for calls. A handler that
                takes longer is not stopped.
            durable: have it handled even if nodes die.
            idempotency_key: emitting it again with the same key does nothing, for a week.
            transaction: of this node's mail: have it emitted if that succeeds, and with it. In a
                handler of a durable event, that of the handler is used.

        Raises:
            EventNotHandledError: with `ack`, when not every group handled it; `failures` has the
                error of each group that did not.
        """
        ctx = self._event(event, data, meta, headers, parent)
        if durable:
            return self._emit_durably(ctx, groups, ack, idempotency_key, transaction, parent)
        if idempotency_key is not None or transaction is not None:
            raise UsageError("only durable events have an idempotency_key or a transaction")
        if not ack:
            return self._emit(ctx, groups)
        if timeout_s is not None:
            ctx.timeout_s = timeout_s
        else:
            ctx.timeout_s = ctx.broker.config.request_timeout_s
        return self._emit_acked(ctx, groups)

    def _emit_durably(
        self,
        ctx: Context,
        groups: Collection[str],
        ack: bool,
        idempotency_key: str | None,
        transaction: Any,
        parent: Context | None,
    ) -> Coroutine[Any, Any, None]:
        if ack:
            raise UsageError("an event is either acknowledged or durable")
        if transaction is None and parent is not None:
            transaction = parent.locals.get(TRANSACTION)
        ctx.locals[TRANSACTION] = transaction
        ctx.locals[IDEMPOTENCY_KEY] = idempotency_key
        return self._emit_durable(ctx, groups)

    def broadcast(
        self,
        event: str,
        data: Any = None,
        *,
        groups: Collection[str] = (),
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        parent: Context | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Tell all handlers of all nodes; the arguments are those of `emit`."""
        return self._broadcast(self._event(event, data, meta, headers, parent), groups)

    def broadcast_local(
        self,
        event: str,
        data: Any = None,
        *,
        groups: Collection[str] = (),
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        parent: Context | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Tell all handlers of this node; the arguments are those of `emit`."""
        return self._broadcast_local(self._event(event, data, meta, headers, parent), groups)

    def _event(
        self,
        event: str,
        data: Any,
        meta: Mapping[str, Any] | None,
        headers: Mapping[str, Any] | None,
        parent: Context | None,
    ) -> Context:
        check_name(event, "event")
        if parent is not None:
            ctx = parent.child(params=data, meta=meta, headers=headers)
        else:
            ctx = Context(
                cast("Broker", self),
                params=data,
                meta={**meta} if meta else None,
                headers={**headers} if headers else None,
            )
        ctx.event, ctx.node_id = event, self.node_id
        return ctx

    async def _emit_plainly(self, ctx: Context, groups: Collection[str]) -> None:
        await self._eventing().emit(ctx, groups)

    async def _emit_acked_plainly(self, ctx: Context, groups: Collection[str]) -> None:
        await self._eventing().emit_acked(ctx, groups)

    async def _emit_durable_plainly(self, ctx: Context, groups: Collection[str]) -> None:
        if self._durable is None:
            raise UsageError("nothing carries durable events: make postroad.node.DurableEvents")
        await self._durable.emit(ctx, groups)

    async def _broadcast_plainly(self, ctx: Context, groups: Collection[str]) -> None:
        await self._eventing().broadcast(ctx, groups)

    async def _broadcast_local_plainly(self, ctx: Context, groups: Collection[str]) -> None:
        await self._eventing().broadcast_local(ctx, groups)
