"""How long a suspected member may take to speak up: the more suspect it, the shorter."""

from __future__ import annotations

import math

from postroad.cluster.membership.config import MembershipConfig


class LocalHealth:
    """A score from 0, well, upwards. A node that has reason to doubt itself gives others more time.

    It rises when probes fail without anybody confirming the failure, when this node finds itself
    suspected, and when it stood still; it falls with every probe that succeeds.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.score = 0

    def worsen(self) -> None:
        """Something suggests that the trouble is here."""
        self.score = min(self.score + 1, self._maximum)

    def improve(self) -> None:
        """All went well."""
        self.score = max(self.score - 1, 0)

    @property
    def timeout_multiplier(self) -> int:
        """By what to multiply times."""
        return self.score + 1


class RoundTripEstimator:
    """A running estimate of the time to a member and back, and of how much it varies."""

    __slots__ = ("_variation_s", "smoothed_s")

    # The weights known from TCP.
    _WEIGHT = 1 / 8
    _VARIATION_WEIGHT = 1 / 4
    _VARIATIONS = 4

    def __init__(self) -> None:
        # None before the first answer.
        self.smoothed_s: float | None = None
        self._variation_s = 0.0

    def add(self, seconds: float) -> None:
        """An answer took so long."""
        if self.smoothed_s is None:
            self.smoothed_s, self._variation_s = seconds, seconds / 2
            return
        difference = seconds - self.smoothed_s
        self.smoothed_s += difference * self._WEIGHT
        self._variation_s += (abs(difference) - self._variation_s) * self._VARIATION_WEIGHT

    @property
    def upper_bound_s(self) -> float:
        """Nearly every answer takes less."""
        return (self.smoothed_s or 0.0) + self._VARIATIONS * self._variation_s


class Suspicion:
    """One member under suspicion.

    It begins with the long timeout. Whoever else fails to reach the member confirms it, and each
    confirmation brings the end nearer, up to the short timeout. One slow node alone so never
    hastens a death.
    """

    __slots__ = (
        "_confirmations_needed",
        "_is_renotified",
        "_max_timeout_s",
        "_min_timeout_s",
        "_reporters",
        "_started",
        "_uses_min_timeout",
    )

    def __init__(self, config: MembershipConfig, started: float, reporter: str, size: int) -> None:
        self._started = started
        self._reporters = {reporter}
        self._uses_min_timeout = False
        self._is_renotified = False
        self._max_timeout_s = config.failure_timeout_s
        self._min_timeout_s = config.confirmed_failure_timeout_s
        # The member itself and its first accuser cannot confirm.
        self._confirmations_needed = min(config.confirmations, size - 2)

    def confirm(self, reporter: str) -> bool:
        """Somebody suspects the member too; whether that is news."""
        if reporter in self._reporters or len(self._reporters) > self._confirmations_needed:
            return False
        self._reporters.add(reporter)
        return True

    def use_min_timeout(self) -> bool:
        """Somebody has waited long enough; whether that is news."""
        was_used, self._uses_min_timeout = self._uses_min_timeout, True
        return not was_used

    @property
    def deadline(self) -> float:
        """When the member is declared dead."""
        return self._started + self._timeout_s()

    @property
    def renotify_at(self) -> float:
        """When the member is told of it once more; never again after that.

        Half way: by then most who could object have done so, and there is time for the rest.
        """
        return math.inf if self._is_renotified else self._started + self._min_timeout_s / 2

    def is_renotify_due(self, now: float) -> bool:
        """Whether to tell the member now; true once."""
        is_due = self.renotify_at <= now
        self._is_renotified |= is_due
        return is_due

    def _timeout_s(self) -> float:
        if self._uses_min_timeout:
            return self._min_timeout_s
        if self._confirmations_needed < 1:
            return self._max_timeout_s
        share = math.log(len(self._reporters)) / math.log(self._confirmations_needed + 1)
        return self._max_timeout_s - (self._max_timeout_s - self._min_timeout_s) * share

    def extend_deadlines(self, seconds: float) -> None:
        """This node stood still meanwhile: that time does not count."""
        self._started += seconds
