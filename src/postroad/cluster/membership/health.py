"""How well this node itself does, and how far away others are: both decide about patience."""

from __future__ import annotations


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
