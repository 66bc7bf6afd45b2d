"""`postroad config`: what is shown, checked and explained."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from postroad.cli.main import run
from postroad.node import keys

TOKEN = "correct-horse-battery"
COUNT = len(keys.settings_keys())


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("POSTROAD_CONFIG", "POSTROAD_NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["config", *arguments]) == 0
    return capsys.readouterr().out


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["config", *arguments]) in (1, 2)
    return capsys.readouterr().err


def at(tree: dict[str, Any], name: str) -> Any:
    for part in name.split("."):
        tree = tree[part]
    return tree


def test_what_is_shown_is_a_configuration(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    text = told(
        capsys, "show", "--set", "node.name=alpha", "--set", "queues.tuning.ack_timeout_s=7"
    )
    tree = tomllib.loads(text)
    assert at(tree, "node.name") == "alpha"
    assert at(tree, "queues.tuning.ack_timeout_s") == 7
    assert "# tls.certificate\n" in text
    assert len(text.splitlines()) == COUNT
    (directory / "postroad.toml").write_text(text)
    assert told(capsys, "show") == text


def test_values_of_another_file_and_their_origins_are_shown(
    capsys: pytest.CaptureFixture[str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "postroad.toml").write_text('[node]\nname = "a"\ncluster = "b"\n')
    monkeypatch.setenv("POSTROAD_NODE_NAME", "c")
    text = told(capsys, "show", "--origin", "--changed", "--set", "log.level=debug")
    assert text.splitlines() == [
        'node.cluster = "b"  # postroad.toml:3',
        'node.name = "c"  # POSTROAD_NODE_NAME',
        'log.level = "debug"  # --set log.level',
    ]
    monkeypatch.delenv("POSTROAD_NODE_NAME")
    (directory / "other.toml").write_text('node.name = "other"')
    text = told(capsys, "show", "--config", "other.toml", "--changed", "--origin")
    assert text == 'node.name = "other"  # other.toml:1\n'


def test_show_gives_json_and_parts(capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(told(capsys, "show", "--json"))
    assert len(shown) == COUNT
    assert shown["queues.bridge"] == {"value": True, "origin": "default"}
    assert shown["tls.key"] == {"value": None, "origin": "default"}
    assert told(capsys, "show", "log") == 'log.level = "info"\nlog.format = "text"\n'
    assert told(capsys, "show", "log.level") == 'log.level = "info"\n'
    assert "There is no setting logs. Did you mean log?" in failed(capsys, "show", "logs")


def test_secrets_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--set", f"admin.token={TOKEN}", "--set", "queues.store=postgresql://a:sesame@b/c")
    for form in ((), ("--json",), ("--origin",)):
        text = told(capsys, "show", *given, *form)
        assert TOKEN not in text
        assert "sesame" not in text
        assert keys.HIDDEN in text


def test_check_tells_mistakes_and_looks_at_files(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    assert told(capsys, "check") == f"Good: 0 of {COUNT} settings given, no file read.\n"
    (directory / "postroad.toml").write_text('node.name = "a"')
    assert told(capsys, "check", "--set", "log.level=error") == (
        f"Good: 2 of {COUNT} settings given, postroad.toml read.\n"
    )
    (directory / "app.py").write_text("x = 1\ndef f(:\n")
    text = failed(capsys, "check", "--set", "node.app=app.py", "--set", "pipeline.jobs=job.toml")
    assert "node.app: app.py:2: invalid syntax" in text
    assert "pipeline.jobs: there is no file job.toml" in text
    (directory / "postroad.toml").write_text("node.names = 1")
    assert "postroad.toml:1: there is no setting node.names; did you mean node.name?" in failed(
        capsys, "check"
    )
    assert "'a' is not of the form KEY=VALUE" in failed(capsys, "check", "--set", "a")


def test_keys_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "keys")
    assert "[queues.tuning]  Sizes and times of the durable queues of a node." in text
    assert "  handler_timeout_s = 300.0  (a number)\n      Handler timeout." in text
    assert "  name = (depends on the machine)  (a text)" in text
    assert "  ca = (must be given)  (a text)" in text
    assert "  store = (not set)  (a text)" in text
    listed = json.loads(told(capsys, "keys", "--json"))
    assert [it["key"] for it in listed] == list(keys.settings_keys())
    assert listed[0] == {
        "key": "node.cluster",
        "variable": "POSTROAD_NODE_CLUSTER",
        "type": "a text",
        "default": "postroad",
        "meaning": "Nodes of other clusters are refused.",
    }
    assert [it["key"] for it in json.loads(told(capsys, "keys", "log", "--json"))] == [
        *("log.level", "log.format")
    ]
