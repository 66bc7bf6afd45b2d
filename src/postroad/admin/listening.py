"""Takes the address of the admin API, before anything is served there."""

from __future__ import annotations

import errno
import socket

from postroad.core import Address
from postroad.core.errors import ConfigError

_NEXT = {
    errno.EADDRINUSE: "stop whoever has the port, or choose another: port 0 is any that is free",
    errno.EADDRNOTAVAIL: "give an address of this machine, or 0.0.0.0 for all of them",
    errno.EACCES: "ports below 1024 need more rights; choose a larger one",
}

# Who comes while others are being taken in waits here.
_BACKLOG = 512


class AddressTaken(ConfigError):
    """Another process listens there."""


def take_address(bind: Address) -> socket.socket:
    """A socket that listens at an address: from then on nobody else can have it.

    One that is only bound could be bound by others too, and who listens first would have it.

    Raises:
        AddressTaken: somebody has it.
        ConfigError: it is none of this machine, or needs more rights.
    """
    try:
        found = socket.getaddrinfo(
            bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"admin.bind {str(bind)!r} cannot be used: {getattr(error, 'strerror', error)}; "
            "give a name or an address of this machine"
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        refusal = AddressTaken if error.errno == errno.EADDRINUSE else ConfigError
        raise refusal(
            f"admin.bind {str(bind)!r} cannot be used: {error.strerror}; "
            f"{_NEXT.get(error.errno or 0, 'choose another')}"
        ) from None
    return listener
