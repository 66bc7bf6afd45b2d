"""What a handler gets: who called, with what, and the way to further calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from postroad.core.errors import UsageError
from postroad.core.tracing import SpanLike

from .policies import NO_LIMIT, TimeBudget

if TYPE_CHECKING:
    from .broker import Broker
    from .calling import CallOptions, Calls
    from .endpoints import Endpoint
    from .incoming_stream import IncomingStream


class Context:
    """One call of an action, or one event for a handler.

    Attributes:
        broker: the broker of this node.
        params: what the call was made with, or the data of the event.
        meta: goes along with all further calls, and what is put into it comes back to the caller.
        headers: of this call alone.
        response_headers: go back to the caller with the result.
        locals: for this call at this node; never sent.
        action: the full name of the action; empty for events.
        event: the name of the event; empty for actions.
        groups: of the event, if it names any.
        level: 1 for a call from outside, one more for each call within.
        node_id: the node the call came from, and after a call of one's own the one that answered.
        caller: the service that called, if it was one.
        stream: what came with the call to be read with `async for`; None if nothing did.
        tracing: whether this call is traced; None if nobody decided.
        cached_result: whether the result was kept from an earlier call.
    """

    __slots__ = (
        "_id",
        "_request_id",
        "action",
        "broker",
        "cached_result",
        "caller",
        "endpoint",
        "event",
        "groups",
        "headers",
        "is_broadcast",
        "level",
        "locals",
        "meta",
        "node_id",
        "params",
        "parent_id",
        "response_headers",
        "service",
        "span",
        "started_at",
        "stream",
        "timeout_s",
        "tracing",
    )

    def __init__(
        self,
        broker: Broker,
        *,
        params: Any = None,
        meta: dict[str, Any] | None = None,
        headers: dict[str, Any] | None = None,
        action: str = "",
        event: str = "",
        id: str = "",
        request_id: str = "",
        parent_id: str | None = None,
        level: int = 1,
        caller: str | None = None,
        node_id: str = "",
        tracing: bool | None = None,
        timeout_s: float = NO_LIMIT,
        started_at: float = 0.0,
    ) -> None:
        self.broker = broker
        self.params = params
        self.meta: dict[str, Any] = {} if meta is None else meta
        self.headers: dict[str, Any] = {} if headers is None else headers
        self.action = action
        self.event = event
        self.level = level
        self.parent_id = parent_id
        self.caller = caller
        self.node_id = node_id
        self.tracing = tracing
        self.timeout_s = timeout_s
        self.started_at = started_at
        self._id = id
        self._request_id = request_id
        self.service = ""
        self.groups: Sequence[str] = ()
        self.is_broadcast = False
        self.cached_result = False
        self.stream: IncomingStream | None = None
        self.endpoint: Endpoint[Any] | None = None
        self.locals: dict[str, Any] = {}
        self.response_headers: dict[str, Any] = {}
        # Of a call that another node makes, if it is traced.
        self.span: SpanLike | None = None

    @property
    def id(self) -> str:
        """Of this call."""
        if not self._id:
            self._id = self.broker.new_id()
        return self._id

    @property
    def request_id(self) -> str:
        """Of the call from outside that all this belongs to."""
        return self._request_id or self.id

    @property
    def transaction(self) -> Any:
        """The transaction in which a durable event is handled: what is written through it, and the
        durable events that are sent from this context, happen together with its being handled.
        """
        found = self.locals.get("transaction")
        if found is None:
            raise UsageError(f"{self!r} has no transaction: its event was not emitted as durable")
        return found

    def remaining_s(self) -> float:
        """How much of the time of this call is left; infinity if it has no limit."""
        return TimeBudget(self.timeout_s, self.started_at).remaining(self.broker.now())

    async def call(self, action: str, params: Any = None, **options: Unpack[CallOptions]) -> Any:
        """Call an action as part of this one; the options are those of `Broker.call`.

        The meta of this call goes along, and gets what the action puts into it. The time is at
        most what is left of this call.
        """
        options["parent"] = self
        return await self.broker.call(action, params, **options)

    async def mcall(
        self, calls: Calls, *, settled: bool = False, **options: Unpack[CallOptions]
    ) -> Any:
        """Make several calls at once as part of this one; see `Broker.mcall`.

        The meta of this call goes along, but what the actions put into it does not come back.
        """
        options["parent"] = self
        return await self.broker.mcall(calls, settled=settled, **options)

    async def emit(
        self, event: str, data: Any = None, *, groups: Collection[str] = (), **options: Any
    ) -> None:
        """Emit an event as part of this call; see `Broker.emit`."""
        await self.broker.emit(event, data, groups=groups, parent=self, **options)

    async def broadcast(
        self, event: str, data: Any = None, *, groups: Collection[str] = (), **options: Any
    ) -> None:
        """Broadcast an event as part of this call; see `Broker.broadcast`."""
        await self.broker.broadcast(event, data, groups=groups, parent=self, **options)

    def child(
        self, *, params: Any, meta: Mapping[str, Any] | None, headers: Mapping[str, Any] | None
    ) -> Context:
        """The context of something that is part of this call."""
        return Context(
            self.broker,
            params=params,
            meta={**self.meta, **meta} if meta else {**self.meta},
            headers={**headers} if headers else None,
            request_id=self.request_id,
            parent_id=self.id,
            level=self.level + 1,
            caller=self.service or None,
            tracing=self.tracing,
        )

    def __repr__(self) -> str:
        what = f"action {self.action}" if self.action else f"event {self.event}"
        return f"<Context of {what}, level {self.level}>"
