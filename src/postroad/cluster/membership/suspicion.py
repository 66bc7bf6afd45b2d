"""How long a suspected member may take to speak up: the more suspect it, the shorter."""

from __future__ import annotations

import math

from .config import MembershipConfig


class Suspicion:
    """One member under suspicion.

    It begins with the long timeout. Whoever else fails to reach the member confirms it, and each
    confirmation brings the end nearer, up to the short timeout. One slow node alone so never
    hastens a death.
    """

    __slots__ = (
        "_accusers",
        "_is_hastened",
        "_is_reminded",
        "_longest_s",
        "_needed",
        "_shortest_s",
        "_started",
    )

    def __init__(self, config: MembershipConfig, started: float, accuser: str, size: int) -> None:
        self._started = started
        self._accusers = {accuser}
        self._is_hastened = False
        self._is_reminded = False
        self._longest_s = config.failure_timeout_s
        self._shortest_s = config.confirmed_failure_timeout_s
        # The member itself and its first accuser cannot confirm.
        self._needed = min(config.confirmations, size - 2)

    def confirm(self, accuser: str) -> bool:
        """Somebody suspects the member too; whether that is news."""
        if accuser in self._accusers or len(self._accusers) > self._needed:
            return False
        self._accusers.add(accuser)
        return True

    def use_min_timeout(self) -> bool:
        """Somebody has waited long enough; whether that is news."""
        was_hastened, self._is_hastened = self._is_hastened, True
        return not was_hastened

    @property
    def deadline(self) -> float:
        """When the member is declared dead."""
        return self._started + self._timeout_s()

    @property
    def renotify_at(self) -> float:
        """When the member is told of it once more; never again after that.

        Half way: by then most who could object have done so, and there is time for the rest.
        """
        return math.inf if self._is_reminded else self._started + self._shortest_s / 2

    def is_reminder_due(self, now: float) -> bool:
        """Whether to tell the member now; true once."""
        is_due = self.renotify_at <= now
        self._is_reminded |= is_due
        return is_due

    def _timeout_s(self) -> float:
        if self._is_hastened:
            return self._shortest_s
        if self._needed < 1:
            return self._longest_s
        share = math.log(len(self._accusers)) / math.log(self._needed + 1)
        return self._longest_s - (self._longest_s - self._shortest_s) * share

    def postpone(self, seconds: float) -> None:
        """This node stood still meanwhile: that time does not count."""
        self._started += seconds
