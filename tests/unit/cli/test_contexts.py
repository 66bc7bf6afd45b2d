"""`postroad context`: places with names."""

import json
import stat
from pathlib import Path

import pytest

from postroad.cli.contexts import path_of_contexts
from postroad.cli.main import run


def add(name: str, *options: str) -> int:
    return run(["context", "add", name, "--url", f"http://{name}:8222", *options])


def used(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert run(["context", "ls", "--json"]) == 0
    return [it["name"] for it in json.loads(capsys.readouterr().out) if it["used"]]


def test_first_context_is_used_and_its_token_private(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    assert run(["context", "ls"]) == 0
    assert capsys.readouterr().out.startswith("None. Save one with: postroad context add")
    assert add("prod", "--token", "secret-0123456789") == 0
    assert add("test") == 0
    assert capsys.readouterr().out == "prod is saved and used.\ntest is saved.\n"
    assert run(["context", "ls"]) == 0
    assert capsys.readouterr().out == (
        "USED  NAME  URL               NODE\n"
        "yes   prod  http://prod:8222\n"
        "      test  http://test:8222\n"
    )
    assert add("prod", "--token", "secret-0123456789") == 0
    path = path_of_contexts()
    assert home in path.parents
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret-0123456789" in path.read_text()


def test_context_in_use_is_the_last_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    add("prod")
    add("test")
    assert run(["context", "use", "-"]) == 2
    assert run(["context", "use", "test"]) == 0
    assert used(capsys) == ["test"]
    assert run(["context", "use", "-"]) == 0
    assert used(capsys) == ["prod"]
    assert run(["context", "use", "-"]) == 0
    assert used(capsys) == ["test"]
    assert run(["context", "rm", "test"]) == 0
    assert used(capsys) == []
    assert run(["context", "rm", "test"]) == 3


def test_bad_names_addresses_and_files_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert add("-") == 2
    add("prod")
    assert run(["context", "use", "prd"]) == 3
    assert "no context is called 'prd'; did you mean 'prod'?" in capsys.readouterr().err
    assert run(["context", "add", "shop", "--url", "http://prod:http"]) == 1
    assert "'http://prod:http' is no address of an API" in capsys.readouterr().err
    assert run(["context", "use", "shop"]) == 3
    path_of_contexts().write_text("{")
    assert run(["context", "ls"]) == 1
    assert "contexts.json is damaged" in capsys.readouterr().err


def test_commands_go_to_the_context_in_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["context", "add", "gone", "--url", "http://127.0.0.1:1"]) == 0
    assert run(["queue", "ls"]) == 1
    assert "nobody answers at http://127.0.0.1:1" in capsys.readouterr().err
    assert run(["queue", "ls", "--context", "gon"]) == 3


def test_no_node_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["queue", "ls"]) == 3
    assert "no node runs in .postroad: start one with `postroad dev`" in capsys.readouterr().err
