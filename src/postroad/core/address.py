"""Network addresses as users write them: `host:port`, `[v6]:port`."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from .errors import ConfigError


class Address(NamedTuple):
    """A host name or IP address and a port. Two spellings of one host are two addresses."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port` or `[ipv6]:port`; raises ConfigError on anything else."""
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
        """Whether only programs of this machine reach it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def to_address(value: Address | str) -> Address:
    """Accept an address in either spelling."""
    return Address.parse(value) if isinstance(value, str) else value


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
