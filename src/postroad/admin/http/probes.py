"""What machines ask: whether the node lives, whether it is ready, and its numbers.

`/livez` is open to everybody, since it tells nothing. `/readyz` and `/metrics` need a token, unless
the server is bound to the loopback interface: then only programs of this machine can ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .answers import failure
from .calling import refuse_method
from .guard import Guard

Answering = Callable[[], Awaitable[Response]]

_METHODS = ("GET", "HEAD")


class ProbeEndpoint:
    """Serves one probe.

    Args:
        answering: makes the answer.
        guard: who may ask; None if everybody.
    """

    def __init__(self, answering: Answering, guard: Guard | None) -> None:
        self._answering = answering
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        response = await self._respond(Request(scope, receive))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        if request.method not in _METHODS:
            return refuse_method(request.method, _METHODS)
        try:
            if self._guard is not None:
                self._guard.check_probe(request)
            return await self._answering()
        except Exception as error:
            return failure(error)
