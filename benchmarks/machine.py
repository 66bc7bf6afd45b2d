"""The machine under test: its description, its processors, its event loop."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata, util
from pathlib import Path


def fastest_loop() -> str:
    """Name of the event loop every contender runs on unless a case says otherwise."""
    return "uvloop" if util.find_spec("uvloop") else "asyncio"


def usable_cores() -> list[int]:
    """Numbers of the processors this process may run on."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def stay_on(core: int) -> None:
    """Hold this process and its later children on one processor, where the system can."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {core})


def describe_machine(loop: str) -> str:
    """Processor, kernel, interpreter, loop, date and load, in one line."""
    version = f" {metadata.version(loop)}" if loop != "asyncio" else ""
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return "; ".join(
        (
            f"{_processor()}, {len(usable_cores())} cores",
            f"{platform.system()} {platform.release()}",
            f"{platform.python_implementation()} {platform.python_version()}",
            f"loop {loop}{version}",
            datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            f"load average {load}",
        )
    )


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()
