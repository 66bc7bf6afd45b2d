"""Caches by name and by URL, as they are given to a broker."""

from __future__ import annotations

from postroad.core.errors import ConfigError

from .cache import Cache
from .memory import MemoryStore
from .redis import RedisStore

_REDIS = ("redis", "rediss", "unix")


def make_cache(said: str | bool) -> Cache | None:
    """The cache for `True`, `memory` or the URL of a Redis server; None for False.

    Raises:
        ConfigError: there is none of that name.
        MissingExtraError: the extra it needs is not installed.
    """
    if isinstance(said, bool):
        return Cache() if said else None
    name, separator, _ = said.partition("://")
    if name.lower() == "memory" and not separator:
        return Cache(MemoryStore())
    if name.lower() == "redis" and not separator:
        return Cache(RedisStore())
    if name.lower() in _REDIS:
        return Cache(RedisStore(said))
    raise ConfigError(f"no cache {name!r}; there are memory, and URLs of redis, rediss and unix")
