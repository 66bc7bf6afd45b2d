"""Text commands of cells: declaration, parsing, help.

A command is a method marked with `command`, of the cell or of one of its `command_sets`. Words that
start with `-` are options, `-type=queue` or just `-f`, and are bound to keyword-only parameters;
all other words, and all words after `--`, are bound to positional parameters. Parameters that are
annotated as `int` or `float` get numbers.
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

from postroad.cells.shell.views import describe_cell, one_line
from postroad.core.errors import ConfigError
from postroad.core.limits import MIB

_SHOWN_CHARACTERS_MAX = 60
_TIMEOUT_MAX_S = 60.0

_Parameters: TypeAlias = dict[str, inspect.Parameter]


def bind_arguments(
    method: Callable[..., Any], words: list[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments of a method; raises ConfigError if invalid."""
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
    """Return user input for an error message: quoted, printable and truncated."""
    return repr(one_line(text, _SHOWN_CHARACTERS_MAX))


def check_seconds(timeout_s: float) -> None:
    """Check the option `-timeout`; raises ConfigError if it is out of range."""
    if not 0 < timeout_s <= _TIMEOUT_MAX_S:
        raise ConfigError(
            f"-timeout={timeout_s:g} must be above 0 and at most {_TIMEOUT_MAX_S:g} seconds"
        )


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Check an option with a number; raises ConfigError if it is out of range."""
    if not least <= value <= most:
        raise ConfigError(f"{name}={one_line(value, 20)} must be {least} to {most}")


def _option_name(parameter: str) -> str:
    """Return the option of a parameter: `from_` is `-from`, because `from` is a keyword."""
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
        raise ConfigError(f"duplicate option -{name}")
    is_flag = _kind_of(parameter) == "bool"
    if is_flag and equals:
        raise ConfigError(f"option -{name} takes no value")
    if not is_flag and not value:
        raise ConfigError(f"option -{name} needs a value: -{name}=...")
    options[parameter.name] = True if is_flag else _convert(f"-{name}", parameter, value)


def _no_option(name: str, names: list[str]) -> str:
    similar = difflib.get_close_matches(name[:_SHOWN_CHARACTERS_MAX], names, n=1, cutoff=0.5)
    hint = f", did you mean -{similar[0]}?" if similar else ""
    return f"unknown option {quote('-' + name)}{hint}"


def _bind_plain(positional: list[inspect.Parameter], words: list[str]) -> list[Any]:
    takes_more = bool(positional) and positional[-1].kind is inspect.Parameter.VAR_POSITIONAL
    single = positional[:-1] if takes_more else positional
    if len(words) > len(single) and not takes_more:
        raise ConfigError(f"unexpected argument {quote(words[len(single)])}")
    missing = [
        parameter for parameter in single[len(words) :] if parameter.default is parameter.empty
    ]
    if missing:
        raise ConfigError(f"missing argument {missing[0].name.upper()}")
    bound = [
        _convert(parameter.name.upper(), parameter, word)
        for parameter, word in zip(single, words, strict=False)
    ]
    return bound + words[len(single) :]


def _kind_of(parameter: inspect.Parameter) -> str:
    """Return the name of the annotated type without `None`; annotations may be strings."""
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
# The output is one message, and services may limit messages to less than the default.
_OUTPUT_CHARACTERS_MAX = MIB // 4

F = TypeVar("F", bound=Callable[..., Any])

# Method name of a command, and its name, usage, help, and whether it is read-only.
_Mark: TypeAlias = tuple[str, str, str, str, bool]
_marks: WeakKeyDictionary[type, list[_Mark]] = WeakKeyDictionary()


class Command(NamedTuple):
    """One command of a cell."""

    name: str
    usage: str
    help: str
    method: Callable[..., str | Awaitable[str]]
    is_read: bool = False
    """Whether the command is read-only."""

    @property
    def synopsis(self) -> str:
        """Name and usage."""
        return f"{self.name} {self.usage}".rstrip()


def command(name: str, usage: str = "", *, help: str, is_read: bool = False) -> Callable[[F], F]:
    """Mark a method of a cell as a command; it returns text, or a coroutine that does.

    Args:
        name: the words that operators type.
        usage: arguments and options, for the help.
        help: description; its first line is listed by `help`.
        is_read: whether it is read-only; other domains may be allowed such commands only.
    """

    def mark(method: F) -> F:
        setattr(method, _MARK, (name, usage, help, is_read))
        return method

    return mark


def commands_of(cell: Any) -> dict[str, Command]:
    """Return the commands of a cell by name, sorted; every cell has `info`."""
    help = "Description, state and mailbox of the cell."
    info = Command("info", "", help, partial(describe_cell, cell), is_read=True)
    commands = {info.name: info}
    for owner in (*getattr(cell, "command_sets", ()), cell):
        commands |= {command.name: command for command in _marked_in(owner)}
    return dict(sorted(commands.items()))


def is_read_command(cell: Any, line: str) -> bool:
    """Return whether a command is read-only; an unknown command changes nothing either."""
    try:
        words = _split(line)
        return not words or words[0] == "help" or _choose(commands_of(cell), words)[0].is_read
    except ConfigError:
        return True


def run_command(cell: Any, line: str) -> str | Awaitable[str]:
    """Run a command of a cell; raises ConfigError with the usage if it is invalid."""
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
    return _truncate_later(output) if isinstance(output, Awaitable) else _truncate(output)


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
            f"command of {len(line)} characters is longer than {_LINE_CHARACTERS_MAX}"
        )
    if not line.replace("\t", " ").strip().isprintable():
        raise ConfigError(
            f"a command must be one line without control characters, not {quote(line)}"
        )
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"cannot parse command {quote(line)}: {str(error).lower()}") from None


def _choose(commands: dict[str, Command], words: list[str]) -> tuple[Command, list[str]]:
    """Return the command with the longest name that matches the first words, and the rest."""
    size_max = max(len(name.split()) for name in commands)
    for size in range(min(size_max, len(words)), 0, -1):
        match = commands.get(" ".join(words[:size]))
        if match is not None:
            return match, words[size:]
    raise ConfigError(_unknown(commands, words))


def _unknown(commands: dict[str, Command], words: list[str]) -> str:
    subcommands = [name for name in commands if name.startswith(f"{words[0]} ")]
    if subcommands and len(words) == 1:
        return f"incomplete command {words[0]!r}: use {_join_alternatives(subcommands)}"
    typed = " ".join(words[:2])
    similar = (
        difflib.get_close_matches(typed[:100], commands, n=1)
        or subcommands
        or difflib.get_close_matches(words[0][:100], commands, n=1)
    )
    hint = f"did you mean {_join_alternatives(similar)}?" if similar else "try 'help'"
    return f"unknown command {quote(typed if subcommands else words[0])}; {hint}"


def _join_alternatives(names: list[str]) -> str:
    return " or ".join(map(repr, names))


def _help(commands: dict[str, Command], words: list[str]) -> str:
    if words:
        chosen = [
            command for command in commands.values() if _starts_with(command.name.split(), words)
        ]
        if not chosen:
            raise ConfigError(_unknown(commands, words))
        return "\n\n".join(f"usage: {command.synopsis}\n{command.help}" for command in chosen)
    rows = [(command.synopsis, command.help.split("\n")[0]) for command in commands.values()]
    rows.append(("help [COMMAND]", "List the commands, or show the help of one."))
    width = max(len(synopsis) for synopsis, _ in rows)
    return "\n".join(f"{synopsis.ljust(width)}  {text}" for synopsis, text in rows)


def _starts_with(name: list[str], words: list[str]) -> bool:
    return name[: len(words)] == words


def _truncate(output: object) -> str:
    """Return output that fits into a message: whole lines, and the number of omitted ones."""
    text = "" if output is None else str(output)
    if len(text) <= _OUTPUT_CHARACTERS_MAX:
        return text
    shown = text[:_OUTPUT_CHARACTERS_MAX].rpartition("\n")[0] or text[:_OUTPUT_CHARACTERS_MAX]
    omitted = text.count("\n") - shown.count("\n")
    return f"{shown}\n({omitted} more lines omitted)"


async def _truncate_later(output: Awaitable[str]) -> str:
    return _truncate(await output)
