"""The steps of a connection before it is open: version, hello, and proof of the cluster secret.

`ConnectionSetup` checks and builds; the state of the connection changes in `connection`.
See docs/wire-protocol.md: 1 (handshake), 3.2 (hello), 3.6 (tunnels), 3.7 (cluster secret).
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from postroad.core.cluster_secret import ClusterSecret
from postroad.core.errors import HandshakeRejectedError
from postroad.core.limits import HELLO_BYTES_MAX
from postroad.wire.codecs import Codec, Version3Codec
from postroad.wire.compression import negotiate_compression
from postroad.wire.config import WireConfig, make_codec
from postroad.wire.frames import ConnectionRole, HelloFrame, ProofFrame
from postroad.wire.handshake import AUTHENTICATION_VERSION, Handshake
from postroad.wire.heartbeats import PingHeartbeats
from postroad.wire.hello import (
    check_duplicate_name,
    check_peer_hello,
    check_tunnel_hello,
    encode_hello,
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

    __slots__ = ("_bodies", "_role", "_secret", "hello", "peer")

    def __init__(
        self, secret: ClusterSecret, role: ConnectionRole, hello: HelloFrame, nonce: bytes
    ) -> None:
        self._secret = secret
        self._role = role
        # The hello this side sends, with its nonce.
        self.hello = msgspec.structs.replace(hello, nonce=nonce)
        # The hello of the peer, unverified until `verify_proof`; None until it arrives.
        self.peer: HelloFrame | None = None
        # Encoded hellos by the role of their sender.
        self._bodies = {role: encode_hello(self.hello)}

    def receive_hello(self, peer: HelloFrame, body: bytes) -> None:
        """Store the hello of the peer and its bytes, which the proofs cover."""
        self.peer = peer
        self._bodies[self._role.opposite] = body

    def build_proof(self) -> ProofFrame:
        """Return the proof of this side; the hello of the peer must have been received."""
        return ProofFrame(self._secret.prove(_PURPOSES[self._role], *self._transcript()))

    def verify_proof(self, frame: ProofFrame) -> HelloFrame:
        """Return the hello of the peer if its proof is valid.

        Raises:
            HandshakeRejectedError: the peer used another secret.
        """
        assert self.peer is not None
        purpose = _PURPOSES[self._role.opposite]
        if not self._secret.verify(frame.proof, purpose, *self._transcript()):
            raise HandshakeRejectedError(
                f"node {self.peer.name!r} at {self.peer.address} has another cluster secret; "
                "set the same node.secret on all nodes of a cluster"
            )
        return self.peer

    def _transcript(self) -> tuple[bytes, bytes]:
        return self._bodies[ConnectionRole.CLIENT], self._bodies[ConnectionRole.SERVER]


class ConnectionSetup:
    """Handshake, hello and authentication of one connection."""

    __slots__ = ("_authentication", "_certificate_names", "_config", "_handshake", "_role")

    def __init__(
        self,
        role: ConnectionRole,
        config: WireConfig,
        certificate_names: Collection[str] | None,
    ) -> None:
        self._role = role
        self._config = config
        self._certificate_names = certificate_names
        self._handshake = Handshake(role, config.profile, config.preamble)
        # None in a cluster without a secret.
        self._authentication: ChallengeResponse | None = None
        if config.secret is not None and config.new_nonce is not None:
            self._authentication = ChallengeResponse(
                config.secret, role, config.hello, config.new_nonce()
            )

    @property
    def version(self) -> int:
        """The negotiated version, 0 until then."""
        return self._handshake.version

    @property
    def hello(self) -> HelloFrame:
        """The hello this side sends."""
        authentication = self._authentication
        return self._config.hello if authentication is None else authentication.hello

    def initial_bytes(self) -> bytes:
        """Return the bytes this side sends before it has received any."""
        return self._handshake.initial_bytes()

    def negotiate(self, data: bytes, outgoing: list[bytes]) -> bytes | None:
        """Continue the version handshake and queue a server's response.

        Returns:
            The bytes after the handshake, or None while it is incomplete.
        """
        rest = self._handshake.feed(data)
        if rest is None:
            return None
        # A server responds before it rejects, so that the client can log both versions (3.7).
        if self._role is ConnectionRole.SERVER:
            outgoing.append(self._handshake.response_bytes())
        offered = self._handshake.offered
        if self._authentication is not None and offered < AUTHENTICATION_VERSION:
            raise HandshakeRejectedError(
                f"the peer offers protocol version {offered}, which cannot prove the cluster "
                f"secret; version {AUTHENTICATION_VERSION} is needed"
            )
        return rest

    def create_codec(self) -> Codec:
        """Return the codec of the negotiated version."""
        if self.version < 3 and self._config.hello.is_tunnel:
            raise HandshakeRejectedError(
                f"the peer answered protocol version {self.version}; tunnels need version 3"
            )
        codec = make_codec(self._config, self.version)
        if isinstance(codec, Version3Codec):
            # An unidentified peer may not send large frames: none is legal before the hello (3.5).
            codec.accept_frames(min(HELLO_BYTES_MAX, codec.frame_bytes_max))
        return codec

    def receive_hello(self, hello: HelloFrame, body: bytes) -> bool:
        """Check the hello of the peer; return whether it must be followed by a proof."""
        check_peer_hello(self.hello, hello, self._certificate_names)
        if self._authentication is None:
            return False
        self._authentication.receive_hello(hello, body)
        return True

    def build_proof(self) -> ProofFrame:
        """Return the proof of this side."""
        assert self._authentication is not None
        return self._authentication.build_proof()

    def verify_proof(self, frame: ProofFrame) -> HelloFrame:
        """Return the hello of the peer if its proof is valid, else raise."""
        assert self._authentication is not None
        return self._authentication.verify_proof(frame)

    def identify_peer(self, hello: HelloFrame) -> bool:
        """Check the name in the verified hello; return whether the connection is a tunnel."""
        config = self._config
        # With TLS, a peer without a certificate can claim any name: its name proves no conflict.
        if self._certificate_names is not None or not config.is_secure:
            check_duplicate_name(config.hello, hello)
        return (config.hello if self._role is ConnectionRole.CLIENT else hello).is_tunnel

    def apply_hello(self, hello: HelloFrame, codec: Codec, *, is_tunnel: bool) -> None:
        """Set the frame limit and the compression of the codec, now that the peer is verified."""
        if is_tunnel and self._role is ConnectionRole.CLIENT:
            check_tunnel_hello(hello)
        assert isinstance(codec, Version3Codec)
        codec.accept_frames(self._config.limits.frame_bytes_max)
        # Tunnels are never compressed: most of their messages are forwarded, not read (3.6).
        if not is_tunnel:
            algorithms = self._config.algorithms
            name = negotiate_compression(tuple(algorithms), hello.compressions)
            codec.compression = algorithms[name] if name else None

    def create_heartbeats(self, hello: HelloFrame) -> PingHeartbeats:
        """Return the heartbeats of version 3, with the timeout that the peer announced."""
        limits = self._config.limits
        return PingHeartbeats(
            limits.heartbeat_interval_s,
            limits.heartbeat_timeout_s,
            hello.heartbeat_timeout_ms / 1000,
        )
