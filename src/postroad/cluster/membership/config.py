"""Settings of the membership protocol, and the times that follow from them (Lifeguard).

Suspicion timeouts, the local health score and round-trip estimates.
"""

from __future__ import annotations

import math

import msgspec

from postroad.core.errors import ConfigError
from postroad.core.limits import KIB, MIB

# Upper bound of a record without properties, with names and host of maximum length.
_RECORD_BYTES_MAX = 1_024


class MembershipConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times, counts and sizes of one node's membership. Nodes of a cluster should agree on them."""

    probe_interval_s: float = 1.0
    """Interval between probes; each probe goes to the next of the other members."""
    probe_timeout_s: float = 2.0
    """Time for an ack, direct or indirect; then the member is suspected.

    Longer than the pauses that garbage collection or a busy host cause now and then.
    """
    indirect_probe_delay_s: float = 0.5
    """Time for the direct ack; then indirect probes are sent, and a probe over TCP."""
    indirect_probes: int = 3
    """Number of members that send an indirect probe."""

    failure_timeout_s: float = 10.0
    """A suspected member that does not refute the suspicion for so long is declared dead."""
    confirmed_failure_timeout_s: float = 5.0
    """The shorter timeout, used once enough other members have confirmed the suspicion."""
    suspicion_confirmations: int = 3
    """Number of confirmations that shorten the timeout to the minimum."""

    gossip_interval_s: float = 0.25
    """Interval between gossip packets, while records are queued."""
    gossip_fanout: int = 2
    """Number of members that receive each round of gossip."""
    retransmit_factor: int = 4
    """A record is sent this number times the decimal logarithm of the cluster size."""
    sync_interval_s: float = 10.0
    """Interval between push-pull syncs of the whole state with one random member."""
    join_timeout_s: float = 2.0
    """If no seed replies for so long, the node starts a cluster alone and keeps trying."""

    tombstone_ttl_s: float = 600.0
    """Dead members are remembered for so long, so that old gossip cannot revive them."""
    local_health_max: int = 8
    """Maximum of the local health score; each point lengthens timeouts by one more multiple."""

    members_max: int = 5_000
    """Maximum number of members of a cluster; records of further ones are rejected."""
    properties_bytes_max: int = 16 * KIB
    """Maximum size of all properties of one member together."""
    packet_bytes_max: int = 1_200
    """Size of the records in one datagram, small enough not to be fragmented."""
    stream_bytes_max: int = 1 * MIB
    """Size of the records in one packet over TCP; a larger state takes several syncs."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not math.isfinite(value) or value <= 0:
                raise ConfigError(f"membership {field}={value!r} must be a number above 0")
        for shorter, longer in (
            ("indirect_probe_delay_s", "probe_timeout_s"),
            ("confirmed_failure_timeout_s", "failure_timeout_s"),
            ("packet_bytes_max", "stream_bytes_max"),
        ):
            if getattr(self, shorter) > getattr(self, longer):
                raise ConfigError(
                    f"membership {shorter}={getattr(self, shorter)} must not be more than "
                    f"{longer}={getattr(self, longer)}"
                )
        if self.packet_bytes_max < _RECORD_BYTES_MAX:
            raise ConfigError(
                f"membership packet_bytes_max={self.packet_bytes_max} must be "
                f"{_RECORD_BYTES_MAX} or more, so that every record fits"
            )


class LocalHealth:
    """Local health score: 0 is healthy; a higher score gives other members more time.

    The score rises when probes fail without nacks, when this node is suspected itself, and when it
    stalls; it falls with every probe that succeeds.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.score = 0

    def worsen(self) -> None:
        """Raise the score: the cause may be this node."""
        self.score = min(self.score + 1, self._maximum)

    def improve(self) -> None:
        """Lower the score after a success."""
        self.score = max(self.score - 1, 0)

    @property
    def timeout_multiplier(self) -> int:
        return self.score + 1


class RoundTripEstimator:
    """Smoothed round-trip time to a member, and its variation."""

    __slots__ = ("_variation_s", "smoothed_s")

    # The weights of TCP (RFC 6298).
    _WEIGHT = 1 / 8
    _VARIATION_WEIGHT = 1 / 4
    _VARIATIONS = 4

    def __init__(self) -> None:
        # None before the first sample.
        self.smoothed_s: float | None = None
        self._variation_s = 0.0

    def add(self, seconds: float) -> None:
        if self.smoothed_s is None:
            self.smoothed_s, self._variation_s = seconds, seconds / 2
            return
        difference = seconds - self.smoothed_s
        self.smoothed_s += difference * self._WEIGHT
        self._variation_s += (abs(difference) - self._variation_s) * self._VARIATION_WEIGHT

    @property
    def upper_bound_s(self) -> float:
        """Bound below which nearly every round trip stays."""
        return (self.smoothed_s or 0.0) + self._VARIATIONS * self._variation_s


class Suspicion:
    """Suspicion of one member.

    It starts with the maximum timeout. Every other node that fails to reach the member confirms the
    suspicion, and each confirmation shortens the timeout, down to the minimum. So one slow node
    alone never shortens it.
    """

    def __init__(self, config: MembershipConfig, started: float, reporter: str, size: int) -> None:
        self._started = started
        self._reporters = {reporter}
        self._uses_min_timeout = False
        self._is_renotified = False
        self._max_timeout_s = config.failure_timeout_s
        self._min_timeout_s = config.confirmed_failure_timeout_s
        # The member itself and its first reporter cannot confirm.
        self._confirmations_needed = min(config.suspicion_confirmations, size - 2)

    def confirm(self, reporter: str) -> bool:
        """Add a node that suspects the member too; return whether it is new."""
        if reporter in self._reporters or len(self._reporters) > self._confirmations_needed:
            return False
        self._reporters.add(reporter)
        return True

    def use_min_timeout(self) -> bool:
        """Use the minimum timeout from now on; return whether that is new."""
        was_used, self._uses_min_timeout = self._uses_min_timeout, True
        return not was_used

    @property
    def deadline(self) -> float:
        """When the member is declared dead."""
        return self._started + self._timeout_s()

    @property
    def renotify_at(self) -> float:
        """When to notify the member once more; infinite after that.

        Half of the minimum timeout: most members that can refute have done so by then, and there is
        time left for the rest.
        """
        return math.inf if self._is_renotified else self._started + self._min_timeout_s / 2

    def is_renotify_due(self, now: float) -> bool:
        """Return whether to notify the member now; True only once."""
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
        """Extend the deadline by the time that this node stalled."""
        self._started += seconds
