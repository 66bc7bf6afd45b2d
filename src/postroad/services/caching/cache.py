"""Caches: results of actions are kept, and the action does not run again for the same call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable
from enum import Enum, auto
from typing import Any

import msgspec

from postroad.core import ThrottledLogger
from postroad.core.errors import ConfigError
from postroad.services.context import Context
from postroad.services.keys import exact_key, moleculer_key
from postroad.services.schema import ActionInfo
from postroad.services.service import CacheOptions
from postroad.services.ways import Handler

from .memory import MemoryStore
from .store import MISSING, CacheStore, fits

logger = logging.getLogger("postroad.services.caching")

META = "$cache"
"""With False under this name in its meta, a call neither gets a kept result nor has one kept."""

_KEYS = {"exact": exact_key, "moleculer": moleculer_key}
_EXACT_LENGTH_MAX = 250
_LOG_INTERVAL_S = 10.0
_REST_S = 2.0
# Of the time of a call, the part that may be spent on looking whether its result is kept.
_SHARE = 0.25


class CacheStatistics(msgspec.Struct):
    """What a cache did."""

    hits: int = 0
    misses: int = 0
    waited: int = 0
    """Calls that got the result of another one that ran already."""
    failures: int = 0
    """Times that the store did not answer."""


class _End(Enum):
    DONE = auto()
    FAILED = auto()
    """Whoever waited has to find out on its own."""
    LEFT = auto()
    """Whoever ran it was ended, and another one has to."""


class _Computing:
    """A call that runs; others like it wait for the first."""

    __slots__ = ("ended", "is_stale", "key", "packed", "written")

    def __init__(self, key: str, ended: asyncio.Future[_End]) -> None:
        self.key = key
        self.ended = ended
        self.is_stale = False
        self.packed: Any = MISSING
        # While the result is on its way into the store; done when it is there.
        self.written: asyncio.Future[None] | None = None

    def end(self, how: _End) -> None:
        if not self.ended.done():
            self.ended.set_result(how)


class Cache:
    """Keeps results of those actions of a broker that ask for it. It serves one broker.

        broker = Broker(caching=Cache(MemoryStore(entries_max=500), ttl_s=60))

    Only the result is kept, not what the action puts into meta or headers. Errors are never kept,
    nor are streams. A store that does not answer makes no call fail: the
    action runs, and the store is left alone for a moment.

    Args:
        store: where results are kept; by default in memory.
        ttl_s: how long a result is good if its action does not say; None for ever.
        keys: `exact`, or `moleculer` to use the results of nodes in JavaScript. The latter takes
            some different calls for the same, so whoever may choose texts in params can get the
            result of another call.
        key_length_max: a longer description of a call is cut and ends with a hash; 0 for none. With
            `moleculer`, the `maxParamsLength` of the others.
        locks: of several equal calls at once, one runs and the others wait for its result.
    """

    def __init__(
        self,
        store: CacheStore | None = None,
        *,
        ttl_s: float | None = None,
        keys: str = "exact",
        key_length_max: int | None = None,
        locks: bool = True,
    ) -> None:
        if keys not in _KEYS:
            raise ConfigError(f"keys={keys!r} is none of {', '.join(_KEYS)}")
        if ttl_s is not None and not 0 < ttl_s < float("inf"):
            raise ConfigError(f"ttl_s={ttl_s!r} must be more than 0, or None")
        self._store = MemoryStore() if store is None else store
        self._ttl_s = ttl_s
        self._key_of = _KEYS[keys]
        usual = _EXACT_LENGTH_MAX if keys == "exact" else 0
        self._key_length_max = usual if key_length_max is None else key_length_max
        self._locks = locks
        # Calls that run, and of those with the same key the one that others wait for.
        self._running: set[_Computing] = set()
        self._computing: dict[str, _Computing] = {}
        self._rests_until = 0.0
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        self.statistics = CacheStatistics()

    async def start(self, namespace: str) -> None:
        """The broker starts."""
        await self._store.open(namespace)

    async def stop(self) -> None:
        """The broker has stopped."""
        try:
            await self._store.close()
        except Exception as error:
            self._warn("close", "%r did not close in good order: %s", self._store, error)

    async def clean(self, *patterns: str) -> None:
        """Forget results: of `posts.find`, of `posts.*`, of all services with `**`.

        A call that runs meanwhile gives its result to its caller, but it is not kept.

        Raises:
            OSError: and others, as the store has them, if it does not answer: what it keeps may
                be out of date then.
        """
        wanted = patterns or ("**",)
        stale = [it for it in self._running if fits(it.key, wanted)]
        for it in stale:
            it.is_stale = True
            self._let_go(it)
        if written := [it.written for it in stale if it.written is not None]:
            # Or it would be there afterwards.
            await asyncio.wait(written)
        await self._store.clean(wanted)

    def around(self, handler: Handler, action: ActionInfo, options: CacheOptions) -> Handler:
        """A handler that looks for a kept result first."""
        name, keys = action.name, options.keys
        ttl_s = self._ttl_s if options.ttl_s is None else options.ttl_s
        key_of, length_max = self._key_of, self._key_length_max

        async def run(ctx: Context) -> Any:
            if ctx.stream is not None or ctx.meta.get(META) is False:
                return await handler(ctx)
            try:
                key = key_of(
                    name, ctx.params, ctx.meta, ctx.headers, keys=keys, length_max=length_max
                )
            except Exception as error:
                # Params are of any sort, and their texts are made by their own code.
                self._warn(name, "no key for a call of %s: %s", name, error)
                return await handler(ctx)
            return await self._find_or_run(key, ctx, handler, ttl_s)

        return run

    # Results.

    async def _find_or_run(
        self, key: str, ctx: Context, handler: Handler, ttl_s: float | None
    ) -> Any:
        if key not in self._computing:
            found = await self._get(key, ctx)
            if found is not MISSING:
                self.statistics.hits += 1
                ctx.cached_result = True
                return found
        while self._locks and (other := self._computing.get(key)) is not None:
            how = await asyncio.shield(other.ended)
            if how is _End.LEFT:
                continue
            found = self._unpacked(key, other.packed)
            if found is MISSING:
                break
            self.statistics.waited += 1
            ctx.cached_result = True
            return found
        self.statistics.misses += 1
        return await self._run(key, ctx, handler, ttl_s)

    async def _run(self, key: str, ctx: Context, handler: Handler, ttl_s: float | None) -> Any:
        mine = _Computing(key, asyncio.get_running_loop().create_future())
        self._running.add(mine)
        # Another one may be there, after it failed for somebody else: then nobody waits for this.
        self._computing.setdefault(key, mine)
        try:
            result = await handler(ctx)
            mine.packed = self._packed(key, result)
            if mine.packed is not MISSING:
                mine.end(_End.DONE)
                if not mine.is_stale:
                    await self._write(mine, ttl_s, ctx)
            return result
        except asyncio.CancelledError:
            mine.end(_End.LEFT)
            raise
        finally:
            mine.end(_End.FAILED)
            self._running.discard(mine)
            self._let_go(mine)

    async def _write(self, computing: _Computing, ttl_s: float | None, ctx: Context) -> None:
        computing.written = asyncio.get_running_loop().create_future()
        try:
            await self._set(computing.key, computing.packed, ttl_s, ctx)
        finally:
            computing.written.set_result(None)

    def _let_go(self, computing: _Computing) -> None:
        """Nobody else shall wait for this one."""
        if self._computing.get(computing.key) is computing:
            del self._computing[computing.key]

    def _packed(self, key: str, result: Any) -> Any:
        if isinstance(result, AsyncIterable):
            return MISSING
        try:
            return self._store.pack(result)
        except Exception as error:
            self._warn(key, "the result for %.80s cannot be kept: %s", key, error)
            return MISSING

    def _unpacked(self, key: str, packed: Any) -> Any:
        if packed is MISSING:
            return MISSING
        try:
            return self._store.unpack(packed)
        except Exception as error:
            self._warn(key, "what is kept for %.80s makes no sense: %s", key, error)
            return MISSING

    # The store.

    async def _get(self, key: str, ctx: Context) -> Any:
        if self._rests():
            return MISSING
        try:
            wait_s = self._wait_s(ctx)
            if wait_s is None:
                packed = await self._store.get(key)
            else:
                async with asyncio.timeout(wait_s):
                    packed = await self._store.get(key)
        except Exception as error:
            self._failed(error)
            return MISSING
        return self._unpacked(key, packed)

    async def _set(self, key: str, packed: Any, ttl_s: float | None, ctx: Context) -> None:
        if self._rests():
            return
        try:
            async with asyncio.timeout(self._wait_s(ctx)):
                await self._store.set(key, packed, ttl_s)
        except Exception as error:
            self._failed(error)

    def _wait_s(self, ctx: Context) -> float | None:
        wait_s = self._store.wait_s
        if wait_s is None or not ctx.timeout_s:
            return wait_s
        return min(wait_s, ctx.timeout_s * _SHARE)

    def _rests(self) -> bool:
        """Whether the store is left alone, because it did not answer."""
        return bool(self._rests_until) and _now() < self._rests_until

    def _failed(self, error: Exception) -> None:
        self.statistics.failures += 1
        self._rests_until = _now() + _REST_S
        said = str(error) or type(error).__name__
        self._warn("store", "%r does not answer, calls do without: %s", self._store, said)

    def _warn(self, about: str, text: str, *args: object) -> None:
        self._log.log(about, _now(), text, *args)

    def __repr__(self) -> str:
        return f"<Cache in {self._store!r}>"


def _now() -> float:
    return asyncio.get_running_loop().time()
