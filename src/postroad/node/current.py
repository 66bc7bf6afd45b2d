"""The node that runs some code, for code that is not handed one."""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from postroad.core.errors import UsageError
from postroad.services import ActionInfo, Context, EventInfo, Handler, Middleware

if TYPE_CHECKING:
    from .node import Node

_current: ContextVar[Node | None] = ContextVar("node", default=None)

set_current_node = _current.set
reset_current_node = _current.reset


def current_node() -> Node:
    """The node that runs this code: for services, consumers, cells and flows.

    Raises:
        UsageError: no node does.
    """
    node = _current.get()
    if node is None:
        raise UsageError("no node runs this code")
    return node


class Belonging(Middleware):
    """Has services run as their node's, also when called by code of another in the same process."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def local_action(self, next: Handler, action: ActionInfo) -> Handler:
        """Around an action of this node."""
        return self._around(next)

    def local_event(self, next: Handler, event: EventInfo) -> Handler:
        """Around a handler of events of this node."""
        return self._around(next)

    def _around(self, next: Handler) -> Handler:
        node = self._node

        def handle(ctx: Context) -> Awaitable[Any]:
            return next(ctx) if _current.get() is node else handle_elsewhere(ctx)

        async def handle_elsewhere(ctx: Context) -> Any:
            token = _current.set(node)
            try:
                return await next(ctx)
            finally:
                _current.reset(token)

        return handle
