"""Tokens come from where no other user of the machine can look."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from postroad.cli import settings
from postroad.cli.contexts import Contexts
from postroad.cli.main import postroad, run
from postroad.cli.tokens import read_token_file
from postroad.core.errors import ConfigError
from tests.support.foreign import give_away

TOKEN = "hush-0123456789-hush"
NOWHERE = "http://127.0.0.1:1"
WARNING = "can be read by every user of this machine"


@pytest.fixture(autouse=True)
def _no_warning_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_warned", set())


def test_token_is_read_from_a_file_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    with pytest.raises(click.UsageError, match="cannot be read: No such file"):
        read_token_file(str(path))
    path.write_text("\n")
    with pytest.raises(click.UsageError, match="is empty"):
        read_token_file(str(path))
    path.write_text(f"{TOKEN}\n")
    assert read_token_file(str(path)) == TOKEN
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(TOKEN.encode())))
    assert read_token_file("-") == TOKEN
    give_away(monkeypatch, path)
    with pytest.raises(ConfigError, match="belongs to"):
        read_token_file(str(path))


def test_context_is_saved_with_the_token_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    add = ["context", "add", "prod", "--url", NOWHERE, "--token-file", str(tmp_path / "token")]
    assert run(add) == 0
    assert Contexts.load().find("prod").token == TOKEN


@pytest.mark.parametrize(
    "words", [["node", "show", "--url", NOWHERE], ["context", "add", "prod", "--url", NOWHERE]]
)
def test_token_that_is_typed_is_warned_of_and_one_of_the_environment_is_not(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run([*words, "--token", TOKEN])
    err = capsys.readouterr().err
    assert f"--token {WARNING}" in err
    assert "--token-file, or POSTROAD_TOKEN" in err
    assert TOKEN not in err
    monkeypatch.setenv("POSTROAD_TOKEN", TOKEN)
    run(words)
    assert WARNING not in capsys.readouterr().err


def test_secret_that_is_typed_as_a_setting_is_warned_of_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POSTROAD_ADMIN_TOKEN", raising=False)
    typed = {
        "admin.token": TOKEN,
        "admin.read_token": TOKEN,
        "node.secret": TOKEN,
        "queues.store": f"postgresql://ann:{TOKEN}@db/mail",
    }
    for name, value in typed.items():
        for _ in range(2):
            settings.load(None, {name: value})
        err = capsys.readouterr().err
        assert err.count(f"--set {name}=... {WARNING}") == 1, name
        assert f"POSTROAD_{name.replace('.', '_').upper()}" in err, name
        assert TOKEN not in err, name
    settings.load(None, {"mail.store": f"postgresql://ann:{TOKEN}@db/mail"})
    assert f"--set mail.store=... {WARNING}" in capsys.readouterr().err
    settings.load(None, {"node.name": "alpha", "queues.store": "postgresql://ann@db/mail"})
    monkeypatch.setenv("POSTROAD_ADMIN_TOKEN", TOKEN)
    settings.load(None, {})
    assert capsys.readouterr().err == ""


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_no_help_suggests_to_type_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    seen = 0
    for path in commands(postroad):
        assert run([*path, "--help"]) == 0
        help = capsys.readouterr().out
        assert "--token " not in help, path
        assert "admin.token=" not in help, path
        seen += "--token-file" in help
    assert seen > 20
