"""Where the driver and the coordinator of a job listen, so that executors reach them."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

import msgspec

from postroad.core import Address
from postroad.core.errors import ConfigError
from postroad.pipeline.spark.config import LOOPBACK, SparkConfig

# Of the network that documents use (RFC 5737): nobody has it, so packets to it would leave by the
# default route. None is sent.
_ELSEWHERE = Address("192.0.2.1", 9)
_PORT = 7077
_PROBE_S = 3.0
_URL = re.compile(r"(?:spark|sc|k8s)://(?P<places>.+)")


def master_addresses(master: str) -> list[Address]:
    """The addresses in the URL of a master; none if the configuration of Spark names it."""
    match = _URL.fullmatch(master)
    if match is None:
        return []
    addresses = []
    for place in match["places"].partition("/;")[0].split(","):
        parts = urlsplit(place if "://" in place else f"//{place}")
        addresses.append(Address(parts.hostname or "", parts.port or _PORT))
    return addresses


def place_driver(settings: SparkConfig) -> SparkConfig:
    """The settings with an address that executors reach, found out where none is set.

    Raises:
        ConfigError: the master has a name that cannot be resolved, or there is no way to it.
    """
    if not settings.bind and settings.is_loopback:
        return msgspec.structs.replace(settings, bind=f"{LOOPBACK}:0")
    bind = settings.bind_address
    if bind is not None and (settings.advertise or not _is_wildcard(bind.host)):
        # It may have been set without a port.
        return msgspec.structs.replace(settings, bind=str(bind))
    own = LOOPBACK if settings.is_loopback else _own_address(settings.master)
    bind = bind or Address(own, 0)
    return msgspec.structs.replace(settings, bind=str(bind), advertise=own)


def _own_address(master: str) -> str:
    """The address of this machine on its way to a master."""
    problem: Exception | None = None
    for address in master_addresses(master) or [_ELSEWHERE]:
        try:
            own = _address_towards(address)
        except (OSError, UnicodeError) as error:
            problem = error
            continue
        if not ipaddress.ip_address(own).is_loopback:
            return own
        # Many systems give their own name a loopback address, which means nothing to others.
        try:
            return _address_towards(_ELSEWHERE)
        except OSError:
            return own
    raise ConfigError(
        f"this machine has no way to the Spark master {master}: {problem}; check the address, "
        "or set bind (--bind HOST) to the address of this machine that executors reach"
    )


def _address_towards(address: Address) -> str:
    """The address that packets of this machine would have; none is sent."""
    where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, target = where[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def require_master(master: str) -> None:
    """Raise ConfigError, if no standalone master listens there: Spark would try for a minute."""
    if master.startswith("spark://") and not any(map(accepts, master_addresses(master))):
        raise ConfigError(f"no Spark master accepts connections at {master}")


def accepts(address: Address) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(address, _PROBE_S).close()
    except (OSError, UnicodeError):
        return False
    return True
