"""Middlewares: code around everything a broker does.

The hooks are those of Moleculer. A middleware overrides what it wants; what it leaves alone costs
nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .context import Context
from .schema import ActionInfo, EventInfo

if TYPE_CHECKING:
    from .broker import Broker
    from .service import Service

Handler = Callable[[Context], Awaitable[Any]]
Hook = TypeVar("Hook", bound=Callable[..., Any])


class Middleware:
    """Base of middlewares. Hooks with `next` give back what is to be used in its place."""

    def local_action(self, next: Handler, action: ActionInfo) -> Handler:
        """Around an action of this node."""
        return next

    def remote_action(self, next: Handler, action: ActionInfo) -> Handler:
        """Around an action of another node."""
        return next

    def local_event(self, next: Handler, event: EventInfo) -> Handler:
        """Around a handler of events of this node."""
        return next

    def call(self, next: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Around `Broker.call`."""
        return next

    def mcall(self, next: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Around `Broker.mcall`."""
        return next

    def emit(self, next: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Around `Broker.emit`."""
        return next

    def broadcast(self, next: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Around `Broker.broadcast`."""
        return next

    def broadcast_local(
        self, next: Callable[..., Awaitable[None]]
    ) -> Callable[..., Awaitable[None]]:
        """Around `Broker.broadcast_local`."""
        return next

    def transporter_send(
        self, next: Callable[[str | None, bytes], bytes]
    ) -> Callable[[str | None, bytes], bytes]:
        """Around the bytes that leave: gets the node they are for, gives the bytes to send."""
        return next

    def transporter_receive(self, next: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """Around the bytes that came: gives the bytes to read."""
        return next

    def broker_created(self, broker: Broker) -> None:
        """The broker was made."""
        return

    async def broker_starting(self, broker: Broker) -> None:
        """The broker is about to connect."""
        return

    async def broker_started(self, broker: Broker) -> None:
        """All services were started."""
        return

    async def broker_stopping(self, broker: Broker) -> None:
        """The broker is about to stop."""
        return

    async def broker_stopped(self, broker: Broker) -> None:
        """Everything has ended."""
        return

    def service_created(self, service: Service) -> None:
        """A service was added."""
        return

    async def service_starting(self, service: Service) -> None:
        """A service is about to start."""
        return

    async def service_started(self, service: Service) -> None:
        """A service was started and announced."""
        return

    async def service_stopping(self, service: Service) -> None:
        """A service is about to stop."""
        return

    async def service_stopped(self, service: Service) -> None:
        """A service has ended."""
        return


def wrapped(middlewares: Sequence[Middleware], hook: str, inner: Hook, *args: Any) -> Hook:
    """Something with the hooks of all middlewares around it; the first is the outermost."""
    outer = inner
    for middleware in reversed(middlewares):
        if getattr(type(middleware), hook) is not getattr(Middleware, hook):
            outer = getattr(middleware, hook)(outer, *args)
    return outer
