"""Whom a node of version 3 talks to: what it asks of the hello of its peer."""

from __future__ import annotations

from collections.abc import Collection

from postroad.core.errors import DuplicateNameHandshakeError, HandshakeRejectedError

from .frames import HelloFrame


def check_peer_hello(
    ours: HelloFrame, theirs: HelloFrame, certificate_names: Collection[str] | None
) -> None:
    """Refuse a peer of another cluster or under a wrong name; or if one has a secret to prove."""
    if theirs.cluster != ours.cluster:
        raise HandshakeRejectedError(f"the peer is of cluster {theirs.cluster!r}")
    if certificate_names is not None and theirs.name not in certificate_names:
        names = ", ".join(sorted(certificate_names)) or "nobody"
        raise HandshakeRejectedError(f"node {theirs.name!r} shows a certificate of {names}")
    if bool(theirs.nonce) is not bool(ours.nonce):
        (has, lacks) = (ours, theirs) if ours.nonce else (theirs, ours)
        raise HandshakeRejectedError(
            f"node {has.name!r} at {has.address} asks for the secret of the cluster, "
            f"and node {lacks.name!r} at {lacks.address} has none: give it node.secret"
        )


def check_name(ours: HelloFrame, theirs: HelloFrame) -> None:
    """Refuse another live node under this node's own name."""
    if theirs.name == ours.name and theirs.incarnation != ours.incarnation:
        raise DuplicateNameHandshakeError(
            f"another live node at {theirs.address} is named {ours.name!r}",
            host=theirs.address.host,
            port=theirs.address.port,
            incarnation=theirs.incarnation,
            is_member=theirs.is_member,
        )


def check_tunnel_hello(server: HelloFrame) -> None:
    """Refuse a server that cannot have a tunnel: who plays no part among cells knows of none."""
    if not server.role:
        raise HandshakeRejectedError(
            f"node {server.name!r} takes no tunnels: it has no role among cells"
        )
