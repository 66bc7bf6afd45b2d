"""The identity of a service on the wire: protocol versions, address, hello."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
import time

import msgspec

from postroad.core import Address, Limits
from postroad.core.cluster_secret import ClusterSecret
from postroad.core.errors import ConfigError
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

logger = logging.getLogger("postroad.net")

# The random low bits of an incarnation, about 65 microseconds of its nanoseconds.
_RANDOM_BITS = 16
# The first version in which peers send their names.
_NAMING_VERSION = 3
_WILDCARDS = ("", "0.0.0.0", "::")


class ProtocolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Profile and versions of a service; the default suits Postroad nodes, which use version 3."""

    profile: str = "documented"
    """`documented`, or `zeebe` to talk to nodes of that system."""
    version_max: int | None = None
    """Newest version to use; the newest of the profile when None."""
    version_min: int | None = None
    """Oldest version to use; when None, 3 with TLS if the other settings allow it, else 1."""
    compressions: tuple[str, ...] = ()
    """Compression algorithms to offer to peers of version 3: `zstd`, `zlib`; none by default."""
    heartbeat_payload: bool = True
    """Whether heartbeats of profile `zeebe` carry timestamps, if the peer agrees."""


class ServiceIdentity:
    """The parts of the wire configuration that are known before the service listens.

    Created with the service, so that an unknown profile or a missing extra fails there and not in
    a connection.
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
            raise ConfigError(f"unknown profile {protocol.profile!r}; choose one of: {profiles}")
        self._cluster = cluster
        self._name = name
        self._limits = limits
        self._is_secure = is_secure
        self._secret = secret
        profile, oldest = (
            PROFILES[protocol.profile].up_to(protocol.version_max),
            protocol.version_min,
        )
        if oldest is None and is_secure and _NAMING_VERSION in profile.versions:
            # Older versions send no name that could be compared with the certificate.
            oldest = _NAMING_VERSION
        self._profile = profile.since(oldest)
        if secret is not None:
            self._profile = self._profile.proving()
        self._algorithms = {name: load_algorithm(name) for name in protocol.compressions}
        self._heartbeat_payload = protocol.heartbeat_payload

    async def wire_config_for(self, address: Address) -> WireConfig:
        """Return the wire configuration of a service that advertises the address.

        Raises ConfigError if version 1 alone is configured, and the address has no IP address.
        """
        limits = self._limits
        profile, ip = self._profile, ""
        if 1 in profile.versions:
            ip = await _resolve(address.host)
            if not ip:
                profile = _without_version_1(profile, address.host)
        hello = HelloFrame(
            cluster=self._cluster,
            name=self._name,
            # Higher than that of an earlier process; random bits make it unique.
            incarnation=time.time_ns() >> _RANDOM_BITS << _RANDOM_BITS
            | random.getrandbits(_RANDOM_BITS),
            address=address,
            frame_bytes_max=limits.frame_bytes_max,
            requests_pending_max=limits.requests_pending_max,
            heartbeat_timeout_ms=round(limits.heartbeat_timeout_s * 1000),
            compressions=tuple(self._algorithms),
        )
        return WireConfig(
            profile=profile,
            preamble=encode_preamble(self._cluster),
            hello=hello,
            advertised_ip=ip,
            limits=limits,
            wall_clock=lambda: time.time_ns() // 1_000_000,
            buffer_cache=BufferCache(),
            algorithms=self._algorithms,
            is_secure=self._is_secure,
            heartbeat_payload=self._heartbeat_payload,
            secret=self._secret,
            new_nonce=None if self._secret is None else new_nonce,
        )


def _without_version_1(profile: ProtocolProfile, host: str) -> ProtocolProfile:
    """Version 1 sends this node's IP address, so it cannot be spoken without one."""
    remedy = "advertise an IP address or a name that resolves"
    if profile.versions == (1,):
        raise ConfigError(
            f"cannot speak protocol version 1: host {host!r} has no IP address; {remedy}"
        )
    logger.warning("protocol version 1 is off: host %r has no IP address; %s", host, remedy)
    return profile.since(2)


def choose_advertised_address(configured: Address | None, bound: Address) -> Address:
    """Return the configured address, or the bound one; a wildcard becomes the host name."""
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
    """Return the IP address of a host, or "" if it is unknown: version 1 needs one."""
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(
            host, None, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError):
        return ""
    return str(addresses[0][4][0])


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)
