"""Configuration shared by all connections of a messaging service, and factories that use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from postroad.core.cluster_secret import ClusterSecret
from postroad.core.errors import ConfigError
from postroad.core.limits import Limits
from postroad.wire.codecs import Codec, DocumentedCodec, Version3Codec, ZeebeCodec
from postroad.wire.compression import CompressionAlgorithm
from postroad.wire.frame_reader import BufferCache
from postroad.wire.frames import ConnectionRole, HelloFrame
from postroad.wire.handshake import ZEEBE, ProtocolProfile
from postroad.wire.heartbeats import (
    NO_HEARTBEATS,
    Heartbeats,
    NextId,
    WallClock,
    ZeebeClientHeartbeats,
    ZeebeServerHeartbeats,
)


class WireConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Created once by the messaging service, used by all its connections."""

    profile: ProtocolProfile
    preamble: bytes
    hello: HelloFrame
    """The hello of this node; versions 1 and 2 use its address only."""
    advertised_ip: str
    """The advertised host as an IP address, for version 1."""
    limits: Limits
    wall_clock: WallClock
    buffer_cache: BufferCache
    algorithms: Mapping[str, CompressionAlgorithm] = {}
    """Compression algorithms this node offers, by name."""
    is_secure: bool = False
    """Whether connections use TLS; the name of a peer without a certificate is then ignored."""
    heartbeat_payload: bool = True
    """Whether heartbeats of profile `zeebe` carry timestamps, if the peer supports them."""
    secret: ClusterSecret | None = None
    """The cluster secret, None in a cluster without one."""
    new_nonce: Callable[[], bytes] | None = None
    """Returns a random nonce for a connection; needed with a secret."""

    def __post_init__(self) -> None:
        if (self.secret is None) is not (self.new_nonce is None):
            raise ConfigError("secret and new_nonce must be set together, or neither")


def make_codec(config: WireConfig, version: int) -> Codec:
    """Return the codec of the profile and version."""
    frame_bytes_max = config.limits.frame_bytes_max
    if version >= 3:
        return Version3Codec(frame_bytes_max)
    codec = ZeebeCodec if config.profile.name == ZEEBE.name else DocumentedCodec
    return codec(version, config.hello.address, config.advertised_ip, frame_bytes_max)


def make_heartbeats(config: WireConfig, role: ConnectionRole, next_id: NextId) -> Heartbeats:
    """Return the heartbeats of the profile; version 3 replaces them after the hello."""
    if config.profile.name != ZEEBE.name:
        return NO_HEARTBEATS
    if role is ConnectionRole.SERVER:
        return ZeebeServerHeartbeats(
            sends_payload=config.heartbeat_payload, wall_clock=config.wall_clock
        )
    return ZeebeClientHeartbeats(
        config.limits.heartbeat_interval_s,
        config.limits.heartbeat_timeout_s,
        sends_payload=config.heartbeat_payload,
        next_id=next_id,
        wall_clock=config.wall_clock,
    )
