"""Who asks, and what they may do.

Tokens travel in the header `Authorization` alone: a browser adds no header by itself, so that a
page of somebody else cannot act in the name of whoever looks at it.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from postroad.admin.errors import Forbidden
from postroad.admin.problems import Problem, make_problem
from postroad.core.names import is_loopback

from .answers import refusal
from .errors import Unauthorized

STATE_CERTIFICATE = "postroad.certificate"
"""Where a connection tells the name in the certificate that its client has shown."""

STATE_ON_KNOWN = "postroad.on_known"
"""Where a connection wants to be told that its client has shown who it is."""

_SECURITY = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


class Role(enum.Enum):
    """What somebody may do."""

    READ = "read"
    CHANGE = "change"


class Caller(NamedTuple):
    """Somebody who asks."""

    role: Role
    name: str
    """As the log tells it."""
    has_certificate: bool = False
    """Whether it is known by a certificate, and not by a token."""


class Guard:
    """Knows who asks.

    Args:
        token: allows everything.
        read_token: allows to look.
        where: where people find the token.
        is_local: whether only programs of this machine can connect.
    """

    def __init__(
        self, token: str, read_token: str | None = None, *, where: str, is_local: bool
    ) -> None:
        self._token = token.encode()
        self._read_token = None if read_token is None else read_token.encode()
        self._where = where
        self.is_local = is_local

    def identify(self, request: Request) -> Caller:
        """Who asks; raises Unauthorized if that cannot be told."""
        caller = self._identify(request)
        if (on_known := request.scope.get("state", {}).get(STATE_ON_KNOWN)) is not None:
            on_known()
        return caller

    def _identify(self, request: Request) -> Caller:
        certificate = request.scope.get("state", {}).get(STATE_CERTIFICATE)
        if certificate is not None:
            return Caller(Role.CHANGE, f"certificate {certificate}", has_certificate=True)
        scheme, _, said = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not said.strip():
            raise Unauthorized("a token is needed", self._where)
        token = said.strip().encode("utf-8", "surrogateescape")
        # Both are compared, always: how long it takes tells nothing.
        may_change = hmac.compare_digest(token, self._token)
        may_read = hmac.compare_digest(token, self._read_token or b"") and bool(self._read_token)
        if may_change:
            return Caller(Role.CHANGE, "token")
        if may_read:
            return Caller(Role.READ, "read token")
        raise Unauthorized("this is not the token", self._where)

    def check_change(self, caller: Caller, request: Request, operation: str) -> None:
        """Whether the caller may change something; raises Forbidden if not."""
        if caller.role is not Role.CHANGE:
            raise Forbidden(f"the read token allows to look, and {operation} changes something")
        origin = request.headers.get("origin")
        if caller.has_certificate and origin is not None:
            # A browser shows a certificate by itself, for pages of others too.
            scheme, _, place = origin.partition("://")
            if not scheme or place != request.headers.get("host"):
                raise Forbidden(f"a page of {origin[:100]!r} may change nothing here")

    def check_probe(self, request: Request) -> None:
        """Whether numbers may be read: with any token, and on this machine without."""
        if not self.is_local:
            self.identify(request)


class Gate:
    """Every request comes through here: refuses foreign hosts, and says what browsers may do.

    Args:
        hosts: how clients may call this server; None if by any name.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str] | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_SECURITY]
            await send(message)

        assert scope["type"] == "http"
        problem = self._check_host(Request(scope))
        app = self._app if problem is None else refusal(problem)
        await app(scope, receive, send_safely)

    def _check_host(self, request: Request) -> Problem | None:
        """A name that leads to this machine by DNS of somebody else is not one of its names."""
        said = request.headers.get("host")
        if self._hosts is None or said is None:
            # Browsers always say it; some that only ask whether a node lives do not.
            return None
        try:
            host = urlsplit(f"//{said}").hostname or ""
        except ValueError:
            host = ""
        if host in self._hosts:
            return None
        known = ", ".join(sorted(self._hosts))
        return make_problem(
            421, f"this server is not called {said[:100]!r}", next=f"call it one of: {known}"
        )


def own_hosts(host: str) -> frozenset[str] | None:
    """How clients may call a server that listens at a host; None if by any name."""
    if not is_loopback(host):
        return None
    return frozenset({host, "localhost", "127.0.0.1", "::1"})
