"""Configurations of nodes that neither wait for others at their start nor linger at their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from postroad.node import NodeConfig

AT_ONCE = {"start_wait_s": 0.0, "stop_delay_s": 0.0, "announce_delay_s": 0.0}
"""Of services: a start may otherwise wait half a second for nodes that are not there."""
AT_ONCE_FLAGS = ("--set=services.tuning.start_wait_s=0", "--set=services.tuning.stop_delay_s=0")


def config_of(directory: Path, name: str = "alpha", **more: Any) -> NodeConfig:
    """A node whose data is in a directory; `more` are other sections, or more of `node`."""
    node = {"name": name, "data": str(directory), **more.pop("node", {})}
    services = {"tuning": AT_ONCE, **more.pop("services", {})}
    return msgspec.convert({"node": node, "services": services, **more}, NodeConfig)
