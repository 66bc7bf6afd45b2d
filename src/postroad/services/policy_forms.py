"""Policies as definitions of actions write them: in the words and units of the original system.

What an action says goes over what its caller's node says, field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from postroad.core.errors import ConfigError

from .breakers import BreakerConfig
from .policies import RetryPolicy

Policy = TypeVar("Policy", RetryPolicy, BreakerConfig)

_MILLISECONDS = 1000
# The word of the original, the field here, and how many of its units are one of ours.
_RETRY = {
    "retries": ("retries", 1),
    "delay": ("delay_s", _MILLISECONDS),
    "maxDelay": ("delay_max_s", _MILLISECONDS),
    "factor": ("factor", 1),
}
_BREAKER = {
    "threshold": ("threshold", 1),
    "windowTime": ("window_s", 1),
    "minRequestCount": ("requests_min", 1),
    "halfOpenTime": ("half_open_s", _MILLISECONDS),
}


def read_retry(said: Any, usual: RetryPolicy) -> RetryPolicy:
    """The retries an action asks for with `retryPolicy`; raises ConfigError for nonsense."""
    return _merge(usual, said, "retryPolicy", _RETRY)


def read_breaker(said: Any, usual: BreakerConfig) -> BreakerConfig:
    """The circuit breaker an action asks for with `circuitBreaker`."""
    return _merge(usual, said, "circuitBreaker", _BREAKER)


def _merge(usual: Policy, said: Any, name: str, words: Mapping[str, tuple[str, int]]) -> Policy:
    if said is None:
        return usual
    if not isinstance(said, Mapping):
        raise ConfigError(f"{name} must be an object, not {said!r:.60}")
    changes: dict[str, Any] = {}
    if said.get("enabled") is not None:
        changes["is_enabled"] = bool(said["enabled"])
    for word, (field, units) in words.items():
        value = said.get(word)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
            raise ConfigError(f"{name}.{word}={value!r:.60} must be a number, 0 or more")
        is_whole = isinstance(getattr(usual, field), int)
        changes[field] = int(value) if is_whole else value / units
    return msgspec.structs.replace(usual, **changes)
