"""Configuration of connections, and their steps before they are open: version, hello, proof.

`ConnectionSetup` checks and builds; the state of the connection changes in `connection`.
See docs/wire-protocol.md: 1 (handshake), 3.2 (hello), 3.6 (tunnels), 3.7 (cluster secret).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from postroad.core.cluster_secret import ClusterSecret
from postroad.core.errors import ConfigError, HandshakeRejectedError
from postroad.core.limits import Limits
from postroad.wire.codecs import Codec, DocumentedCodec, Version3Codec, ZeebeCodec
from postroad.wire.compression import CompressionAlgorithm, negotiate_compression
from postroad.wire.frame_reader import BufferCache
from postroad.wire.frames import ConnectionRole, HelloFrame, ProofFrame
from postroad.wire.handshake import AUTHENTICATION_VERSION, ZEEBE, Handshake, ProtocolProfile
from postroad.wire.heartbeats import (
    NO_HEARTBEATS,
    Heartbeats,
    NextId,
    WallClock,
    ZeebeClientHeartbeats,
    ZeebeServerHeartbeats,
)
from postroad.wire.hello import check_duplicate_name, check_peer_hello, encode_hello


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


_PURPOSES = {
    ConnectionRole.CLIENT: b"hello of a client",
    ConnectionRole.SERVER: b"hello of a server",
}


class ChallengeResponse:
    """Mutual authentication by the cluster secret, one side of one connection.

    Each hello carries a nonce, the challenge. The client proves first and the server only after it
    has verified that proof, so that a server reveals nothing to an unauthenticated client. A proof
    covers both hellos as they were sent and the role of the prover: a recorded proof fits no other
    nonce, and a proof cannot be reflected to its sender. See docs/wire-protocol.md, 3.7.
    """

    __slots__ = ("_role", "_secret", "bodies", "hello", "peer")

    def __init__(
        self, secret: ClusterSecret, role: ConnectionRole, hello: HelloFrame, nonce: bytes
    ) -> None:
        self._secret = secret
        self._role = role
        # The hello this side sends, with its nonce.
        self.hello = msgspec.structs.replace(hello, nonce=nonce)
        # The hello of the peer, unverified until `verify_proof`; None until it arrives.
        self.peer: HelloFrame | None = None
        # Encoded hellos by the role of their sender, which the proofs cover.
        self.bodies = {role: encode_hello(self.hello)}

    def build_proof(self) -> ProofFrame:
        """Return the proof of this side; the hello of the peer must have been received."""
        return ProofFrame(self._secret.prove(_PURPOSES[self._role], *self._transcript()))

    def verify_proof(self, frame: ProofFrame) -> HelloFrame:
        """Return the hello of the peer; raise HandshakeRejectedError if its secret differs."""
        assert self.peer is not None
        purpose = _PURPOSES[self._role.opposite]
        if not self._secret.verify(frame.proof, purpose, *self._transcript()):
            raise HandshakeRejectedError(
                f"node {self.peer.name!r} at {self.peer.address} has another cluster secret; "
                "set the same node.secret on all nodes of a cluster"
            )
        return self.peer

    def _transcript(self) -> tuple[bytes, bytes]:
        return self.bodies[ConnectionRole.CLIENT], self.bodies[ConnectionRole.SERVER]


class ConnectionSetup:
    """Handshake, hello and authentication of one connection."""

    __slots__ = ("_certificate_names", "_config", "authentication", "handshake", "hello")

    def __init__(
        self, role: ConnectionRole, config: WireConfig, certificate_names: Collection[str] | None
    ) -> None:
        self._config = config
        self._certificate_names = certificate_names
        self.handshake = Handshake(role, config.profile, config.preamble)
        # The hello this side sends.
        self.hello = config.hello
        # None in a cluster without a secret.
        self.authentication: ChallengeResponse | None = None
        if config.secret is not None and config.new_nonce is not None:
            self.authentication = ChallengeResponse(
                config.secret, role, config.hello, config.new_nonce()
            )
            self.hello = self.authentication.hello

    def negotiate(self, data: bytes, outgoing: list[bytes]) -> bytes | None:
        """Continue the handshake and queue a server's response; return the bytes after it.

        None while it is incomplete.
        """
        rest = self.handshake.feed(data)
        if rest is None:
            return None
        # A server responds before it rejects, so that the client can log both versions (3.7).
        if self.handshake.role is ConnectionRole.SERVER:
            outgoing.append(self.handshake.response_bytes())
        offered = self.handshake.offered
        if self.authentication is not None and offered < AUTHENTICATION_VERSION:
            raise HandshakeRejectedError(
                f"the peer offers protocol version {offered}, which cannot prove the cluster "
                f"secret; version {AUTHENTICATION_VERSION} is needed"
            )
        if self._config.hello.is_tunnel and self.handshake.version < 3:
            raise HandshakeRejectedError(
                f"the peer answered protocol version {offered}; tunnels need version 3"
            )
        return rest

    def receive_hello(self, hello: HelloFrame, body: bytes) -> ChallengeResponse | None:
        """Check the hello of the peer; return what verifies the proof that must follow, if any."""
        check_peer_hello(self.hello, hello, self._certificate_names)
        if self.authentication is not None:
            self.authentication.peer = hello
            self.authentication.bodies[self.handshake.role.opposite] = body
        return self.authentication

    def accept_hello(self, hello: HelloFrame, codec: Version3Codec) -> bool:
        """Apply the verified hello of the peer to the codec; return whether it is a tunnel's."""
        config, is_server = self._config, self.handshake.role is ConnectionRole.SERVER
        # With TLS, a peer without a certificate can claim any name: its name proves no conflict.
        if self._certificate_names is not None or not config.is_secure:
            check_duplicate_name(config.hello, hello)
        is_tunnel = (hello if is_server else config.hello).is_tunnel
        codec.frame_bytes_max = config.limits.frame_bytes_max
        # Tunnels are never compressed: most of their messages are forwarded, not read (3.6).
        if config.algorithms and not is_tunnel:
            name = negotiate_compression(tuple(config.algorithms), hello.compressions)
            codec.compression = config.algorithms[name] if name else None
        return is_tunnel
