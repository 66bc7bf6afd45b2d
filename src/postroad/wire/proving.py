"""How two nodes of version 3 prove to each other that they know the secret of their cluster.

Each hello carries a nonce. Once both have been said, the client proves first and the server only
then, so that a stranger is shown nothing. A proof is made of both hellos, as they were sent, and of
the side that gives it: no recording answers another nonce, and none can be sent back.
"""

from __future__ import annotations

import msgspec

from postroad.core.errors import HandshakeRejectedError
from postroad.core.secret import ClusterSecret
from postroad.wire.frames import ConnectionRole, HelloFrame, Proof
from postroad.wire.hello import encode_hello

_PURPOSES = {
    ConnectionRole.CLIENT: b"hello of a client",
    ConnectionRole.SERVER: b"hello of a server",
}


class Proving:
    """One side of one connection in a cluster with a secret."""

    __slots__ = ("_bodies", "_role", "_secret", "hello", "peer")

    def __init__(
        self, secret: ClusterSecret, role: ConnectionRole, hello: HelloFrame, nonce: bytes
    ) -> None:
        self._secret = secret
        self._role = role
        # What this side says; and who the peer says it is, once it did.
        self.hello = msgspec.structs.replace(hello, nonce=nonce)
        self.peer: HelloFrame | None = None
        # Both hellos as they are on the wire, by who said them.
        self._bodies = {role: encode_hello(self.hello)}

    def meet(self, peer: HelloFrame, body: bytes) -> None:
        """The peer has said hello, in these bytes."""
        self.peer = peer
        self._bodies[self._role.opposite] = body

    def prove(self) -> Proof:
        """What this side shows; both hellos are known."""
        return Proof(self._secret.prove(_PURPOSES[self._role], *self._transcript()))

    def check(self, proof: Proof) -> HelloFrame:
        """Who the peer is, if its proof holds."""
        assert self.peer is not None
        purpose = _PURPOSES[self._role.opposite]
        if not self._secret.accepts(proof.proof, purpose, *self._transcript()):
            raise HandshakeRejectedError(
                f"node {self.peer.name!r} at {self.peer.address} knows another secret: "
                "node.secret must be the same in all nodes of a cluster"
            )
        return self.peer

    def _transcript(self) -> tuple[bytes, bytes]:
        return self._bodies[ConnectionRole.CLIENT], self._bodies[ConnectionRole.SERVER]
