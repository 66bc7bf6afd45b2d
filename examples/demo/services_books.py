"""The accounts of a node of services: a middleware that writes down what comes and goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from postroad.services import (
    ActionInfo,
    Context,
    EventInfo,
    Handler,
    Middleware,
    MoleculerError,
)

from .cells_journal import Journal
from .services_journal import Emitted, Heard, Taken, Tried

OnError = Callable[[Context, MoleculerError], None]


class Bookkeeper(Middleware):
    """Writes down every call to and from other nodes, and every event."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.taken: Counter[str] = Counter()
        """Calls that came, by action."""
        self.emitted = 0
        self.heard = 0
        self.on_error: OnError = lambda ctx, error: None
        """Told of calls to other nodes that failed, whether they are tried again or not."""

    def remote_action(self, next: Handler, action: ActionInfo) -> Handler:
        """Each try is one, and has an id of its own."""

        async def call(ctx: Context) -> Any:
            call_id, began_s, error = ctx.id, time.monotonic(), ""
            node = ctx.endpoint.node.id if ctx.endpoint is not None else ""
            try:
                return await next(ctx)
            except MoleculerError as failure:
                error = failure.name
                self.on_error(ctx, failure)
                raise
            finally:
                ended = Tried(action.name, call_id, node, began_s, time.monotonic(), error)
                self._journal.write(ended)

        return call

    def local_action(self, next: Handler, action: ActionInfo) -> Handler:
        """The id is the one that the caller has."""

        async def handle(ctx: Context) -> Any:
            self.taken[action.name] += 1
            self._journal.write(Taken(action.name, ctx.id))
            return await next(ctx)

        return handle

    def emit(self, next: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Written before it goes."""

        async def emit(ctx: Context, groups: Collection[str]) -> None:
            self.emitted += 1
            self._journal.write(Emitted(ctx.params["number"], time.monotonic()))
            await next(ctx, groups)

        return emit

    def local_event(self, next: Handler, event: EventInfo) -> Handler:
        """Written before it is handled."""

        async def handle(ctx: Context) -> Any:
            self.heard += 1
            self._journal.write(Heard(ctx.params["number"]))
            return await next(ctx)

        return handle
