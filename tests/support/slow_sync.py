"""Compiles a library that makes disks slow: `python -m tests.support.slow_sync PATH`.

A program that is started with the environment of `slowed` waits that long at each sync, and so do
those that it starts. Servers that were told not to sync are as quick as ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = which("cc")
"""None on a machine that cannot compile."""


def build(path: Path) -> None:
    """Compile the library, unless it is newer than its source."""
    if path.exists() and path.stat().st_mtime > SOURCE.stat().st_mtime:
        return
    assert COMPILER is not None, "needs cc"
    new = path.with_name(f"{path.name}.{os.getpid()}")
    options = ("-shared", "-fPIC", "-O2", "-Wall", "-Werror")
    subprocess.run([COMPILER, *options, str(SOURCE), "-o", str(new), "-ldl"], check=True)
    # Whoever uses the old one keeps it.
    new.replace(path)


def slowed(library: Path, delay_ms: float) -> dict[str, str]:
    """What to add to the environment of a program."""
    return {"LD_PRELOAD": str(library), "POSTROAD_SYNC_DELAY_MS": f"{delay_ms:g}"}


if __name__ == "__main__":
    build(Path(sys.argv[1]))
