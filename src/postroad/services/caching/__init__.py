"""Kept results of actions: what two calls have in common, where results are, and for how long."""

from .cache import Cache, CacheStatistics
from .making import make_cache
from .memory import MemoryStore
from .redis import RedisStore
from .store import MISSING, CacheStore

__all__ = [
    "MISSING",
    "Cache",
    "CacheStatistics",
    "CacheStore",
    "MemoryStore",
    "RedisStore",
    "make_cache",
]
