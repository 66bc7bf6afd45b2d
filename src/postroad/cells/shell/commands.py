"""Text commands of cells: tables of operations whose parameters are words of a line.

Words fill the parameters of an operation in order, and `-count=3` or the flag `-json` sets one by
name; words after `--` are never options. Usage and help come from signature and docstring.
"""

from __future__ import annotations

import difflib
import inspect
import shlex
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_origin
from weakref import WeakKeyDictionary

import msgspec

from postroad.cells.shell.views import describe_cell, one_line, render
from postroad.core.errors import ConfigError
from postroad.core.limits import MIB
from postroad.core.operations import Effect, Operation, Operations, Parameter

_SHOWN_CHARACTERS_MAX = 60
_MARK = "_postroad_command"
_LINE_CHARACTERS_MAX = 4_096
# The output is one message, and services may limit messages to less than the default.
_OUTPUT_CHARACTERS_MAX = MIB // 4

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS = Operations()
_DEFAULTS.operation("info")(describe_cell)
_tables: WeakKeyDictionary[type, Operations] = WeakKeyDictionary()


def command(name: str, *, is_read: bool = False) -> Callable[[F], F]:
    """Mark a method of a cell as a command; it returns text or another value, or a coroutine.

    Its parameters are read from the words that follow; `list[str]` takes all the rest. Its
    docstring is its help, and the first line of it is listed.

    Args:
        name: the words that operators type.
        is_read: whether it is read-only; other domains may be allowed such commands only.
    """

    def mark(method: F) -> F:
        kinds = {parameter.kind for parameter in inspect.signature(method).parameters.values()}
        if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            raise ConfigError(f"command {name!r} takes *args or **kwargs: declare a list[str]")
        setattr(method, _MARK, (name, Effect.READ if is_read else Effect.CHANGE))
        return method

    return mark


def commands_of(cell: Any) -> Operations:
    """Return the commands of a cell by name; every cell has `info`."""
    kind = type(cell)
    table = _tables.get(kind)
    if table is None:
        table = _tables[kind] = Operations()
        for attribute in dir(kind):
            method: Any = inspect.getattr_static(kind, attribute, None)
            if mark := getattr(method, _MARK, None):
                table.operation(*mark)(method)
        for others in getattr(kind, "domain_operations", ()):
            table.include(others, lambda cell: cell.domain, _text_name)
        table.include(_DEFAULTS, lambda cell: cell)
    return table


def is_read_command(cell: Any, line: str) -> bool:
    """Return whether a command is read-only; an unknown command changes nothing either."""
    try:
        words = _split(line)
        return not words or words[0] == "help" or _choose(commands_of(cell), words)[0].is_read
    except ConfigError:
        return True


async def run_command(cell: Any, line: str) -> str:
    """Run a command of a cell; raises ConfigError with the usage if it is invalid."""
    words = _split(line)
    commands = commands_of(cell)
    if not words or words[0] == "help":
        return _help(commands, words[1:])
    operation, arguments = _choose(commands, words)
    try:
        params = operation.read_params(_bind(operation, arguments), strict=False)
    except ConfigError as error:
        raise ConfigError(f"{one_line(error)}; usage: {_usage(operation)}") from None
    result: Any = operation.run(cell, **msgspec.structs.asdict(params))
    return _truncate(render(await result if isinstance(result, Awaitable) else result))


def quote(text: str) -> str:
    """Return user input for an error message: quoted, printable and truncated."""
    return repr(one_line(text, _SHOWN_CHARACTERS_MAX))


def _text_name(name: str) -> str:
    """Return what operators type for an operation of a domain: `cells.ps` is `ps`."""
    return name.removeprefix("cells.").replace(".", " ")


# Lines.


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


def _choose(commands: Operations, words: list[str]) -> tuple[Operation, list[str]]:
    """Return the command with the longest name that matches the first words, and the rest."""
    for size in range(len(words), 0, -1):
        match = commands.get(" ".join(words[:size]))
        if match is not None:
            return match, words[size:]
    raise ConfigError(_unknown(commands, words))


def _unknown(commands: Operations, words: list[str]) -> str:
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


def _bind(operation: Operation, words: list[str]) -> dict[str, Any]:
    """Return the words by the parameters that they are for."""
    plain: list[str] = []
    values: dict[str, Any] = {}
    for index, word in enumerate(words):
        if word == "--":
            plain += words[index + 1 :]
            break
        if not word.startswith("-") or len(word) == 1:
            plain.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name in values:
            raise ConfigError(f"duplicate option -{name}")
        values[name] = value if equals else True
    for parameter in operation.parameters:
        if not plain or parameter.name in values or parameter.type is bool:
            continue
        values[parameter.name] = plain if _is_list(parameter) else plain[0]
        plain = [] if _is_list(parameter) else plain[1:]
    if plain:
        raise ConfigError(f"unexpected argument {quote(plain[0])}")
    return values


def _is_list(parameter: Parameter) -> bool:
    return get_origin(parameter.type) is list


# Help.


def _usage(operation: Operation) -> str:
    return " ".join((operation.name, *map(_placeholder, operation.parameters)))


def _placeholder(parameter: Parameter) -> str:
    title = parameter.name.upper()
    if parameter.type is bool:
        return f"[-{parameter.name}]"
    if not parameter.is_required:
        return f"[-{parameter.name}={title}]"
    return f"{title}..." if _is_list(parameter) else title


def _help(commands: Operations, words: list[str]) -> str:
    if words:
        chosen = [
            operation for name, operation in commands.items() if name.split()[: len(words)] == words
        ]
        if not chosen:
            raise ConfigError(_unknown(commands, words))
        return "\n\n".join(f"usage: {_usage(each)}\n{each.help}" for each in chosen)
    rows = [(_usage(operation), operation.summary) for operation in commands.values()]
    rows.append(("help [COMMAND]", "List the commands, or show the help of one."))
    width = max(len(usage) for usage, _ in rows)
    return "\n".join(f"{usage.ljust(width)}  {text}".rstrip() for usage, text in rows)


def _truncate(text: str) -> str:
    """Return output that fits into a message: whole lines, and the number of omitted ones."""
    if len(text) <= _OUTPUT_CHARACTERS_MAX:
        return text
    shown = text[:_OUTPUT_CHARACTERS_MAX].rpartition("\n")[0] or text[:_OUTPUT_CHARACTERS_MAX]
    omitted = text.count("\n") - shown.count("\n")
    return f"{shown}\n({omitted} more lines omitted)"
