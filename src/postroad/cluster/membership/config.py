"""Settings of the membership protocol."""

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
