"""Where a Redis server is, what lets us in, and what the client library has for that."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from postroad.core.errors import ConfigError, MissingExtraError

PORT = 6379
_FORM = "it must be like redis://host:6379/0 or rediss://user:password@host:6379/0"


@dataclass(frozen=True)
class RedisServer:
    """A place; what gets us in is not shown."""

    host: str
    port: int = PORT
    database: int = 0
    is_encrypted: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class TlsFiles:
    """Files for TLS; what is not given is as the machine has it."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def check(self) -> None:
        """Raise ConfigError if one is not what it should be."""
        if (self.cert is None) != (self.key is None):
            raise ConfigError("tls_cert and tls_key are given together or not at all")
        if self == TlsFiles():
            return
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            files = ", ".join(it for it in (self.ca, self.cert, self.key) if it)
            raise ConfigError(f"tls_ca, tls_cert, tls_key: {files}: {error}") from error


def parse_server(url: str, *, user: str | None = None, password: str | None = None) -> RedisServer:
    """The server of a URL; the arguments are instead of what is in it.

    Raises:
        ConfigError: it is no such URL.
    """
    try:
        parts = urlsplit(url)
        host, port, database = parts.hostname, parts.port, int(parts.path.strip("/") or 0)
    except ValueError:
        # What it is instead is not shown: there may be a password in it.
        raise ConfigError(f"the URL of a Redis server cannot be read; {_FORM}") from None
    has_more = bool(parts.query or parts.fragment or database < 0 or "," in parts.netloc)
    if parts.scheme not in ("redis", "rediss") or not host or port == 0 or has_more:
        raise ConfigError(f"the URL of a Redis server is wrong; {_FORM}")
    return RedisServer(
        host,
        port or PORT,
        database,
        parts.scheme == "rediss",
        user=user if user is not None else unquote(parts.username or "") or None,
        password=password if password is not None else unquote(parts.password or "") or None,
    )


def need_redis() -> None:
    """Refuse to go on without the package."""
    try:
        import redis  # noqa: F401
    except ImportError:
        raise MissingExtraError("redis", "the Redis transporter") from None


def make_connection(server: RedisServer, files: TlsFiles, connect_timeout_s: float) -> Any:
    """A connection that is not open yet; it is never opened again by itself."""
    from redis.asyncio.connection import Connection, SSLConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    options: dict[str, Any] = {
        "host": server.host,
        "port": server.port,
        "db": server.database,
        "username": server.user,
        "password": server.password,
        "client_name": "postroad",
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": connect_timeout_s,
        # Reading waits for as long as nothing comes; silence is noticed by pings.
        "socket_timeout": None,
    }
    if not server.is_encrypted:
        return Connection(**options)
    return SSLConnection(
        ssl_ca_certs=files.ca,
        ssl_certfile=files.cert,
        ssl_keyfile=files.key,
        ssl_check_hostname=True,
        **options,
    )


async def take_answers(connection: Any, answered: Callable[[str | None], None]) -> None:
    """Tell of each answer to a command, with the reason if it was refused."""
    from redis.exceptions import ResponseError

    with mapped_errors():
        while True:
            try:
                await connection.read_response()
            except ResponseError as error:
                answered(str(error))
            else:
                answered(None)


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Have errors of the client library as everybody knows them."""
    from redis import exceptions

    try:
        yield
    except exceptions.AuthenticationError as error:
        raise PermissionError(str(error)) from error
    except exceptions.TimeoutError as error:
        raise TimeoutError(str(error)) from error
    except exceptions.RedisError as error:
        raise ConnectionError(str(error)) from error
