"""What `postroad dev` leaves in the data directory of its node, for commands that come while no
node runs: who starts it again, and what keeps it from doing so."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from postroad.core.errors import ConfigError
from postroad.net.owned_files import make_private_directory, read_file

from .publishing import NewFile, publish

_NAME = "dev.json"
_MODE = 0o600
_PROGRAM = b"postroad"


class Watcher(msgspec.Struct, frozen=True, kw_only=True):
    """A process that starts a node again whenever its program is saved."""

    pid: int
    problem: str | None = None
    """Why there is no node until the next save."""


def leave_watcher(data: Path, watcher: Watcher) -> None:
    """Tell the others on this machine, if nobody else watches there, and if it is possible."""
    first = find_watcher(data)
    if first is not None and first.pid != watcher.pid:
        return
    with suppress(OSError):
        make_private_directory(data)
        publish([NewFile(data / _NAME, msgspec.json.encode(watcher), _MODE)], force=True)


def find_watcher(data: Path) -> Watcher | None:
    """Who watches over the node of a directory, if it is alive."""
    try:
        watcher = msgspec.json.decode(read_file(data / _NAME), type=Watcher)
    except (OSError, ConfigError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return watcher if _is_alive(watcher.pid) else None


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
        # A number is soon that of another process, above all in containers.
        return _PROGRAM in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        # Somebody else's, or a system that tells nothing of processes.
        return True
