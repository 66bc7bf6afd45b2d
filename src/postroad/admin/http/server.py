"""A server of HTTP inside a loop that belongs to somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from postroad.admin.listening import take_address
from postroad.core import Address, Lifecycle
from postroad.core.errors import ConfigError
from postroad.net.identity_files import explain, load_identity
from postroad.node.settings import AdminSettings

from .connection import Bounds, bounded

_HANDSHAKE_S_MAX = 10.0
_GRACE_S = 2.0
_POLL_S = 0.01
_BACKLOG = 512


class HttpServer(Lifecycle):
    """Serves an application until it is stopped.

    Args:
        application: what is served.
        bind: where; port 0 lets the system choose.
        settings: certificates and bounds.
        listener: a socket that has that address already.
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
        self._application = application
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.address = bind
        """Where it listens; known when it was started."""

    async def start(self) -> None:
        """Listen; raises ConfigError if that is not possible at this address."""
        context = make_tls_context(self._settings)
        listener = self._listener or take_address(self._bind)
        self.address = Address(self._bind.host, listener.getsockname()[1])
        bounds = Bounds(
            clients_max=self._settings.clients_max,
            request_timeout_s=self._settings.request_timeout_s,
        )
        config = uvicorn.Config(
            self._application,
            http=bounded(bounds),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        _quieten(logging.getLogger("uvicorn.error"))
        self._server = _Server(config, context, self._settings.request_timeout_s)
        self._serving = asyncio.create_task(self._server.serve([listener]), name="postroad admin")
        try:
            await self._server.wait_started(self._serving)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Listen no more, and let answers that were begun end."""
        if self._server is None or self._serving is None:
            return
        self._server.end()
        await self._serving
        # Told to end while it began, it does not close what it has opened.
        self._server.listen_no_more()


class _Server(uvicorn.Server):
    """uvicorn, which leaves the signals of the process alone."""

    def __init__(
        self, config: uvicorn.Config, context: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        super().__init__(config)
        self._context = context
        self._handshake_s = min(_HANDSHAKE_S_MAX, timeout_s)
        self.servers = []
        self._listening = asyncio.Event()
        self._ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They belong to whoever runs the loop."""
        yield

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Listen at one socket."""
        assert sockets is not None
        self.servers = [
            await asyncio.get_running_loop().create_server(
                self._make_protocol,
                sock=it,
                ssl=self._context,
                ssl_handshake_timeout=None if self._context is None else self._handshake_s,
                backlog=_BACKLOG,
            )
            for it in sockets
        ]
        self.started = True
        self._listening.set()

    def _make_protocol(self) -> asyncio.Protocol:
        kind = self.config.http_protocol_class
        return kind(self.config, self.server_state, self.lifespan.state)  # type: ignore[call-arg]

    async def main_loop(self) -> None:
        """Renew what every answer says of the time, until the end."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers that were begun end; whoever does not take them in time is cut off."""
        self.listen_no_more()
        for connection in [*self.server_state.connections]:
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                while self.server_state.connections:  # noqa: ASYNC110 - uvicorn tells nobody
                    await asyncio.sleep(_POLL_S)
        for connection in [*self.server_state.connections]:
            connection.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait([*self.server_state.tasks], timeout=_GRACE_S)
        for task in [*self.server_state.tasks]:
            task.cancel()

    async def wait_started(self, serving: asyncio.Task[None]) -> None:
        """Wait until it listens; raises what prevented it."""
        listening = asyncio.create_task(self._listening.wait())
        try:
            await asyncio.wait({listening, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
        if serving.done():
            await serving

    def listen_no_more(self) -> None:
        """Take no more connections."""
        for server in self.servers:
            server.close()

    def end(self) -> None:
        """Begin to stop."""
        self.should_exit = True
        self._ending.set()


def _quieten(log: logging.Logger) -> None:
    """That it starts and stops is told by the node, unless somebody wants to know more."""
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)


def make_tls_context(settings: AdminSettings) -> ssl.SSLContext | None:
    """HTTPS as configured; None if it is not."""
    if settings.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert settings.key is not None
    load_identity(context, settings.certificate, settings.key, what="admin.certificate")
    if settings.client_trust is not None:
        try:
            context.load_verify_locations(settings.client_trust)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"admin.client_trust {settings.client_trust} cannot be used: {explain(error)}"
            ) from None
        # Others still can show a token.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
