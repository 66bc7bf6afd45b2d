"""`postroad new`: what is written, and what is refused."""

import tomllib
from pathlib import Path

import pytest

from postroad.cli.main import run
from postroad.node.reading import load_config

FILES = [
    *(".gitignore", "README.md", "app.py", "job.toml", "postroad.toml", "reports.py"),
    *("sales/monday.jsonl", "test_app.py"),
]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_in(directory: Path) -> list[str]:
    found = (it for it in directory.rglob("*") if it.is_file())
    return sorted(str(it.relative_to(directory)) for it in found)


def test_project(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    assert run(["new", "tea-shop"]) == 0
    project = directory / "tea-shop"
    assert files_in(project) == FILES
    assert capsys.readouterr().out.splitlines()[-1] == "Run it: cd tea-shop && postroad dev"
    config = load_config(project / "postroad.toml", {}).config
    assert (config.node.cluster, config.node.name) == ("tea-shop", "tea-shop-1")
    assert tomllib.loads((project / "job.toml").read_text())["name"] == "sales"
    for name in FILES:
        assert "{{" not in (project / name).read_text()
    assert len((project / "README.md").read_text().splitlines()) <= 10


def test_empty_directory_is_used(
    capsys: pytest.CaptureFixture[str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = directory / "shop"
    place.mkdir()
    monkeypatch.chdir(place)
    assert run(["new", "."]) == 0
    assert files_in(place) == FILES
    assert capsys.readouterr().out.splitlines()[-1] == "Run it: postroad dev"


def test_existing_files_and_impossible_names_are_refused(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    for name in ("1shop", "sh op", "-shop", "shöp"):
        assert run(["new", "--", name]) == 2, name
        assert f"{name!r} cannot be the name of a project" in capsys.readouterr().err, name
        assert files_in(directory) == [], name
    place = directory / "shop"
    place.mkdir()
    (place / "app.py").write_text("mine")
    assert run(["new", "shop"]) == 2
    assert "shop is not empty; choose another name, or empty it." in capsys.readouterr().err
    assert files_in(place) == ["app.py"]
    (directory / "file").write_text("")
    assert run(["new", "file"]) == 2
    assert "is a file" in capsys.readouterr().err
