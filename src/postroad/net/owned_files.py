"""Checks that files and directories belong to the user of this process, or to root.

The data, secrets and certificates of a node must belong to the user that runs it, or to root, as
volumes of Kubernetes do. In a directory that others can write to, another user could plant a token
that it knows, or a store that it reads. All functions raise ConfigError if another user can do
that, and OSError if a file or directory cannot be read or created.
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
    """Create a directory that only its owner can access, with its missing parents.

    An existing directory is checked, see `check_directory`."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    if not missing:
        check_directory(path)
    for directory in reversed(missing):
        try:
            # Not mkdir(parents=True), which creates the parents with the mode of the umask.
            directory.mkdir(_PRIVATE)
        except FileExistsError:
            check_directory(directory)


def check_directory(path: Path) -> None:
    """Check that no other user can replace files of a directory.

    If it belongs to this user and is world-writable, that permission is removed and logged; a
    world-writable directory of root, as Kubernetes creates them, is left as it is."""
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
        logger.warning("directory %s was world-writable: that permission was removed", path)


def check_file(path: str | os.PathLike[str]) -> None:
    """Check that a file belongs to this user or root, and that no other user can write to it."""
    path = Path(path)
    # A symbolic link of another user may point to a file of this user.
    _check_owner(path, path.lstat())
    _check_content(path, path.stat())


def read_file(path: Path) -> bytes:
    """Return the content of a file after the checks of `check_file`, on the opened file."""
    _check_owner(path, path.lstat())
    # Opening a named pipe must not block.
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
        f"{path} belongs to {owner}, and this runs as {mine}: another user may have planted it. "
        f"Run as {owner}, or remove it, or take it over with `chown {mine} {path}`"
    )


def _writable_error(path: Path, writer: str, mode: str) -> str:
    return f"{path} can be written by {writer}, and is not trusted: `chmod {mode} {path}`"


def _is_own_group(gid: int) -> bool:
    return gid == os.getegid() or gid in os.getgroups()


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
