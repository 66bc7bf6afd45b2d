"""Text commands that cells answer: what operators type, parsed and explained in one place.

A command is a method marked with `command`, of the cell or of one of its `command_sets`. Words that
begin with `-` are options, `-type=queue` or just `-f`, and go to keyword-only parameters; all
others go to positional ones, and so does everything after `--`. Parameters that are annotated as
`int` or `float` get numbers.
"""

from __future__ import annotations

import difflib
import inspect
import shlex
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from postroad.core.errors import ConfigError
from postroad.core.limits import MIB

from .arguments import bind_arguments, quote
from .cell_views import describe_cell

_MARK = "_postroad_command"
_LINE_CHARACTERS_MAX = 4_096
# An answer is one message, and may have to fit into one that carries little.
_ANSWER_CHARACTERS_MAX = MIB // 4

F = TypeVar("F", bound=Callable[..., Any])

# A method of a class that is a command: its own name, and the command's name, usage, help, and
# whether it changes nothing.
_Mark: TypeAlias = tuple[str, str, str, str, bool]
_marks: WeakKeyDictionary[type, list[_Mark]] = WeakKeyDictionary()


class Command(NamedTuple):
    """One command of a cell."""

    name: str
    usage: str
    help: str
    method: Callable[..., str | Awaitable[str]]
    is_read: bool = False
    """Whether it only looks and changes nothing."""

    @property
    def synopsis(self) -> str:
        """How it is written."""
        return f"{self.name} {self.usage}".rstrip()


def command(name: str, usage: str = "", *, help: str, is_read: bool = False) -> Callable[[F], F]:
    """Mark a method of a cell as a command; it returns text, or a coroutine that does.

    Other domains may be allowed to give those commands alone that only look: say so by `is_read`.
    """

    def mark(method: F) -> F:
        setattr(method, _MARK, (name, usage, help, is_read))
        return method

    return mark


def commands_of(cell: Any) -> dict[str, Command]:
    """The commands of a cell by name, in order; every cell has `info`."""
    help = "What the cell does, and what waits for it."
    info = Command("info", "", help, partial(describe_cell, cell), is_read=True)
    found = {info.name: info}
    for owner in (*getattr(cell, "command_sets", ()), cell):
        found |= {it.name: it for it in _marked_in(owner)}
    return dict(sorted(found.items()))


def is_read_command(cell: Any, line: str) -> bool:
    """Whether a command only looks; what is no command of the cell changes nothing either."""
    try:
        words = _split(line)
        return not words or words[0] == "help" or _choose(commands_of(cell), words)[0].is_read
    except ConfigError:
        return True


def run_command(cell: Any, line: str) -> str | Awaitable[str]:
    """Have a cell run a command; raises ConfigError, with what to write instead, if it cannot."""
    words = _split(line)
    commands = commands_of(cell)
    if not words or words[0] == "help":
        return _help(commands, words[1:])
    chosen, arguments = _choose(commands, words)
    try:
        positional, options = bind_arguments(chosen.method, arguments)
    except ConfigError as error:
        raise ConfigError(f"{error}; usage: {chosen.synopsis}") from None
    answer = chosen.method(*positional, **options)
    return _fit_later(answer) if isinstance(answer, Awaitable) else _fit(answer)


def _marked_in(owner: Any) -> Iterator[Command]:
    for attribute, name, usage, help, is_read in _marks_of(type(owner)):
        yield Command(name, usage, help, getattr(owner, attribute), is_read)


def _marks_of(kind: type) -> list[_Mark]:
    found = _marks.get(kind)
    if found is None:
        found = _marks[kind] = list(_find_marks(kind))
    return found


def _find_marks(kind: type) -> Iterator[_Mark]:
    for attribute in dir(kind):
        marked = getattr(inspect.getattr_static(kind, attribute, None), _MARK, None)
        if marked is not None:
            yield (attribute, *marked)


def _split(line: str) -> list[str]:
    if len(line) > _LINE_CHARACTERS_MAX:
        raise ConfigError(
            f"a command of {len(line)} characters is too long; {_LINE_CHARACTERS_MAX} is the most"
        )
    if not line.replace("\t", " ").strip().isprintable():
        raise ConfigError(f"a command is one line without control characters, not {quote(line)}")
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"cannot read {quote(line)}: {str(error).lower()}") from None


def _choose(commands: dict[str, Command], words: list[str]) -> tuple[Command, list[str]]:
    """The command with the longest name that the words begin with, and the other words."""
    size_max = max(len(name.split()) for name in commands)
    for size in range(min(size_max, len(words)), 0, -1):
        found = commands.get(" ".join(words[:size]))
        if found is not None:
            return found, words[size:]
    raise ConfigError(_unknown(commands, words))


def _unknown(commands: dict[str, Command], words: list[str]) -> str:
    family = [name for name in commands if name.startswith(f"{words[0]} ")]
    if family and len(words) == 1:
        return f"{words[0]!r} alone is no command; there is {_either(family)}"
    said = " ".join(words[:2])
    near = (
        difflib.get_close_matches(said[:100], commands, n=1)
        or family
        or difflib.get_close_matches(words[0][:100], commands, n=1)
    )
    hint = f"did you mean {_either(near)}?" if near else "try 'help'"
    return f"no command {quote(said if family else words[0])}; {hint}"


def _either(choices: list[str]) -> str:
    return " or ".join(map(repr, choices))


def _help(commands: dict[str, Command], words: list[str]) -> str:
    if words:
        chosen = [it for it in commands.values() if _begins(it.name.split(), words)]
        if not chosen:
            raise ConfigError(_unknown(commands, words))
        return "\n\n".join(f"usage: {it.synopsis}\n{it.help}" for it in chosen)
    rows = [(it.synopsis, it.help.split("\n")[0]) for it in commands.values()]
    rows.append(("help [COMMAND]", "What can be said, or how."))
    width = max(len(synopsis) for synopsis, _ in rows)
    return "\n".join(f"{synopsis.ljust(width)}  {text}" for synopsis, text in rows)


def _begins(name: list[str], words: list[str]) -> bool:
    return name[: len(words)] == words


def _fit(answer: object) -> str:
    """An answer that is not too long for a message: whole lines, and how many were left out."""
    text = "" if answer is None else str(answer)
    if len(text) <= _ANSWER_CHARACTERS_MAX:
        return text
    shown = text[:_ANSWER_CHARACTERS_MAX].rpartition("\n")[0] or text[:_ANSWER_CHARACTERS_MAX]
    left_out = text.count("\n") - shown.count("\n")
    return f"{shown}\n({left_out} more lines; ask for less)"


async def _fit_later(answer: Awaitable[str]) -> str:
    return _fit(await answer)
