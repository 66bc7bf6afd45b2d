"""What a node says of itself before it offers anything."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from typing import Any

from postroad._version import __version__

from .describing import sendable_object
from .schema import ClientInfo, NodeInfo

CLIENT_TYPE = "postroad"
"""By which nodes of this package know each other."""


def own_info(instance_id: str, metadata: Mapping[str, Any]) -> NodeInfo:
    """The description of a node on this machine, in a life with that id."""
    return NodeInfo(
        instance_id=instance_id,
        ip_list=tuple(_own_addresses()),
        hostname=socket.gethostname(),
        client=ClientInfo(
            type=CLIENT_TYPE,
            version=__version__,
            lang_version=platform.python_version(),
        ),
        metadata=sendable_object(metadata),
    )


def _own_addresses() -> list[str]:
    """The addresses of this machine that others may know it by."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return []
    return sorted({str(it[4][0]) for it in found if not str(it[4][0]).startswith("127.")})
