"""Node names, cluster names and network addresses (`host:port`, `[v6]:port`)."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from postroad.core.errors import ConfigError

NODE_NAME_BYTES_MAX = 255

# Separators of addresses, patterns and paths that contain names.
_FORBIDDEN = frozenset("@:*/\\")
_RESERVED = frozenset({"local"})


def validate_node_name(name: str) -> str:
    """Return the name if it is a valid node name, else raise ConfigError."""
    if not name:
        raise ConfigError("a node name must not be empty")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > NODE_NAME_BYTES_MAX:
        raise ConfigError(f"node name of {size} bytes is longer than {NODE_NAME_BYTES_MAX}")
    if name in _RESERVED:
        raise ConfigError(f"node name {name!r} is reserved")
    for character in name:
        if character in _FORBIDDEN or character.isspace() or not character.isprintable():
            raise ConfigError(
                f"node name {name!r} contains {character!r}; "
                "use letters, digits, '.', '-' and '_' only"
            )
    return name


def validate_cluster_name(name: str) -> str:
    """Return the name if it is a valid cluster name, which may be empty, else raise ConfigError."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"cluster name {name!r} cannot be encoded as UTF-8") from None
    if size > NODE_NAME_BYTES_MAX:
        raise ConfigError(f"cluster name of {size} bytes is longer than {NODE_NAME_BYTES_MAX}")
    return name


class Address(NamedTuple):
    """A host name or IP address, and a port. Addresses are compared by their spelling."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `host:port` or `[ipv6]:port`; raise ConfigError for anything else."""
        host, colon, digits = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ConfigError(f"address {text!r}: write an IPv6 host in brackets, [::1]:26502")
        if not (colon and host and digits.isascii() and digits.isdigit()):
            raise ConfigError(f"address {text!r} is not of the form host:port")
        if len(digits) > 5 or int(digits) > 65535:
            raise ConfigError(f"address {text!r}: the port must be 0 to 65535")
        return cls(host, int(digits))

    @property
    def is_loopback(self) -> bool:
        """Whether the address is reachable from this machine only."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def to_address(value: Address | str) -> Address:
    """Return an address given as a string or as an `Address`."""
    return Address.parse(value) if isinstance(value, str) else value


def is_loopback(host: str) -> bool:
    """Return whether a host is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
