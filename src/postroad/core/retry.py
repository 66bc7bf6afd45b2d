"""When and how often something that failed is tried again."""

from __future__ import annotations

import math

import msgspec

from postroad.core.errors import ConfigError
from postroad.core.timing import backoff


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When something that failed is tried again, and how often."""

    max_attempts: int = 10
    """Attempts in all, the first one included."""
    initial_delay_s: float = 0.1
    """Delay before the second attempt."""
    max_delay_s: float = 60.0
    """Longest delay between two attempts."""
    backoff_factor: float = 2.0
    """Factor by which the delay grows with each attempt, before jitter."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not math.isfinite(value) or value <= 0:
                raise ConfigError(f"{field}={value!r} must be a finite number above 0")
        if self.backoff_factor < 1:
            raise ConfigError(f"backoff_factor={self.backoff_factor!r} must be 1 or more")

    def delay_s(self, failures: int, jitter: float) -> float:
        """Return the seconds until the next attempt, after so many failed ones."""
        return backoff(
            failures,
            initial_delay_s=self.initial_delay_s,
            max_delay_s=self.max_delay_s,
            jitter=jitter,
            backoff_factor=self.backoff_factor,
        )
