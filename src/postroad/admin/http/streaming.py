"""Server-sent events: `GET /api/v1/watch?operation=queue.ls&operation=flow.show&flow.show.id=1`."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from postroad.admin.errors import Forbidden, InvalidRequest

from .answers import failure
from .calling import Desk, refuse_method
from .errors import TooManyWatchers
from .guard import Guard
from .watching import Watch, Watcher
from .wishes import NODE, Wish, find_operation, read_query, wish_from_query

KEEP_ALIVE_S = 15.0

_METHODS = ("GET",)
_OPERATIONS_MAX = 32


class WatchEndpoint:
    """Sends results each time they change.

    Args:
        watchers_max: how many may watch at once: a place that is watched from is free for nobody
            else, so that there must be others.
    """

    def __init__(
        self,
        desk: Desk,
        guard: Guard,
        watch: Watch,
        keep_alive_s: float = KEEP_ALIVE_S,
        *,
        watchers_max: int,
    ) -> None:
        self._desk = desk
        self._guard = guard
        self._watch = watch
        self._keep_alive_s = keep_alive_s
        self._watchers_max = watchers_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request = Request(scope, receive)
        try:
            caller = self._guard.identify(request)
            if request.method not in _METHODS:
                await refuse_method(request.method, _METHODS)(scope, receive, send)
                return
            wishes = read_wishes(read_query(request))
            if self._watch.watchers >= self._watchers_max:
                raise TooManyWatchers(self._watchers_max)
        except Exception as error:
            await failure(error)(scope, receive, send)
            return
        headers = {
            "cache-control": "no-store",
            "content-type": "text/event-stream",
            "postroad-node": self._desk.office.name,
            "postroad-role": caller.role.value,
        }
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(it.encode(), value.encode()) for it, value in headers.items()],
            }
        )
        await self._stream(wishes, receive, send)

    async def _stream(self, wishes: list[Wish], receive: Receive, send: Send) -> None:
        watcher = self._watch.join(wishes)
        leaving = asyncio.create_task(_end_with_client(watcher, receive))
        try:
            while not watcher.is_ended:
                events = await watcher.wait(self._keep_alive_s) or b": still here\n\n"
                await send({"type": "http.response.body", "body": events, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            leaving.cancel()
            self._watch.leave(watcher)


async def _end_with_client(watcher: Watcher, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    watcher.end()


def read_wishes(pairs: list[tuple[str, str]]) -> list[Wish]:
    """What a query asks to watch; raises InvalidRequest if it makes no sense."""
    names = list(dict.fromkeys(value for name, value in pairs if name == "operation"))
    if not names:
        raise InvalidRequest("watch: say what, as ?operation=queue.ls")
    if len(names) > _OPERATIONS_MAX:
        raise InvalidRequest(f"watch: {len(names)} operations are more than {_OPERATIONS_MAX}")
    said: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
    for name, value in pairs:
        operation, _, parameter = name.rpartition(".")
        if name == NODE:
            for it in said.values():
                it.append((NODE, value))
        elif operation in said:
            said[operation].append((parameter, value))
        elif name != "operation":
            raise InvalidRequest(
                f"watch has no parameter {name!r}; write a parameter of queue.show "
                "as queue.show.queue"
            )
    return [_wish(name, values) for name, values in said.items()]


def _wish(name: str, pairs: list[tuple[str, str]]) -> Wish:
    operation = find_operation(name)
    if not operation.is_read:
        raise Forbidden(f"{name} changes something, and only what looks can be watched")
    return wish_from_query(operation, pairs)
