"""Files and directories that nobody else can have put there.

What a node keeps, and what it takes its secrets and its identity from, must belong to whoever runs
it, or to root, as volumes of Kubernetes do. In a directory that others can write to, somebody else
could have left a token that is known to them, or a store to read along.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import stat
from pathlib import Path

from postroad.core.errors import ConfigError

logger = logging.getLogger(__name__)

_PRIVATE = 0o700
_ROOT = 0


def make_private_directory(path: Path) -> None:
    """Make a directory, with those above it that are missing, which nobody else can look into.

    One that is there already is checked, see `check_directory`.

    Raises:
        ConfigError: it belongs to somebody else.
        OSError: it cannot be made.
    """
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    if not missing:
        check_directory(path)
    for directory in reversed(missing):
        try:
            # Not `mkdir(parents=True)`, which leaves those above as open as the umask has them.
            directory.mkdir(_PRIVATE)
        except FileExistsError:
            check_directory(directory)


def check_directory(path: Path) -> None:
    """Refuse a directory in which somebody else could exchange files.

    Of one that belongs to this user everybody else loses the right to write, and is told so; one of
    root that all may write to, as Kubernetes makes them, is for root to mend.

    Raises:
        ConfigError: it belongs to somebody else, or others can write to it.
        OSError: there is none.
    """
    _check_owner(path, path.lstat())
    status = path.stat()
    _check_owner(path, status)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        raise ConfigError(_writable_error(path, f"group {status.st_gid}", "g-w"))
    is_open = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    if is_open and status.st_uid == os.geteuid():
        path.chmod(stat.S_IMODE(status.st_mode) & ~stat.S_IWOTH)
        logger.warning("everybody could write to %s; only its owner and group can now", path)


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse a file that somebody else has put there, or could have written to.

    Raises:
        ConfigError: so it is.
        OSError: there is none.
    """
    path = Path(path)
    # A symbolic link of another user may point to a file of this user.
    _check_owner(path, path.lstat())
    _check_content(path, path.stat())


def read_file(path: Path) -> bytes:
    """The content of a file that passes `check_file`, which is the one that was read.

    Raises:
        ConfigError: it does not.
        OSError: it cannot be read.
    """
    _check_owner(path, path.lstat())
    # Whoever has put a pipe there must not have us wait for it.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        _check_content(path, os.fstat(file.fileno()))
        return file.read()


def _check_content(path: Path, status: os.stat_result) -> None:
    _check_owner(path, status)
    if status.st_mode & stat.S_IWOTH:
        raise ConfigError(_writable_error(path, "everybody", "o-w"))
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        raise ConfigError(_writable_error(path, f"group {status.st_gid}", "g-w"))


def _check_owner(path: Path, status: os.stat_result) -> None:
    me = os.geteuid()
    if status.st_uid in (me, _ROOT):
        return
    owner, mine = _name_of(status.st_uid), _name_of(me)
    raise ConfigError(
        f"{path} belongs to {owner}, and this runs as {mine}: somebody else may have put it there. "
        f"Run it as {owner}, or remove it, or take it over with `chown {mine} {path}`"
    )


def _writable_error(path: Path, writer: str, mode: str) -> str:
    return (
        f"{path} can be written by {writer}, and is not trusted: `chmod {mode} {path}`"
    )


def _is_own_group(gid: int) -> bool:
    return gid == os.getegid() or gid in os.getgroups()


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
