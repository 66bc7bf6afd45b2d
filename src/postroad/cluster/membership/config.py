"""Every constant of the membership protocol."""

from __future__ import annotations

import math

import msgspec

from postroad.core.errors import ConfigError
from postroad.core.limits import KIB, MIB

# A record without properties whose names and host are as long as they may be.
_RECORD_BYTES_MAX = 1_024


class MembershipConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times, counts and sizes of one node's membership. Nodes of a cluster should agree on them."""

    probe_interval_s: float = 1.0
    """Every so often one other member is asked whether it lives, each in its turn."""
    probe_timeout_s: float = 2.0
    """Time for an answer, by whatever way it comes; then the member is suspected.

    Longer than a node may stand still now and then, for garbage or for its neighbours.
    """
    indirect_after_s: float = 0.5
    """Time for the direct answer; then others are asked to try, and the stream is tried too."""
    indirect_probes: int = 3
    """How many others are asked to try."""

    failure_timeout_s: float = 10.0
    """A suspected member that does not speak up for so long is declared dead."""
    confirmed_failure_timeout_s: float = 5.0
    """The same when enough others suspect it on their own account."""
    confirmations: int = 3
    """How many others are enough."""

    gossip_interval_s: float = 0.25
    """News are passed on so often, while there are any."""
    gossip_fanout: int = 2
    """To so many members each time."""
    retransmit_factor: int = 4
    """News are passed on this number times the decimal logarithm of the cluster's size."""
    sync_interval_s: float = 10.0
    """Every so often the whole view is compared with that of one other member."""
    join_timeout_s: float = 2.0
    """If no contact answers for so long, the node goes on alone, and keeps on trying."""

    tombstone_s: float = 600.0
    """Dead members are remembered for so long, so that old news cannot bring them back."""
    health_max: int = 8
    """How far a node may doubt itself: with each step it gives others their time once more."""

    members_max: int = 5_000
    """Members of a cluster; news of more are refused."""
    properties_bytes_max: int = 16 * KIB
    """All properties of a member together."""
    packet_bytes_max: int = 1_200
    """News in one datagram, which then needs not be cut on its way."""
    stream_bytes_max: int = 1 * MIB
    """What a packet over a stream carries; the rest of a large view goes another time."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if not math.isfinite(value) or value <= 0:
                raise ConfigError(f"membership {field}={value!r} must be a number above 0")
        for shorter, longer in (
            ("indirect_after_s", "probe_timeout_s"),
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
                f"membership packet_bytes_max must be {_RECORD_BYTES_MAX} or more, "
                "or not every record would fit"
            )
