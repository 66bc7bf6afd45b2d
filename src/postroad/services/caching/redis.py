"""Results kept in Redis, for all nodes together.

What is in there is what the Redis cacher of Moleculer reads and writes. With keys of the Moleculer
form nodes in both languages use each other's results; with others they only share the place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from postroad.core.errors import ConfigError, MissingExtraError, UsageError
from postroad.services.keys import stored_name
from postroad.services.serializers.buffers import with_buffers, without_buffers

from .store import MISSING, CacheStore, fits

if TYPE_CHECKING:
    from redis.asyncio import Redis

WAIT_S = 0.25
SERIALIZERS = ("JSON", "MsgPack")

_CLEAN_AT_ONCE = 500
_MILLISECONDS = 1000
_SPECIAL = re.compile(r"([\\*?\[\]^])")
_WILDCARD = re.compile(r"[*?]")


class RedisStore(CacheStore):
    """Keeps results in Redis.

    They are found as another node would get them: objects of classes become plain ones, tuples
    lists. A namespace of the broker keeps its results apart from those of others; a broker
    without one forgets, with `clean("**")`, those of all.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as redis-py takes it.
        serializer: `JSON` or `MsgPack`; nodes that share results must use the same.
        prefix: instead of `MOL-<namespace>`.
        wait_s: the longest that a call waits for Redis; then it does without.
        options: anything else that redis-py knows of connections.
    """

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        serializer: str = "JSON",
        prefix: str = "",
        wait_s: float = WAIT_S,
        **options: Any,
    ) -> None:
        if serializer not in SERIALIZERS:
            raise ConfigError(f"serializer {serializer!r} is none of {', '.join(SERIALIZERS)}")
        if not 0 < wait_s < float("inf"):
            raise ConfigError(f"wait_s={wait_s!r} must be more than 0")
        self.wait_s = wait_s
        self._url = url
        self._check_url()
        self._is_json = serializer == "JSON"
        self._prefix = prefix
        self._options = options
        self._namespace = ""
        self._client: Redis | None = None

    async def open(self, namespace: str) -> None:
        from redis.asyncio import Redis

        self._namespace = namespace
        # It connects when it is first asked something.
        self._client = Redis.from_url(
            self._url, protocol=2, client_name="postroad", **self._options
        )

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _check_url(self) -> None:
        try:
            from redis.asyncio.connection import parse_url
        except ImportError:
            raise MissingExtraError("redis", "a cache in Redis") from None
        try:
            parse_url(self._url)
        except ValueError as error:
            raise ConfigError(f"no cache can be there: {error}") from None

    @property
    def shown(self) -> str:
        """Where it is, without secrets."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def pack(self, value: Any) -> bytes:
        if self._is_json:
            return msgspec.json.encode(with_buffers(value))
        return msgspec.msgpack.encode(value)

    def unpack(self, packed: Any) -> Any:
        if self._is_json:
            return without_buffers(msgspec.json.decode(packed))
        return msgspec.msgpack.decode(packed)

    async def get(self, key: str) -> Any:
        found = await self._redis().get(self._name(key))
        return MISSING if found is None else found

    async def set(self, key: str, packed: Any, ttl_s: float | None) -> None:
        lives_ms = None if ttl_s is None else max(1, round(ttl_s * _MILLISECONDS))
        await self._redis().set(self._name(key), packed, px=lives_ms)

    async def clean(self, patterns: Sequence[str]) -> None:
        begin = self._name("")
        for pattern in patterns:
            # Redis finds those that begin alike, and there it is decided which are meant.
            literal = _WILDCARD.split(pattern)[0]
            glob = _SPECIAL.sub(r"\\\1", begin + literal) + "*"
            await self._clean(glob, begin, (pattern,))

    async def _clean(self, glob: str, begin: str, patterns: Sequence[str]) -> None:
        client, cursor = self._redis(), 0
        while True:
            cursor, names = await client.scan(cursor, match=glob, count=_CLEAN_AT_ONCE)
            found = [it for it in names if fits(_text(it)[len(begin) :], patterns)]
            if found:
                await client.unlink(*found)
            if not cursor:
                return

    def _name(self, key: str) -> str:
        return stored_name(key, self._namespace, self._prefix)

    def _redis(self) -> Redis:
        if self._client is None:
            raise UsageError("the cache is not open; start the broker first")
        return self._client

    def __repr__(self) -> str:
        return f"<RedisStore at {self.shown}>"


def _text(name: bytes | str) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
