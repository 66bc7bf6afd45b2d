"""Who a service is on the wire: its protocol, its address, its introduction."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import time

import msgspec

from postroad.core import Address, Limits
from postroad.core.errors import ConfigError
from postroad.core.secret import ClusterSecret
from postroad.wire import (
    PROFILES,
    BufferCache,
    HelloFrame,
    ProtocolProfile,
    WireConfig,
    encode_preamble,
)
from postroad.wire.compression import load_algorithm
from postroad.wire.hello import NONCE_BYTES, PART_BYTES_MAX

# Of the nanoseconds a process began at, about 65 microseconds.
_CHANCE_BITS = 16
# The first version in which peers tell their names.
_NAMING_VERSION = 3
_WILDCARDS = ("", "0.0.0.0", "::")


class ProtocolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a service speaks; the default suits Postroad nodes, which agree on version 3."""

    profile: str = "documented"
    """`documented`, or `zeebe` to talk to nodes of that system."""
    version_max: int | None = None
    """Newest version to speak; the profile's newest when None."""
    version_min: int | None = None
    """Oldest version to speak; when None, 3 with TLS where the others allow it, else 1."""
    compressions: tuple[str, ...] = ()
    """Compressions to offer to peers of version 3: `zstd`, `zlib`. None by default."""
    heartbeat_payload: bool = True
    """Whether heartbeats of profile `zeebe` carry timestamps, if the peer agrees."""


class ServiceIdentity:
    """The parts of a service's wire configuration that are known before it listens.

    Made with the service, so that an unknown profile or a missing extra fails there and not in a
    connection.
    """

    def __init__(
        self,
        cluster: str,
        name: str,
        protocol: ProtocolConfig,
        limits: Limits,
        secret: ClusterSecret | None = None,
        *,
        is_secure: bool,
    ) -> None:
        if protocol.profile not in PROFILES:
            profiles = ", ".join(PROFILES)
            raise ConfigError(f"unknown profile {protocol.profile!r}; there are: {profiles}")
        self._cluster = cluster
        self._name = name
        self._limits = limits
        self._is_secure = is_secure
        self._secret = secret
        self._profile = _choose_versions(protocol, is_secure=is_secure)
        if secret is not None:
            self._profile = self._profile.proving()
        self._algorithms = {name: load_algorithm(name) for name in protocol.compressions}
        self._heartbeat_payload = protocol.heartbeat_payload

    async def wire_config_for(self, address: Address) -> WireConfig:
        """The configuration of a service that advertises the address."""
        limits = self._limits
        hello = HelloFrame(
            cluster=self._cluster,
            name=self._name,
            incarnation=_new_incarnation(),
            address=address,
            frame_bytes_max=limits.frame_bytes_max,
            requests_pending_max=limits.requests_pending_max,
            heartbeat_timeout_ms=round(limits.heartbeat_timeout_s * 1000),
            compressions=tuple(self._algorithms),
        )
        return WireConfig(
            profile=self._profile,
            preamble=encode_preamble(self._cluster),
            hello=hello,
            advertised_ip=await _resolve(address.host) if 1 in self._profile.versions else "",
            limits=limits,
            wall_clock=_epoch_ms,
            buffer_cache=BufferCache(),
            algorithms=self._algorithms,
            is_secure=self._is_secure,
            heartbeat_payload=self._heartbeat_payload,
            secret=self._secret,
            new_nonce=None if self._secret is None else new_nonce,
        )


def _choose_versions(protocol: ProtocolConfig, *, is_secure: bool) -> ProtocolProfile:
    profile = PROFILES[protocol.profile].up_to(protocol.version_max)
    oldest = protocol.version_min
    if oldest is None and is_secure and _NAMING_VERSION in profile.versions:
        # Older versions do not tell a name that could be compared with the certificate.
        oldest = _NAMING_VERSION
    return profile.since(oldest)


def choose_advertised_address(configured: Address | None, bound: Address) -> Address:
    """The address to tell others: the configured one, else the bound one if it means anything."""
    if configured is not None:
        return Address(configured.host, configured.port or bound.port)
    if bound.host in _WILDCARDS:
        return Address(socket.gethostname(), bound.port)
    return bound


def validate_hello_text(field: str, text: str) -> str:
    """Return the text of a hello's field, if the frame can carry it."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{field} {text!r} cannot be encoded as UTF-8") from None
    if size > PART_BYTES_MAX:
        raise ConfigError(f"{field} of {size} bytes is longer than {PART_BYTES_MAX}")
    return text


async def _resolve(host: str) -> str:
    """The host as an IP address; version 1 cannot be spoken if there is none."""
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(
            host, None, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError):
        return ""
    return str(addresses[0][4][0])


def _new_incarnation() -> int:
    """Higher than that of a process that began earlier; chance tells apart those of one moment."""
    began_ns = time.time_ns()
    return began_ns >> _CHANCE_BITS << _CHANCE_BITS | random.getrandbits(_CHANCE_BITS)


def new_nonce() -> bytes:
    """Random bytes that were never used before."""
    return secrets.token_bytes(NONCE_BYTES)


def _epoch_ms() -> int:
    return time.time_ns() // 1_000_000
