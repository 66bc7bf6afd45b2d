"""Names of the memory network and what they resolve to, now: a test can change them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from .hosts import LOOPBACK, WILDCARD

_KINDS = ((socket.SOCK_STREAM, 6), (socket.SOCK_DGRAM, 17))


class NameService:
    """The name service."""

    def __init__(self) -> None:
        self._addresses: dict[str, tuple[str, ...]] = {}

    def set(self, name: str, addresses: Sequence[str]) -> None:
        """Have the name mean these addresses, the first one first."""
        self._addresses[name.lower()] = tuple(addresses)

    def remove(self, name: str) -> None:
        """Have nobody know the name."""
        self._addresses.pop(name.lower(), None)

    def resolve(self, name: str) -> tuple[str, ...]:
        """The addresses of a host; raises what the system raises for an unknown one."""
        if is_address(name):
            return (name,)
        if name.lower() in ("localhost", "::1"):
            return (LOOPBACK,)
        known = self._addresses.get(name.lower())
        if not known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known

    def name_of(self, address: str) -> str:
        """The first name that means the address, else the address."""
        for name, addresses in self._addresses.items():
            if address in addresses:
                return name
        return "localhost" if address == LOOPBACK else address

    def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[tuple[Any, ...]]:
        """What `socket.getaddrinfo` would say."""
        if family not in (0, socket.AF_INET):
            raise socket.gaierror(socket.EAI_FAMILY, "ai_family not supported")
        if isinstance(host, bytes):
            host = host.decode("idna")
        if not host:
            found: tuple[str, ...] = (WILDCARD if flags & socket.AI_PASSIVE else LOOPBACK,)
        else:
            found = self.resolve(host)
        number = _port_number(port)
        return [
            (socket.AF_INET, kind, protocol, "", (address, number))
            for address in found
            for kind, protocol in _KINDS
            if type in (0, kind) and proto in (0, protocol)
        ]


def is_address(text: str) -> bool:
    """Whether the text is an IPv4 address and not a name."""
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True


def _port_number(port: bytes | str | int | None) -> int:
    try:
        return int(port or 0)
    except ValueError:
        raise socket.gaierror(
            socket.EAI_SERVICE, "Servname not supported for ai_socktype"
        ) from None
