"""Policies of single calls: how often, how long, how deep.

Each is a value and a few questions to it. Times are seconds.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from postroad.core.errors import ConfigError


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a failed call is tried again, and when. Each try has its full time again."""

    is_enabled: bool = False
    """Whether there are retries at all."""
    retries: int = 5
    """How often a call is tried again."""
    delay_s: float = 0.1
    """The pause before the first retry."""
    delay_max_s: float = 1.0
    """The longest pause."""
    factor: float = 2.0
    """By which each pause is longer than the one before."""

    def __post_init__(self) -> None:
        _check_numbers(self, "retries", "delay_s", "delay_max_s", "factor")

    def pause_before(
        self, retry: int, *, is_retryable: bool, retries: int | None = None
    ) -> float | None:
        """Seconds to wait before a retry, 1 being the first; None if the failure is final.

        Args:
            retry: the number of the retry.
            is_retryable: what the error says of itself.
            retries: the number allowed for this call, if it names one.
        """
        allowed = self.retries if retries is None else retries
        if not (self.is_enabled and is_retryable) or retry > allowed:
            return None
        try:
            delay = self.delay_s * self.factor ** (retry - 1)
        except OverflowError:
            delay = self.delay_max_s
        return min(delay, self.delay_max_s)


NO_LIMIT = 0.0
"""The time of a call that may take any time, as on the wire."""


class TimeBudget(msgspec.Struct, frozen=True):
    """The time of one call, of which the calls it makes get what is left."""

    timeout_s: float
    """The whole time; NO_LIMIT for any."""
    started_at: float

    def remaining(self, now: float) -> float:
        """What is left: 0 or less if it is used up, infinity if there is no limit."""
        if self.timeout_s <= NO_LIMIT:
            return math.inf
        return self.timeout_s - (now - self.started_at)

    def is_spent(self, now: float) -> bool:
        """Whether a further call would be pointless, and is to be skipped."""
        return self.remaining(now) <= 0

    def timeout_for(self, wanted_s: float, now: float) -> float:
        """The time for a nested call that wants so much, never more than what is left.

        Ask `is_spent` first: nothing left is not the same as no limit.
        """
        remaining = self.remaining(now)
        if math.isinf(remaining):
            return wanted_s
        return min(wanted_s, remaining) if wanted_s > NO_LIMIT else remaining


def choose_timeout(
    called_s: float | None, action_s: float | None, default_s: float | None
) -> float:
    """The time of a call: what the caller says, else the action, else the node. 0 is no limit."""
    for said in (called_s, action_s, default_s):
        if said is not None:
            return max(said, NO_LIMIT)
    return NO_LIMIT


def is_too_deep(level: int, level_max: int) -> bool:
    """Whether a call at this level may make no further one; a maximum of 0 is none."""
    return 0 < level_max <= level


def _check_numbers(policy: Any, *names: str) -> None:
    for name in names:
        value = getattr(policy, name)
        if not (math.isfinite(value) and value >= 0):
            kind = type(policy).__name__
            raise ConfigError(f"{kind}: {name}={value!r} must be a finite number, 0 or more")
