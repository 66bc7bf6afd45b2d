"""Files appear whole or not at all, and never over others by accident."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from postroad.admin.publishing import NewFile, publish

if TYPE_CHECKING:
    from pathlib import Path


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def pair(directory: Path, content: bytes) -> list[NewFile]:
    return [NewFile(directory / name, content, 0o600) for name in ("key", "pem")]


def test_files_are_in_place_and_force_replaces_them(tmp_path: Path) -> None:
    publish(pair(tmp_path, b"old"), force=False)
    assert contents(tmp_path) == {"key": b"old", "pem": b"old"}
    publish(pair(tmp_path, b"new"), force=True)
    assert contents(tmp_path) == {"key": b"new", "pem": b"new"}


def test_existing_files_and_links_stop_all(tmp_path: Path) -> None:
    (tmp_path / "pem").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        publish(pair(tmp_path, b"new"), force=False)
    assert contents(tmp_path) == {"pem": b"old"}
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        publish(pair(tmp_path, b"new"), force=False)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("force", [False, True])
def test_failure_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        publish(pair(tmp_path, b"new"), force=force)
    assert contents(tmp_path) == {}


def test_of_many_at_once_exactly_one_wins(tmp_path: Path) -> None:
    def attempt(number: int) -> bool:
        try:
            publish(pair(tmp_path, b"%d" % number), force=False)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(attempt, range(32)))
    winner = b"%d" % won.index(True)
    assert won.count(True) == 1
    assert contents(tmp_path) == {"key": winner, "pem": winner}
