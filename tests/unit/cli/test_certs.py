"""`postroad certs`: what it writes, says and refuses."""

import json
import os
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from postroad import admin
from postroad.cli.certs import certs
from postroad.cli.main import run


@pytest.fixture(autouse=True)
def inside_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(certs, arguments)


def succeed(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_init_says_what_it_wrote_and_what_comes_next() -> None:
    text = succeed("init", "--name", "Team root", "--days", "20")
    assert sorted(os.listdir("certs")) == ["ca.key", "ca.pem"]
    assert "Wrote certs/ca.pem: trust root 'Team root', valid until" in text
    assert "Wrote certs/ca.key" in text
    assert text.endswith("Next: postroad certs issue n1 n2 --dir certs\n")
    assert "issue them again" in succeed("init", "--force")
    assert "--dir 'my certs'" in succeed("init", "--dir", "my certs")


def test_issue_shows_the_settings_that_use_the_files() -> None:
    succeed("init")
    text = succeed("issue", "n1", "n2", "--host", "localhost")
    assert "Wrote certs/n1.pem and certs/n1.key: for n1, localhost, valid until" in text
    assert "Wrote certs/n2.pem and certs/n2.key: for n2, localhost, valid until" in text
    settings = tomllib.loads(text.partition("for example\n")[2])
    assert settings == {
        "node": {"name": "n1"},
        "tls": {"certificate": "certs/n1.pem", "key": "certs/n1.key", "ca": "certs/ca.pem"},
    }


def test_issue_reports_what_was_written_before_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["certs", "init"]) == 0
    capsys.readouterr()
    assert run(["certs", "issue", "n1", "no@name", "n3", "--json"]) == 1
    captured = capsys.readouterr()
    assert [node["node"] for node in json.loads(captured.out)] == ["n1"]
    assert captured.err.startswith("postroad: node name 'no@name'")
    assert not Path("certs/n3.pem").exists()


def test_commands_need_arguments_and_have_examples() -> None:
    result = invoke("issue")
    assert result.exit_code == 2
    assert "Missing argument 'NODE...'" in result.output
    for name in certs.commands:
        assert f"  postroad certs {name}" in succeed(name, "--help")


def test_json_of_init_and_issue() -> None:
    root = json.loads(succeed("init", "--json"))
    (node,) = json.loads(succeed("issue", "n1", "--host", "::1", "--days", "7", "--json"))
    assert (root["certificate"], root["key"]) == ("certs/ca.pem", "certs/ca.key")
    assert root["name"] == admin.ROOT_NAME
    assert node["ca"] == root["certificate"]
    assert node["names"] == ["n1", "::1"]
    life = datetime.fromisoformat(node["expires"]) - datetime.now(UTC)
    assert timedelta(days=6, hours=23) < life <= timedelta(days=7)


def test_show_is_a_table() -> None:
    succeed("init")
    succeed("issue", "n1", "--days", "10")
    succeed("issue", "n2", "--host", "127.0.0.1")
    Path("certs/n2.key").unlink()
    Path("certs/junk.pem").touch()
    heading, *rows = [line.split("  ") for line in succeed("show").splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in [heading, *rows]]
    assert cells[0] == ["FILE", "SUBJECT", "NAMES", "EXPIRES", "DAYS LEFT", "NOTES"]
    assert [row[0] for row in cells[1:]] == [
        "certs/ca.pem",
        "certs/junk.pem",
        "certs/n1.pem",
        "certs/n2.pem",
    ]
    assert cells[1][5] == "ok"
    assert cells[2][1:] == ["-", "-", "-", "-", "not a readable certificate"]
    assert cells[3][1:3] == ["CN=n1,O=Postroad", "n1"]
    assert cells[3][4:] == ["9", "expires soon"]
    assert cells[4][2] == "n2, 127.0.0.1"
    assert cells[4][5] == "no key here"


def test_show_as_json() -> None:
    succeed("init")
    succeed("issue", "n1")
    root, node = json.loads(succeed("show", "--json"))
    assert root["file"] == "certs/ca.pem"
    assert node["names"] == ["n1"]
    assert node["days_left"] in (396, 397)
    assert node["problems"] == []


def test_show_of_an_empty_directory_says_how_to_begin() -> None:
    told = "No certificates in certs.\nNext: postroad certs init --dir certs\n"
    assert succeed("show") == told
    Path("certs").mkdir()
    assert succeed("show") == told
