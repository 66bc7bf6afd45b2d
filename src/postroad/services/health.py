"""How the machine and the process of a node are, in the form that nodes of the original give."""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from .presence import cpu_percent

_STARTED_AT = time.monotonic()
_KIB = 1024


def health(ip_list: Sequence[str], client: dict[str, str]) -> dict[str, Any]:
    """What `$node.health` tells; `ip_list` and `client` are those of the node."""
    return {
        "cpu": _cpu(),
        "mem": _memory(),
        "os": {
            "uptime": time.clock_gettime(time.CLOCK_MONOTONIC),
            "type": platform.system(),
            "release": platform.release(),
            "hostname": socket.gethostname(),
            "arch": platform.machine(),
            "platform": sys.platform,
        },
        "process": {
            "pid": os.getpid(),
            "memory": {"rss": _resident_bytes()},
            "uptime": time.monotonic() - _STARTED_AT,
            # Not what comes after it: people give passwords there.
            "argv": [sys.executable, *sys.argv[:1]],
        },
        "client": client,
        "net": {"ip": [*ip_list]},
        "time": _time(),
    }


def _cpu() -> dict[str, Any]:
    try:
        loads = os.getloadavg()
    except OSError:
        loads = (0.0, 0.0, 0.0)
    told = dict(zip(("load1", "load5", "load15"), loads, strict=True))
    return {**told, "cores": os.cpu_count(), "utilization": cpu_percent()}


def _memory() -> dict[str, Any]:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        free, total = page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return {}
    return {"free": free, "total": total, "percent": 100 * free / total}


def _resident_bytes() -> int:
    """The most that the process ever held: what it holds now is not told everywhere."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * _KIB


def _time() -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "now": round(now.timestamp() * 1000),
        "iso": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "utc": format_datetime(now, usegmt=True),
    }
