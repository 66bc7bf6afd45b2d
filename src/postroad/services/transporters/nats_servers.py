"""Where NATS servers are, and what they want to know before they let somebody in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, unquote, urlsplit

from postroad.core.errors import ConfigError

PORT = 4222
_FORM = "it must be like nats://host:4222 or tls://user:password@host:4222,other:4222"


@dataclass(frozen=True)
class NatsServer:
    """A place; what gets us in is not shown."""

    host: str
    port: int = PORT
    is_encrypted: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_open(self) -> bool:
        """Whether nothing is known that gets us in."""
        return self.user is None and self.password is None and self.token is None

    def credentials(self) -> dict[str, str]:
        """As a server takes them."""
        known = {"user": self.user, "pass": self.password, "auth_token": self.token}
        return {key: value for key, value in known.items() if value is not None}


def parse_servers(
    url: str, *, user: str | None = None, password: str | None = None, token: str | None = None
) -> list[NatsServer]:
    """The servers of a URL, or of several with commas in between.

    A name without a password in a URL is a token. Who has neither is entered like the first, or
    as the arguments say.

    Raises:
        ConfigError: it is no such URL, or there are both a token and a name.
    """
    servers = [_parse_server(part.strip()) for part in url.split(",")]
    first = servers[0]
    if user is not None or password is not None or token is not None:
        servers = [replace(it, user=user, password=password, token=token) for it in servers]
    elif not first.is_open:
        servers = [_entered_like(first, it) for it in servers]
    if any(it.token is not None and it.user is not None for it in servers):
        raise ConfigError("a NATS server is given a token, or a user and a password, not both")
    if any((it.user is None) != (it.password is None) for it in servers):
        raise ConfigError("a NATS server is given a user and a password together, or neither")
    return servers


def _entered_like(first: NatsServer, server: NatsServer) -> NatsServer:
    if not server.is_open:
        return server
    return replace(server, user=first.user, password=first.password, token=first.token)


def _parse_server(text: str) -> NatsServer:
    try:
        parts = urlsplit(text if "://" in text else f"nats://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        # What it is instead is not shown: there may be a password in it.
        raise ConfigError(f"the URL of a NATS server cannot be read; {_FORM}") from None
    if parts.scheme not in ("nats", "tls") or not host or port == 0 or _has_more(parts):
        raise ConfigError(f"the URL of a NATS server is wrong; {_FORM}")
    user = unquote(parts.username or "") or None
    password = None if parts.password is None else unquote(parts.password)
    is_token = user is not None and password is None
    return NatsServer(
        host,
        port or PORT,
        parts.scheme == "tls",
        user=None if is_token else user,
        password=password,
        token=user if is_token else None,
    )


def _has_more(parts: SplitResult) -> bool:
    return bool(parts.path.strip("/") or parts.query or parts.fragment)
