"""Whose files are believed, and who can look into directories that are made."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.core.errors import ConfigError
from postroad.net.owned_files import check_directory, check_file, make_private_directory, read_file
from tests.support.foreign import give_away


@pytest.fixture
def careless() -> Iterator[None]:
    """An umask that forbids nobody anything."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("careless")
def test_directories_that_are_made_are_private_whatever_the_umask_and_so_are_those_above(
    tmp_path: Path,
) -> None:
    make_private_directory(tmp_path / "a" / "b" / "c")
    make_private_directory(tmp_path / "a" / "b" / "c")
    for name in ("a", "a/b", "a/b/c"):
        assert mode_of(tmp_path / name) == 0o700, name


def test_check_directory_of_another_user_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "planted"
    planted.mkdir(0o777)
    give_away(monkeypatch, planted)
    for check in (check_directory, make_private_directory):
        with pytest.raises(ConfigError, match=r"planted belongs to .*, and this runs as .*chown"):
            check(planted)


def test_check_file_symlink_of_another_user_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "token").write_text("mine")
    links = {"directory": tmp_path / "mine", "file": tmp_path / "mine" / "token"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    # A link of one's own is as good as what it leads to.
    check_directory(tmp_path / "directory")
    assert read_file(tmp_path / "file") == b"mine"
    give_away(monkeypatch, *(tmp_path / link for link in links))
    with pytest.raises(ConfigError, match="belongs to"):
        check_directory(tmp_path / "directory")
    for look in (check_file, read_file):
        with pytest.raises(ConfigError, match="belongs to"):
            look(tmp_path / "file")


def test_check_file_of_another_user_is_rejected_behind_symlink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted").write_text("theirs")
    (tmp_path / "link").symlink_to(tmp_path / "planted")
    give_away(monkeypatch, tmp_path / "planted")
    for name in ("planted", "link"):
        for look in (check_file, read_file):
            with pytest.raises(ConfigError, match="belongs to"):
                look(tmp_path / name)


def test_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("anybody's")
    for mode, is_refused in ((0o600, False), (0o644, False), (0o660, False), (0o602, True)):
        path.chmod(mode)
        for look in (check_file, read_file):
            if is_refused:
                with pytest.raises(ConfigError, match=r"can be written by everybody.*chmod o-w"):
                    look(path)
            else:
                look(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other groups")
def test_check_file_group_writable_is_rejected_unless_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getgroups", lambda: [10_001])
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    for path, check in ((tmp_path / "directory", check_directory), (tmp_path / "file", check_file)):
        path.chmod(0o775)
        # As volumes with fsGroup are: of root, and of the group of the pod.
        os.chown(path, 0, 10_001)
        check(path)
        os.chown(path, 0, 10_002)
        with pytest.raises(ConfigError, match=r"can be written by group 10002.*chmod g-w"):
            check(path)


def test_check_directory_world_writable_own_loses_permission(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o777)
    check_directory(path)
    assert mode_of(path) == 0o775
    assert "was world-writable" in caplog.text
    # Where only owners can remove files, as in /tmp, each file is looked at.
    path.chmod(0o1777)
    check_directory(path)
    assert mode_of(path) == 0o1777


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has directories of root")
def test_check_directory_world_writable_of_root_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "volume"
    path.mkdir()
    path.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 10_001)
    check_directory(path)
    assert mode_of(path) == 0o777


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert read_file(tmp_path / "pipe") == b""


def test_check_directory_missing_or_file_raises_os_error(tmp_path: Path) -> None:
    for look in (check_file, read_file, check_directory):
        with pytest.raises(FileNotFoundError):
            look(tmp_path / "none")
    (tmp_path / "file").touch()
    for check in (check_directory, make_private_directory):
        with pytest.raises(NotADirectoryError):
            check(tmp_path / "file")
