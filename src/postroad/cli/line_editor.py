"""Lines typed at a terminal: history, and completion of commands and live names."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from click.shell_completion import ShellComplete

from postroad.admin import MissingExtraError

from .main import postroad
from .shell import ALIASES, SPECIAL

try:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import FileHistory
except ImportError:
    raise MissingExtraError("shell", "a shell to type in") from None


class Words(Completer):
    """Completes what the command line completes, and the words of the shell."""

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """What the word before the cursor may become."""
        typed, words = split(document.text_before_cursor)
        for text, meaning in complete(words, typed):
            yield Completion(text, start_position=-len(typed), display_meta=meaning)


def split(line: str) -> tuple[str, list[str]]:
    """The word that is being typed, and those before it."""
    try:
        words = shlex.split(line)
    except ValueError:
        # A quotation is open: what is in it is not ours to complete.
        return "", []
    if not line or line[-1].isspace():
        return "", words
    return (words[-1], words[:-1]) if words else ("", [])


def complete(words: list[str], typed: str) -> Iterator[tuple[str, str]]:
    """What may come, and what it means."""
    if not words:
        own = [*((it, " ".join(ALIASES[it])) for it in ALIASES), ("help", ""), ("exit", "")]
        own += [(name.split()[0], meaning) for name, meaning in SPECIAL.items()]
        yield from ((name, meaning) for name, meaning in own if name.startswith(typed))
    if words and words[0].startswith("\\"):
        words = ["cells", "run"] if words[0] == "\\c" else words
    if words and words[0] == "help":
        words = words[1:]
    words = [*ALIASES.get(words[0], (words[0],)), *words[1:]] if words else words
    found = ShellComplete(postroad, {}, "postroad", "").get_completions(words, typed)
    yield from ((str(it.value), it.help or "") for it in found if it.type == "plain")


def make_reader(history: Path) -> Callable[[str], str]:
    """What reads lines from the terminal."""
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)),
        completer=ThreadedCompleter(Words()),
        complete_while_typing=False,
    )
    return session.prompt
