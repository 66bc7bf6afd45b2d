"""Where a server is, and what gets us in, as URLs say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from postroad.core.errors import ConfigError


class Scheme(NamedTuple):
    """What the beginning of a URL means."""

    port: int
    is_encrypted: bool


@dataclass(frozen=True)
class ServerAddress:
    """A place; what gets us in is not shown."""

    host: str
    port: int
    is_encrypted: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    path: str = ""
    """What follows the place, without the slash before it."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(
    url: str,
    schemes: Mapping[str, Scheme],
    *,
    user: str | None = None,
    password: str | None = None,
    has_tls: bool = False,
) -> ServerAddress:
    """The place that a URL means; `user` and `password` go before those in the URL.

    Raises:
        ConfigError: it is no such URL, or not one for TLS although there are settings for that. It
            is not shown: there may be a password in it.
    """
    form = " or ".join(f"{name}://user:password@host:{it.port}" for name, it in schemes.items())
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"the URL of a server cannot be read; it must be like {form}") from None
    scheme = schemes.get(parts.scheme)
    if scheme is None or not host or port == 0 or parts.query or parts.fragment:
        raise ConfigError(f"the URL of a server is wrong; it must be like {form}")
    if has_tls and not scheme.is_encrypted:
        encrypted = [name for name, it in schemes.items() if it.is_encrypted]
        raise ConfigError(f"tls is given, so the URL must begin with {'://, '.join(encrypted)}://")
    if user is None and password is None:
        user, password = _plain(parts.username), _plain(parts.password)
    if password is not None and not user:
        raise ConfigError("a server is given a password, but no user")
    path = unquote(parts.path.removeprefix("/"))
    return ServerAddress(host, port or scheme.port, scheme.is_encrypted, user, password, path)


def _plain(text: str | None) -> str | None:
    return None if text is None else unquote(text)
