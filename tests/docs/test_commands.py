"""Every `postroad` command on a page is one that exists, with options that exist."""

import re
import shlex

import click
import pytest

from postroad.cli.main import postroad
from tests.docs.pages import PAGES, ROOT

_CONSOLE = re.compile(r"^```(?:console|sh|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WRAPPED = re.compile(r"\\\n\s*")
_SUBSTITUTED = re.compile(r"\$\([^)]*\)")


def commands() -> dict[str, list[str]]:
    """The arguments of each command, by page and text."""
    found = {}
    for page in PAGES:
        for block in _CONSOLE.findall(page.read_text(encoding="utf-8")):
            for line in _SUBSTITUTED.sub("word", _WRAPPED.sub("", block)).splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                if words[:1] == ["postroad"]:
                    arguments = [it for it in words[1:] if it not in ("|", "&")]
                    found[f"{page.relative_to(ROOT)}: {' '.join(words)}"] = arguments
    return found


COMMANDS = commands()


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Groups find their commands and these their options; nothing is done.
    monkeypatch.setattr(click.Command, "invoke", lambda self, ctx: None)
    arguments = COMMANDS[name]
    for end in (">", "2>", ">>"):
        arguments = arguments[: arguments.index(end)] if end in arguments else arguments
    try:
        postroad.main(arguments, prog_name="postroad", standalone_mode=False)
    except click.BadParameter as error:
        # A file of the reader's.
        assert "does not exist" in error.message, error.message
