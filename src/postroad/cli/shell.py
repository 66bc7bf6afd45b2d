"""`postroad shell`: the same words as the command line, typed one after another."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from postroad.admin import PostroadError, make_private_directory

from .failures import tell_failure
from .main import EXIT_OK, EXIT_USAGE, run
from .places import Place, PlacedCommand, open_desk, placed, take_place

ALIASES = {
    "actions": ("service", "actions"),
    "dead": ("dlq", "ls"),
    "flows": ("flow", "ls"),
    "nodes": ("cluster", "ls"),
    "queues": ("queue", "ls"),
    "services": ("service", "ls"),
}
"""Short words for what is looked at most."""

SPECIAL = {
    "\\?": "this help",
    "\\l": "list cells",
    "\\c CELL": "enter a cell, as name@domain: what is typed goes to it; \\c alone leaves it",
    "\\q": "end the shell; Ctrl-D does too",
}

Read = Callable[[str], str]


@click.command(cls=PlacedCommand)
def shell(**given: Any) -> int:
    """Work with a node interactively, with completion.

    All commands are known by the same words, without postroad before them; \\? tells more. Lines
    from a pipe are run one after another, and the exit code is that of the last one.

    \b
    Example:
      postroad shell
      echo 'queue ls' | postroad shell
    """
    place = take_place(given)
    session = Session(place, *_introduce(place))
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if is_interactive:
        click.echo(f"{session.cluster}/{session.node}; \\? for help, \\q to end")
    with placed(place), _typing() if is_interactive else _piping() as read:
        return session.converse(read)


def _introduce(place: Place) -> tuple[str, str]:
    with open_desk(place) as desk:
        if place.store is not None:
            return "at rest", Path(place.store).name
        node = desk.do("node.show", {})
    return str(node["cluster"]), str(node["name"])


class Session:
    """Somebody who types commands.

    Args:
        cluster, node: what the prompt shows.
    """

    def __init__(self, place: Place, cluster: str, node: str) -> None:
        self.place = place
        self.cluster = cluster
        self.node = node
        self.cell: str | None = None
        """The cell that gets what is typed."""
        self._code = EXIT_OK
        self._is_over = False

    @property
    def prompt(self) -> str:
        """What stands before the line."""
        within = "" if self.cell is None else f" {self.cell}"
        return f"{self.cluster}/{self.node}{within}> "

    def converse(self, read: Read) -> int:
        """Run lines until there are no more; returns the exit code of the last."""
        while not self._is_over:
            try:
                self.do(read(self.prompt))
            except KeyboardInterrupt:
                continue
            except EOFError:
                break
        return self._code

    def do(self, line: str) -> None:
        """Run one line; nothing it does ends the shell."""
        line = line.strip()
        if not line or line.startswith("#"):
            return
        try:
            self._code = self._do(line)
        except PostroadError as error:
            self._code = tell_failure(error)
        except Exception as error:  # Whatever it is: the next line may work.
            click.echo(f"postroad: {type(error).__name__}: {error}", err=True)
            self._code = 1

    def _do(self, line: str) -> int:
        if line.startswith("\\"):
            return self._do_special(*line.split())
        if self.cell is not None:
            return run(["cells", "run", "--", self.cell, line])
        try:
            words = shlex.split(line)
        except ValueError as error:
            click.echo(f"postroad: {error} in {line!r}", err=True)
            return EXIT_USAGE
        return self._run(words)

    def _run(self, words: list[str]) -> int:
        first = words[0]
        if first in ("exit", "quit"):
            self._is_over = True
            return self._code
        if first == "help":
            return run([*words[1:], "--help"])
        if first == "shell":
            click.echo("postroad: this is the shell already", err=True)
            return EXIT_USAGE
        return run([*ALIASES.get(first, (first,)), *words[1:]])

    def _do_special(self, command: str, *rest: str) -> int:
        if command == "\\q":
            self._is_over = True
            return self._code
        if command == "\\l":
            return run(["cells", "ps", *rest])
        if command == "\\c":
            self.cell = rest[0] if rest else None
            return EXIT_OK
        if command == "\\?":
            _print_help()
            return EXIT_OK
        click.echo(f"postroad: there is no {command}; \\? tells what there is", err=True)
        return EXIT_USAGE


def _print_help() -> None:
    click.echo("Every command of postroad by its words, such as: queue ls --watch")
    click.echo("help [COMMAND]     explains it")
    for name, words in ALIASES.items():
        click.echo(f"{name:<18} is {' '.join(words)}")
    for name, meaning in SPECIAL.items():
        click.echo(f"{name:<18} {meaning}")


# Where lines come from.


@contextmanager
def _piping() -> Iterator[Read]:
    def read(_prompt: str) -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line

    yield read


@contextmanager
def _typing() -> Iterator[Read]:
    from .line_editor import make_reader

    yield make_reader(history_path())


def history_path() -> Path:
    """Where typed lines are kept; they may hold secrets, so nobody else may read them."""
    path = Path(click.get_app_dir("postroad")) / "history"
    make_private_directory(path.parent)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    path.chmod(0o600)
    return path
