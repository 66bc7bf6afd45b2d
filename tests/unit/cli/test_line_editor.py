"""What the shell completes, and what it says where its package is missing."""

import sys

import pytest

from postroad.cli.main import EXIT_FAILED
from postroad.cli.shell import ALIASES
from tests.support.cases import each


@each(
    ("", "", []),
    ("que", "que", []),
    ("queue ", "", ["queue"]),
    ("queue sh", "sh", ["queue"]),
    ("flow signal 1 'half", "", []),
    ("   ", "", []),
)
def test_word_that_is_typed(line: str, typed: str, words: list[str]) -> None:
    from postroad.cli.line_editor import split

    assert split(line) == (typed, words)


@each(
    ([], "que", ["queues", "queue"]),
    ([], "\\", ["\\?", "\\l", "\\c", "\\q"]),
    (["queue"], "p", ["pause", "peek", "post", "purge"]),
    (["help", "queue"], "sh", ["show"]),
    (["queues"], "--wa", ["--watch"]),
)
def test_words_are_completed(words: list[str], typed: str, found: list[str]) -> None:
    from postroad.cli.line_editor import complete

    assert [name for name, _ in complete(words, typed)] == found


def test_short_words_are_no_commands_of_their_own() -> None:
    from postroad.cli.main import COMMANDS

    assert {*ALIASES} & {*COMMANDS} == set()
    assert {words[0] for words in ALIASES.values()} <= {*COMMANDS}


def test_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from postroad.cli.failures import tell_failure

    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    monkeypatch.delitem(sys.modules, "postroad.cli.line_editor", raising=False)
    with pytest.raises(ImportError) as raised:
        import postroad.cli.line_editor  # noqa: F401
    assert tell_failure(raised.value) == EXIT_FAILED
    assert capsys.readouterr().err == (
        "postroad: a shell to type in needs the extra 'shell', which postroad was installed"
        " without: pip install '.[shell]' in a clone of its repository, or 'FILE.whl[shell]'\n"
    )
