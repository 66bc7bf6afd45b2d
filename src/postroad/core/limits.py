"""Limits of a node with their reasons, and the retry policy.

Overflow causes backpressure or an error, never growth.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable

import msgspec

from postroad.core.errors import ConfigError, TransactionAbortedError
from postroad.core.timing import backoff

logger = logging.getLogger("postroad.core")

KIB = 1024
MIB = 1024 * KIB

# The 16-bit signed length of the oldest frame layout; older peers cannot read longer subjects.
SUBJECT_BYTES_MAX = 32_767
# An IPv4 datagram cannot carry more payload than this.
DATAGRAM_BYTES_MAX = 65_507
# A hello is a few short fields; anything larger is an attack.
HELLO_BYTES_MAX = 4 * KIB
# One observed proof allows offline guessing; a shorter secret could be found that way.
SECRET_CHARACTERS_MIN = 16
# A rotation needs three: current, next, previous. Each one makes a failed verification slower.
SECRETS_MAX = 8
# Route names of one peer that are compared or changed per second. One takes about 10 us, so a peer
# that sends changes all the time uses a tenth of a core.
ROUTE_NAMES_PER_S = 10_000
# Routes changed in one iteration of the event loop: about 5 ms, then messages are processed.
ROUTES_AT_ONCE_MAX = 512


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one messaging service. The defaults suit a node of a small cluster."""

    frame_bytes_max: int = 4 * MIB
    """Largest message, payload and subject together. A peer announcing more is cut off."""
    unfinished_bytes_max: int = 128 * MIB
    """Memory for incomplete frames of all connections; above it large frames wait."""
    requests_pending_max: int = 16_384
    """Requests awaiting a reply on one connection; further callers wait their turn."""
    handlers_running_max: int = 256
    """Asynchronous handlers at work for one connection; beyond it the socket is not read."""
    write_buffer_bytes_max: int = 1 * MIB
    """Bytes a connection buffers for a peer that does not read; then senders wait."""
    connections_max: int = 1_024
    """Connections this node opens; the longest unused idle one makes room for the next."""
    connections_per_peer_max: int = 16
    """Connections to one address, one for each class of subjects; more classes share one."""
    accepted_connections_max: int = 20_000
    """Connections this node accepts; more are closed at once."""

    request_timeout_s: float = 5.0
    """Time for a request when the caller names none."""
    handler_timeout_s: float = 300.0
    """Time for an asynchronous handler whose caller set no deadline."""
    connect_timeout_s: float = 3.0
    """Time for TCP and TLS to connect."""
    handshake_timeout_s: float = 5.0
    """Time from the connection to the end of the protocol handshake, at either side."""
    frame_timeout_s: float = 30.0
    """Time for a frame that has begun to be whole, plus a second for each 64 KiB of it."""
    heartbeat_interval_s: float = 5.0
    """A connection that wrote nothing for so long sends a heartbeat; 0 turns heartbeats off."""
    heartbeat_timeout_s: float = 15.0
    """A connection that read nothing for so long is closed; 0 turns heartbeats off."""
    idle_timeout_s: float = 300.0
    """A pooled connection without requests for so long is closed."""
    stop_grace_s: float = 5.0
    """Time that `stop` gives to what is in flight."""
    initial_backoff_s: float = 0.05
    """First pause between connection attempts of a caller that asked to wait."""
    max_backoff_s: float = 2.0
    """Longest such pause; it doubles until then, with jitter."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"limit {field}={value!r} must be a finite number, 0 or more")
            if value == 0 and not field.startswith("heartbeat_"):
                raise ConfigError(f"limit {field} must be more than 0")
        for field, factor in (("requests_pending_max", 1), ("heartbeat_timeout_s", 1000)):
            if getattr(self, field) * factor > 0xFFFF_FFFF:
                most = 0xFFFF_FFFF // factor
                raise ConfigError(f"limit {field}={getattr(self, field)!r} must be at most {most}")
        if self.frame_bytes_max > 0x7FFF_FFFF:
            raise ConfigError("limit frame_bytes_max cannot exceed 2147483647, the largest length")
        interval, timeout = self.heartbeat_interval_s, self.heartbeat_timeout_s
        if (interval == 0) != (timeout == 0):
            raise ConfigError("heartbeat_interval_s and heartbeat_timeout_s are both 0 or neither")
        if interval and interval >= timeout:
            raise ConfigError(
                f"heartbeat_interval_s={interval} must be less than heartbeat_timeout_s={timeout}"
            )

    @property
    def has_heartbeats(self) -> bool:
        """Whether idle connections are kept and checked by heartbeats."""
        return self.heartbeat_interval_s > 0


def check_positive(settings: msgspec.Struct) -> None:
    """Raise ConfigError unless all numbers among the settings are finite and above 0."""
    for field, value in msgspec.structs.asdict(settings).items():
        if isinstance(value, int | float) and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{field}={value!r} must be a finite number above 0")


ErrorFilter = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
"""Some errors: of a class or of its subclasses, of one of several, or those a function is true of.

The function gets the error, must be quick, and may be called more than once for it.
"""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When something that failed is tried again, how often, and after which errors."""

    max_attempts: int = 10
    """Attempts in all, the first one included."""
    initial_delay_s: float = 0.1
    """Delay before the second attempt."""
    max_delay_s: float = 60.0
    """Longest delay between two attempts."""
    backoff_factor: float = 2.0
    """Factor by which the delay grows with each attempt, before jitter."""
    retry_on: ErrorFilter | None = None
    """Errors worth another attempt: a class, a tuple of classes, or a function; by default all."""
    give_up_on: ErrorFilter | None = None
    """Errors that are final, even if `retry_on` has them too."""

    def __post_init__(self) -> None:
        check_positive(self)
        for field in ("retry_on", "give_up_on"):
            _check_filter(field, getattr(self, field))
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

    def allows(self, error: BaseException) -> bool:
        """Return whether another attempt may help after an error, by its kind alone.

        A transaction that others aborted is tried again, unless `give_up_on` has it.
        """
        if not isinstance(error, Exception):
            return True
        if self.give_up_on is not None and _matches(self.give_up_on, error, default=False):
            return False
        if self.retry_on is None or isinstance(error, TransactionAbortedError):
            return True
        return _matches(self.retry_on, error, default=True)


def _matches(errors: ErrorFilter, error: Exception, *, default: bool) -> bool:
    if isinstance(errors, type | tuple):
        return isinstance(error, errors)
    try:
        return bool(errors(error))
    except Exception:
        # Attempts are limited anyway, and what is given up does not come again by itself.
        logger.exception("a filter of a RetryPolicy failed, so %r is tried again", error)
        return default


def _check_filter(field: str, errors: object) -> None:
    if errors is None:
        return
    kinds = errors if isinstance(errors, tuple) else (errors,)
    if kinds and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return
    if isinstance(errors, type | tuple) or not callable(errors):
        raise ConfigError(
            f"{field}={errors!r} must be a subclass of Exception, a tuple of such classes, or a "
            "function of an error that returns True or False"
        )
    if inspect.iscoroutinefunction(errors):
        raise ConfigError(f"{field}={errors!r} must be a `def`, not an `async def`")
