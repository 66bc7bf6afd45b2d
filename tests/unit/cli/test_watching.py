"""Files that were saved are noticed, and others are not looked at."""

import os
from pathlib import Path

import pytest

from postroad.cli import watching
from postroad.cli.watching import Snapshot, Sources, changed, data_directory, find_configuration


def take_snapshot(directory: Path, *arguments: list[Path]) -> Snapshot:
    return Sources(directory, *arguments).snapshot()


def names(directory: Path) -> list[str]:
    return sorted(str(it.relative_to(directory)) for it in take_snapshot(directory))


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_snapshot_has_sources_alone(tmp_path: Path) -> None:
    for name in ("app.py", "postroad.toml", "deep/er/job.toml", "data.db", "notes.txt"):
        write(tmp_path / name)
    assert names(tmp_path) == ["app.py", "deep/er/job.toml", "postroad.toml"]
    for name in (".postroad", ".git", "__pycache__", "node_modules", "env"):
        write(tmp_path / name / "a.py")
    write(tmp_path / "env" / "pyvenv.cfg")
    assert names(tmp_path) == ["app.py", "deep/er/job.toml", "postroad.toml"]


@pytest.mark.parametrize("mark", ["pyproject.toml", "postroad.toml", "setup.py", ".git"])
def test_other_projects_are_not(tmp_path: Path, mark: str) -> None:
    """But the mark of the project itself, in its own directory, keeps nothing away."""
    write(tmp_path / mark)
    write(tmp_path / "ours" / "a.py")
    write(tmp_path / "theirs" / mark)
    write(tmp_path / "theirs" / "deep" / "a.py")
    assert "ours/a.py" in names(tmp_path)
    assert not [it for it in names(tmp_path) if it.startswith("theirs")]


def test_what_a_node_keeps_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "app.py")
    write(tmp_path / "state" / "jobs" / "job.toml")
    found = take_snapshot(tmp_path, [], [Path("state")])
    assert [it.name for it in found] == ["app.py"]


def test_where_a_node_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert data_directory(find_configuration(None), {}) == Path(".postroad")
    write(tmp_path / "postroad.toml", 'node = "wrong"')
    assert data_directory(find_configuration(None), {}) == Path(".postroad")
    write(tmp_path / "postroad.toml", '[node]\ndata = "file"')
    assert data_directory(find_configuration(None), {}) == Path("file")
    write(tmp_path / "other.toml", 'node.data = "other"')
    monkeypatch.setenv("POSTROAD_CONFIG", "other.toml")
    assert data_directory(find_configuration(None), {}) == Path("other")
    assert data_directory(find_configuration(Path("postroad.toml")), {}) == Path("file")
    monkeypatch.setenv("POSTROAD_NODE_DATA", "variable")
    assert data_directory(find_configuration(None), {}) == Path("variable")
    assert data_directory(find_configuration(None), {"node.data": "flag"}) == Path("flag")


def test_changes_between_snapshots_are_told(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.py"):
        write(tmp_path / name)
    before = take_snapshot(tmp_path)
    assert changed(before, take_snapshot(tmp_path)) == []
    write(tmp_path / "a.py", "x = 1")
    (tmp_path / "b.py").unlink()
    write(tmp_path / "d.py")
    after = take_snapshot(tmp_path)
    assert [it.name for it in changed(before, after)] == ["a.py", "b.py", "d.py"]


def test_save_of_the_same_size_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "a.py", "x = 1")
    before = take_snapshot(tmp_path)
    os.utime(tmp_path / "a.py", ns=(1, 1))
    assert [it.name for it in changed(before, take_snapshot(tmp_path))] == ["a.py"]


def test_snapshot_has_files_from_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "config.toml")
    write(tmp_path / "project" / "app.py")
    more = [tmp_path / "elsewhere" / "config.toml", tmp_path / "none.toml"]
    found = take_snapshot(tmp_path / "project", more)
    assert sorted(it.name for it in found) == ["app.py", "config.toml"]


def test_there_is_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FILES_MAX", 3)
    for number in range(5):
        write(tmp_path / f"{number}.py")
    assert len(take_snapshot(tmp_path)) == 3
