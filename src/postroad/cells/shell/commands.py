"""Text commands that cells answer: what operators type, parsed and explained in one place.

A command is a method marked with `command`, of the cell or of one of its `command_sets`. Words that
begin with `-` are options, `-type=queue` or just `-f`, and go to keyword-only parameters; all
others go to positional ones, and so does everything after `--`. Parameters that are annotated as
`int` or `float` get numbers.
"""

from __future__ import annotations

import difflib
import inspect
import keyword
import math
import shlex
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from postroad.cells.addresses import CellPath
from postroad.cells.shell.views import describe_cell, one_line
from postroad.core.errors import ConfigError
from postroad.core.limits import MIB

_SHOWN_CHARACTERS_MAX = 60
_TIMEOUT_MAX_S = 60.0

_Parameters: TypeAlias = dict[str, inspect.Parameter]


def bind_arguments(
    method: Callable[..., Any], words: list[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments for a method; raises ConfigError if they do not fit."""
    parameters = inspect.signature(method).parameters
    named = {
        _option_name(name): parameter
        for name, parameter in parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    positional_words, options = _sort_words(words, named)
    positional = [
        parameter
        for parameter in parameters.values()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    return _bind_plain(positional, positional_words), options


def quote(text: str) -> str:
    """What somebody wrote, for an error: printable and not too long."""
    return repr(one_line(text, _SHOWN_CHARACTERS_MAX))


def parse_path(text: str) -> CellPath:
    """A path that leads somewhere; raises ConfigError if it is none."""
    path = CellPath.parse(text)
    if not path:
        raise ConfigError("PATH is empty; write cell@domain, or a name")
    return path


def check_seconds(timeout_s: float) -> None:
    """Refuse a time nobody would wait for; raises ConfigError."""
    if not 0 < timeout_s <= _TIMEOUT_MAX_S:
        raise ConfigError(
            f"-timeout={timeout_s:g} must be above 0 and at most {_TIMEOUT_MAX_S:g} seconds"
        )


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Refuse a number that is too small or too large; raises ConfigError."""
    if not least <= value <= most:
        raise ConfigError(f"{name}={one_line(value, 20)} must be {least} to {most}")


def _option_name(parameter: str) -> str:
    """`from_` is written `-from`: Python keeps the word for itself."""
    bare = parameter.removesuffix("_")
    return bare if keyword.iskeyword(bare) else parameter


def _sort_words(words: list[str], named: _Parameters) -> tuple[list[str], dict[str, Any]]:
    positional_words: list[str] = []
    options: dict[str, Any] = {}
    for index, word in enumerate(words):
        if word == "--":
            return positional_words + words[index + 1 :], options
        if word.startswith("-") and len(word) > 1:
            _add_option(word, named, options)
        else:
            positional_words.append(word)
    return positional_words, options


def _add_option(word: str, named: _Parameters, options: dict[str, Any]) -> None:
    name, equals, value = word.lstrip("-").partition("=")
    if not name:
        raise ConfigError(f"option {quote(word)} has no name")
    parameter = named.get(name)
    if parameter is None:
        raise ConfigError(_no_option(name, list(named)))
    if parameter.name in options:
        raise ConfigError(f"option -{name} is given twice")
    is_flag = _kind_of(parameter) == "bool"
    if is_flag and equals:
        raise ConfigError(f"option -{name} takes no value")
    if not is_flag and not value:
        raise ConfigError(f"option -{name} needs a value: -{name}=...")
    options[parameter.name] = True if is_flag else _convert(f"-{name}", parameter, value)


def _no_option(name: str, names: list[str]) -> str:
    similar = difflib.get_close_matches(name[:_SHOWN_CHARACTERS_MAX], names, n=1, cutoff=0.5)
    hint = f", did you mean -{similar[0]}?" if similar else ""
    return f"no option {quote('-' + name)}{hint}"


def _bind_plain(positional: list[inspect.Parameter], words: list[str]) -> list[Any]:
    takes_more = bool(positional) and positional[-1].kind is inspect.Parameter.VAR_POSITIONAL
    single = positional[:-1] if takes_more else positional
    if len(words) > len(single) and not takes_more:
        raise ConfigError(f"{quote(words[len(single)])} is too much")
    missing = [
        parameter for parameter in single[len(words) :] if parameter.default is parameter.empty
    ]
    if missing:
        raise ConfigError(f"{missing[0].name.upper()} is missing")
    bound = [
        _convert(parameter.name.upper(), parameter, word)
        for parameter, word in zip(single, words, strict=False)
    ]
    return bound + words[len(single) :]


def _kind_of(parameter: inspect.Parameter) -> str:
    """Its type without `None`, as it is written; annotations may be types or their texts."""
    annotation = parameter.annotation
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return text.removesuffix(" | None")


def _convert(name: str, parameter: inspect.Parameter, word: str) -> Any:
    reader, expected = _READERS.get(_kind_of(parameter), (str, "a text"))
    try:
        return reader(word)
    except ValueError:
        raise ConfigError(f"{name} must be {expected}, not {quote(word)}") from None


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(word)
    return number


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "float": (_finite, "a number"),
    "int": (int, "a whole number"),
}


_MARK = "_postroad_command"
_LINE_CHARACTERS_MAX = 4_096
# An answer is one message, and may have to fit into one that carries little.
_OUTPUT_CHARACTERS_MAX = MIB // 4

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
    commands = {info.name: info}
    for owner in (*getattr(cell, "command_sets", ()), cell):
        commands |= {command.name: command for command in _marked_in(owner)}
    return dict(sorted(commands.items()))


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
    output = chosen.method(*positional, **options)
    return _fit_later(output) if isinstance(output, Awaitable) else _fit(output)


def _marked_in(owner: Any) -> Iterator[Command]:
    for attribute, name, usage, help, is_read in _marks_of(type(owner)):
        yield Command(name, usage, help, getattr(owner, attribute), is_read)


def _marks_of(kind: type) -> list[_Mark]:
    marks = _marks.get(kind)
    if marks is None:
        marks = _marks[kind] = list(_find_marks(kind))
    return marks


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
        match = commands.get(" ".join(words[:size]))
        if match is not None:
            return match, words[size:]
    raise ConfigError(_unknown(commands, words))


def _unknown(commands: dict[str, Command], words: list[str]) -> str:
    subcommands = [name for name in commands if name.startswith(f"{words[0]} ")]
    if subcommands and len(words) == 1:
        return f"{words[0]!r} alone is no command; there is {_join_alternatives(subcommands)}"
    typed = " ".join(words[:2])
    similar = (
        difflib.get_close_matches(typed[:100], commands, n=1)
        or subcommands
        or difflib.get_close_matches(words[0][:100], commands, n=1)
    )
    hint = f"did you mean {_join_alternatives(similar)}?" if similar else "try 'help'"
    return f"no command {quote(typed if subcommands else words[0])}; {hint}"


def _join_alternatives(names: list[str]) -> str:
    return " or ".join(map(repr, names))


def _help(commands: dict[str, Command], words: list[str]) -> str:
    if words:
        chosen = [command for command in commands.values() if _begins(command.name.split(), words)]
        if not chosen:
            raise ConfigError(_unknown(commands, words))
        return "\n\n".join(f"usage: {command.synopsis}\n{command.help}" for command in chosen)
    rows = [(command.synopsis, command.help.split("\n")[0]) for command in commands.values()]
    rows.append(("help [COMMAND]", "What can be said, or how."))
    width = max(len(synopsis) for synopsis, _ in rows)
    return "\n".join(f"{synopsis.ljust(width)}  {text}" for synopsis, text in rows)


def _begins(name: list[str], words: list[str]) -> bool:
    return name[: len(words)] == words


def _fit(output: object) -> str:
    """An answer that is not too long for a message: whole lines, and how many were left out."""
    text = "" if output is None else str(output)
    if len(text) <= _OUTPUT_CHARACTERS_MAX:
        return text
    shown = text[:_OUTPUT_CHARACTERS_MAX].rpartition("\n")[0] or text[:_OUTPUT_CHARACTERS_MAX]
    omitted = text.count("\n") - shown.count("\n")
    return f"{shown}\n({omitted} more lines; ask for less)"


async def _fit_later(output: Awaitable[str]) -> str:
    return _fit(await output)
