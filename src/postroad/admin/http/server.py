"""A server of HTTP inside a loop that belongs to somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import socket
import ssl
import time
from email.utils import formatdate

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from postroad.admin.listening import take_address
from postroad.core import Address, Lifecycle
from postroad.net.tls import load_authorities, load_certificate
from postroad.node.settings import AdminSettings

from .accepting import Acceptor, Room
from .connection import BoundedProtocol

_HANDSHAKE_S_MAX = 10.0
_GRACE_S = 2.0
_POLL_S = 0.01


class HttpServer(Lifecycle):
    """Serves an application until it is stopped.

    uvicorn speaks HTTP; its server, which would log and configure logs as that of a process of its
    own, is not used.

    Args:
        application: what is served.
        bind: where; port 0 lets the system choose.
        settings: certificates and bounds.
        listener: a socket that listens at that address already.
    """

    def __init__(
        self,
        application: ASGIApp,
        bind: Address,
        settings: AdminSettings,
        listener: socket.socket | None = None,
    ) -> None:
        self._bind = bind
        self._listener = listener
        self._settings = settings
        # With `access_log=False` it would take the handlers of the program's own access log away.
        self._config = uvicorn.Config(
            application,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=True,
            server_header=False,
            proxy_headers=False,
        )
        self._state = ServerState()
        self._room: Room | None = None
        self._acceptor: Acceptor | None = None
        self._telling: asyncio.Task[None] | None = None
        self.address = bind
        """Where it listens; known when it was started."""

    async def start(self) -> None:
        """Listen; raises ConfigError if that is not possible at this address."""
        context = make_tls_context(self._settings)
        listener = self._listener or take_address(self._bind)
        self.address = Address(self._bind.host, listener.getsockname()[1])
        self._config.load()
        room = self._room = Room(places_max(self._settings))
        connect = functools.partial(
            BoundedProtocol, self._config, self._state, self._settings.request_timeout_s, room
        )
        handshake_s = min(_HANDSHAKE_S_MAX, self._settings.request_timeout_s)
        self._acceptor = Acceptor(listener, room, connect, context, handshake_s)
        self._telling = asyncio.create_task(self._tell_time(), name="postroad admin time")
        self._acceptor.start()

    @property
    def connections(self) -> int:
        """How many there are, with those whose TLS handshake is not over."""
        return 0 if self._room is None else len(self._room)

    async def _tell_time(self) -> None:
        """Renew what every answer says of the time."""
        while True:
            self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
            await asyncio.sleep(1.0)

    async def stop(self) -> None:
        """Listen no more, and let answers that were begun end: in time, or they are cut off."""
        if self._acceptor is None:
            return
        await self._acceptor.stop()
        assert self._telling is not None
        self._telling.cancel()
        state = self._state
        for connection in [*state.connections]:
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                while state.connections:  # noqa: ASYNC110 - uvicorn tells nobody
                    await asyncio.sleep(_POLL_S)
        for connection in [*state.connections]:
            connection.transport.abort()
        if state.tasks:
            await asyncio.wait([*state.tasks], timeout=_GRACE_S)
        for task in [*state.tasks]:
            task.cancel()


def places_max(settings: AdminSettings) -> int:
    """How many connections there can be: at most half of the files this process may open."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return settings.clients_max
    return min(settings.clients_max, files_max // 2)


def make_tls_context(settings: AdminSettings) -> ssl.SSLContext | None:
    """HTTPS as configured; None if it is not."""
    if settings.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert settings.key is not None
    load_certificate(context, settings.certificate, settings.key, label="admin.certificate")
    if settings.client_trust is not None:
        load_authorities(context, settings.client_trust, label="admin.client_trust")
        # Others still can show a token.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
