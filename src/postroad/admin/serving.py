"""What operators come to: the HTTP API and the dashboard of a node, in its own loop."""

from __future__ import annotations

import logging
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from postroad._version import __version__
from postroad.core import Address, Lifecycle
from postroad.core.errors import MissingExtraError, UsageError
from postroad.node import Node
from postroad.node.settings import Layer

from .cards import Card, keep_token, leave_card, take_card, token_path
from .certificates import expiry_of_file
from .operations import NodeOffice
from .remote import RemoteOffice

if TYPE_CHECKING:
    from .http.server import HttpServer
    from .http.watching import Watch

logger = logging.getLogger("postroad.admin")

_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class AdminServer(Lifecycle):
    """Serves the API and the dashboard of a node, as its settings say.

        async with Node(config) as node, AdminServer(node) as admin:
            print(admin.url, admin.token)

    It may be started before the node, so that probes learn how far the start has come; then
    `answer_members` is to be called when the node runs.

    Args:
        node: whose API it is.
        listener: a socket that has the address of the settings already, as `take_address` gives it.
    """

    def __init__(self, node: Node, listener: socket.socket | None = None) -> None:
        self.node = node
        self._listener = listener
        self._settings = node.config.admin
        self._remote = RemoteOffice(node)
        self._office = NodeOffice(node, self._remote.ask)
        self._server: HttpServer | None = None
        self.watch: Watch | None = None
        """What is being watched; set while it is served."""
        self._token: str | None = None
        self._card: tuple[Path, Card] | None = None

    async def start(self) -> None:
        """Serve; does nothing if the settings say so.

        Raises:
            ConfigError: it cannot be served at that address, or with these certificates.
            MissingExtraError: packages are not installed.
        """
        if not self._settings.enabled:
            return
        if self._server is not None:
            raise UsageError(f"{self!r} was started already; make a new one")
        self._token = self._settings.token or keep_token(self.node.config.data, self.node.name)
        server, self.watch = self._make_server()
        await server.start()
        try:
            self._server = server
            self._leave_card()
            if self.node.is_running:
                self.answer_members()
        except BaseException:
            await self.stop()
            raise
        logger.info("%s is administered at %s", self.node.name, self.url)
        self._warn_of_expiry()

    def _warn_of_expiry(self) -> None:
        """Say that certificates are over: nobody but those who refuse them would know."""
        tls = self.node.config.tls
        shown = {"admin.certificate": self._settings.certificate}
        shown["tls.certificate"] = None if tls is None else tls.certificate
        for setting, file in shown.items():
            expires = None if file is None else expiry_of_file(file)
            if expires is not None and expires < datetime.now(UTC):
                logger.warning(
                    "%s %s has expired on %s, and others refuse it; `postroad certs issue` makes a "
                    "new one",
                    *(setting, file, expires.date()),
                )

    def _make_server(self) -> tuple[HttpServer, Watch]:
        try:
            from .http.application import make_server
        except ImportError as error:
            raise MissingExtraError("dashboard", "the HTTP API") from error
        assert self._token is not None
        kept = token_path(self.node.config.data, self.node.name).name
        where = "admin.token of its configuration"
        if self._settings.token is None:
            where = f"{kept} in its data directory"
        return make_server(
            self.node, self._office, self._remote, self._token, where, self._listener
        )

    def _leave_card(self) -> None:
        certificate = self._settings.certificate
        card = Card(
            name=self.node.name,
            cluster=self.node.cluster,
            pid=os.getpid(),
            url=self.url,
            version=__version__,
            certificate=None if certificate is None else str(Path(certificate).resolve()),
        )
        self._card = leave_card(self.node.config.data, card), card

    def answer_members(self) -> None:
        """Fulfil wishes of other members too, now that the node runs."""
        if self.node.config.has(Layer.CLUSTER):
            self._remote.open(self._office)

    async def stop(self) -> None:
        """End what is served, and tell nobody any more where it was."""
        if self._card is not None:
            take_card(*self._card)
            self._card = None
        if self.node.is_running:
            self._remote.close()
        if self.watch is not None:
            self.watch.close()
        if self._server is not None:
            await self._server.stop()

    @property
    def url(self) -> str:
        """Where it is reached from this machine."""
        if self._server is None:
            raise UsageError("the admin API is not served: start it, or set admin.enabled")
        host, port = self._server.address
        scheme = "http" if self._settings.certificate is None else "https"
        return f"{scheme}://{Address(_ANY_HOST.get(host, host), port)}"

    @property
    def connections(self) -> int:
        """How many connections clients have with it."""
        return 0 if self._server is None else self._server.connections

    @property
    def token(self) -> str:
        """What allows everything."""
        if self._token is None:
            raise UsageError("the admin API is not served: start it, or set admin.enabled")
        return self._token

    def __repr__(self) -> str:
        return f"<AdminServer of {self.node!r}>"
