"""The negotiation of preamble and version, per profile and role."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from fuzz.samples import PREAMBLE
from fuzz.streams import cut
from fuzz.target import Target, require
from postroad.core.errors import RemoteProtocolError
from postroad.wire import PROFILES, ConnectionRole, ProtocolProfile
from postroad.wire.handshake import Handshake

_BYTES_MAX = 64


class Agreement(NamedTuple):
    """How a negotiation ended: the version, what followed, or why there is none."""

    version: int
    rest: bytes | None
    failure: type[RemoteProtocolError] | None


def check_handshake(profile: ProtocolProfile, role: ConnectionRole, data: bytes) -> None:
    """Any bytes agree on a known version, or are refused, however they arrive."""
    whole = negotiate(profile, role, [data])
    pieces = negotiate(profile, role, cut(data, 1))
    require(pieces == whole, f"whole: {whole}, byte by byte: {pieces}")
    if whole.rest is not None:
        require(whole.version in profile.versions, f"version {whole.version} was agreed")
        require(data.endswith(whole.rest), "what follows the handshake was changed")
        check_answer(profile, role, whole.version)


def negotiate(profile: ProtocolProfile, role: ConnectionRole, pieces: Iterable[bytes]) -> Agreement:
    """Feed the pieces to a fresh handshake; those after its end follow it."""
    handshake = Handshake(role, profile, PREAMBLE)
    rest: bytes | None = None
    try:
        for piece in pieces:
            rest = handshake.feed(piece) if rest is None else rest + piece
    except RemoteProtocolError as error:
        return Agreement(0, None, type(error))
    return Agreement(handshake.version, rest, None)


def check_answer(profile: ProtocolProfile, role: ConnectionRole, version: int) -> None:
    """A server's answer is understood by a client of its profile."""
    if role is ConnectionRole.SERVER:
        server = Handshake(role, profile, PREAMBLE)
        server.version = version
        understood = negotiate(profile, ConnectionRole.CLIENT, [server.response_bytes()])
        require(understood == Agreement(version, b"", None), f"answer: {understood}")


def _seeds(profile: ProtocolProfile, role: ConnectionRole) -> list[bytes]:
    prefix = PREAMBLE if role is ConnectionRole.SERVER or profile.answers_preamble else b""
    versions = (*profile.versions, 0, 99, -1, -32_768)
    offers = [prefix + version.to_bytes(2, "big", signed=True) for version in versions]
    return [*offers, offers[0] + b"and more", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"]


TARGETS = [
    Target(
        f"handshake-{profile.name}-{role.value}",
        partial(check_handshake, profile, role),
        _seeds(profile, role),
        _BYTES_MAX,
    )
    for profile in PROFILES.values()
    for role in ConnectionRole
]
