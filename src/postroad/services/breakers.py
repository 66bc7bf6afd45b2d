"""Circuit breakers: an endpoint that fails too often is left alone for a while.

    CLOSED ── too many of the calls in the window failed ──> OPEN
    OPEN ── after half_open_s ──> HALF_OPEN
    HALF_OPEN ── one call is let through ──> TRYING
    TRYING ── it succeeds ──> CLOSED
    TRYING ── it fails ──> OPEN
    TRYING ── no answer for half_open_s ──> HALF_OPEN

In the original system a failed trial opens the circuit only if the counts of the window say so.
"""

from __future__ import annotations

import enum
import math

import msgspec

from postroad.core.errors import ConfigError


class BreakerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When a circuit breaker opens, and for how long."""

    is_enabled: bool = False
    """Whether there is one."""
    threshold: float = 0.5
    """The share of failures that opens it."""
    window_s: float = 60.0
    """Calls are counted for so long, then from zero again."""
    requests_min: int = 20
    """Fewer calls in a window prove nothing."""
    half_open_s: float = 10.0
    """How long it stays open before a call is tried."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ConfigError(f"threshold={self.threshold!r} must be more than 0 and at most 1")
        for name in ("window_s", "half_open_s", "requests_min"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name}={value!r} must be a finite number above 0")


class BreakerState(enum.Enum):
    """What a circuit breaker does with calls."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    TRYING = "half-open-wait"


class Breaker:
    """The circuit breaker of one endpoint. Whoever runs it calls `tick` at `deadline()`.

    Every call gets a ticket from `begin`, and gives it back with its result: results of calls that
    began before the circuit changed its state say nothing about it now.
    """

    def __init__(self, config: BreakerConfig, now: float) -> None:
        self.config = config
        self.state = BreakerState.CLOSED
        self.requests = 0
        self.failures = 0
        self._window_ends = now + config.window_s
        self._turns_at = math.inf
        self._epoch = 0

    @property
    def is_accepting(self) -> bool:
        """Whether a call may be given to the endpoint."""
        return self.state in (BreakerState.CLOSED, BreakerState.HALF_OPEN)

    @property
    def rate(self) -> float:
        """The share of failures in this window."""
        return self.failures / self.requests if self.requests else 0.0

    def deadline(self) -> float:
        """When the state changes by itself."""
        return self._turns_at

    def begin(self, now: float) -> int:
        """A call is given to the endpoint; gives its ticket."""
        if self.state is BreakerState.HALF_OPEN:
            self._turn(BreakerState.TRYING, now + self.config.half_open_s)
        return self._epoch

    def succeed(self, ticket: int, now: float) -> None:
        """A call succeeded, or failed for a reason that is not the endpoint's."""
        if ticket != self._epoch:
            return
        if self.state is BreakerState.TRYING:
            self.reset(now)
        elif self.state is BreakerState.CLOSED:
            self._count(now, failures=0)

    def fail(self, ticket: int, now: float) -> None:
        """A call failed, and the endpoint is to blame."""
        if ticket != self._epoch:
            return
        if self.state is BreakerState.TRYING:
            self._turn(BreakerState.OPEN, now + self.config.half_open_s)
        elif self.state is BreakerState.CLOSED:
            self._count(now, failures=1)

    def tick(self, now: float) -> None:
        """Let a call be tried when the time has come."""
        if self._turns_at <= now:
            self._turn(BreakerState.HALF_OPEN, math.inf)

    def reset(self, now: float) -> None:
        """Close the circuit and count from zero."""
        self._turn(BreakerState.CLOSED, math.inf)
        self._start_window(now)

    def _count(self, now: float, failures: int) -> None:
        if now >= self._window_ends:
            self._start_window(now)
        self.requests += 1
        self.failures += failures
        is_proven = self.requests >= self.config.requests_min
        if is_proven and self.rate >= self.config.threshold:
            self._turn(BreakerState.OPEN, now + self.config.half_open_s)

    def _start_window(self, now: float) -> None:
        self.requests = self.failures = 0
        self._window_ends = now + self.config.window_s

    def _turn(self, state: BreakerState, turns_at: float) -> None:
        self.state, self._turns_at = state, turns_at
        self._epoch += 1

    def __repr__(self) -> str:
        return f"<Breaker {self.state.value}: {self.failures} of {self.requests} failed>"


def is_blamed(code: int | None, *, failed_at: str | None, endpoint: str) -> bool:
    """Whether an error counts against the endpoint: a server error that did not come from beyond.

    Args:
        code: of the error; None counts as a server error.
        failed_at: the node where it first happened; None if it was made by this side.
        endpoint: the node that was called.
    """
    return (code is None or code >= 500) and failed_at in (None, endpoint)
