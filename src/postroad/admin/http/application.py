"""Everything that is served, put together."""

from __future__ import annotations

import functools
import socket
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from postroad.admin.exposition import CONTENT_TYPE
from postroad.admin.metrics import Metrics
from postroad.admin.operations import OPERATIONS
from postroad.admin.operations.office import Office
from postroad.admin.problems import make_problem
from postroad.admin.remote import RemoteOffice
from postroad.core.names import is_loopback
from postroad.node import Node

from .answers import answer, refusal
from .calling import Desk, OperationsEndpoint
from .guard import Gate, Guard, own_hosts
from .openapi import make_document
from .pages import PagesEndpoint
from .probes import ProbeEndpoint
from .server import HttpServer, places_max
from .streaming import WatchEndpoint
from .watching import Watch
from .wishes import Wish

_NO_STORE = {"cache-control": "no-store"}


def make_server(
    node: Node,
    office: Office,
    remote: RemoteOffice,
    token: str,
    where: str,
    listener: socket.socket | None = None,
) -> tuple[HttpServer, Watch]:
    """The server of a node, and what is watched through it.

    Args:
        where: where people find the token.
        listener: a socket that has the address already.
    """
    settings = node.config.admin
    bind = node.config.admin_address
    guard = Guard(token, settings.read_token, where=where, is_local=is_loopback(bind.host))
    desk = Desk(office, remote, settings)
    watch = Watch(desk)
    # A tenth of the places is left to those who ask once, above all to probes.
    places = places_max(settings)
    watchers_max = max(1, places - max(1, places // 10))
    routes = [
        *_probes(node, desk, guard),
        Route("/api/v1/openapi.json", ProbeEndpoint(_tell_document, guard)),
        Route("/api/v1/watch", WatchEndpoint(desk, guard, watch, watchers_max=watchers_max)),
        Route("/api/v1/{noun}/{verb}", OperationsEndpoint(desk, guard)),
        Route("/{path:path}", PagesEndpoint()),
    ]
    application = Starlette(
        routes=routes,
        middleware=[Middleware(Gate, hosts=own_hosts(bind.host))],
        exception_handlers={HTTPException: _on_http_error},
    )
    application.router.redirect_slashes = False
    return HttpServer(application, bind, settings, listener), watch


def _probes(node: Node, desk: Desk, guard: Guard) -> list[Route]:
    metrics = Metrics(node)

    async def live() -> Response:
        return Response("alive\n", media_type="text/plain", headers=_NO_STORE)

    async def ready() -> Response:
        reasons = await _reasons(node, desk)
        text = "".join(f"{it}\n" for it in reasons) or "ready\n"
        status = 503 if reasons else 200
        return Response(text, status, _NO_STORE, "text/plain")

    async def numbers() -> Response:
        text = await metrics.collect()
        return Response(text, headers={**_NO_STORE, "content-type": CONTENT_TYPE})

    return [
        Route("/livez", ProbeEndpoint(live, None)),
        Route("/readyz", ProbeEndpoint(ready, guard)),
        Route("/metrics", ProbeEndpoint(numbers, guard)),
    ]


async def _reasons(node: Node, desk: Desk) -> list[str]:
    """Why the node is not ready; empty if it is."""
    reasons = node.readiness.reasons()
    health = OPERATIONS.get("node.health")
    if reasons or health is None:
        return reasons
    found = await desk.fulfil(Wish(health, {}, health.read_params({}), None))
    return [] if found.is_ready else [*found.reasons]


async def _tell_document() -> Response:
    return answer(_document())


@functools.cache
def _document() -> dict[str, Any]:
    return make_document()


def _on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(make_problem(error.status_code, error.detail), error.headers)
