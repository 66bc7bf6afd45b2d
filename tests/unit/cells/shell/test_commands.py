"""Operators' commands: chosen, explained, and refused with what to write instead."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.cells.shell.commands import command, commands_of, is_read_command, run_command
from postroad.core.errors import ConfigError
from postroad.core.operations import Effect, Operations

HOUSE = Operations()


@HOUSE.operation("cells.paint", Effect.CHANGE)
async def paint(house: str, color: str = "white") -> str:
    """Paint the house."""
    return f"{house} is {color}"


class Desk:
    domain_operations = (HOUSE,)
    domain = "the house"

    @command("lamp on")
    def light(self, name: str) -> str:
        """Light a lamp.

        It stays lit.
        """
        return f"{name} is lit"

    @command("lamp ls", is_read=True)
    def show(self) -> list[str]:
        """List all lamps."""
        return ["red", "green"]

    @command("add")
    def add(
        self, a: int, b: int = 0, times: int = 1, share: float | None = None, loud: bool = False
    ) -> str:
        """Add numbers."""
        return f"{(a + b) * times} {share} {loud}"

    @command("say")
    async def say(self, words: list[str], sender: str | None = None) -> str:
        """Say it."""
        return f"{sender}: {'|'.join(words)}"

    @command("long")
    def long(self) -> str:
        """Return a long text."""
        return "\n".join(["line"] * 100_000)

    @command("none")
    def none(self) -> None:
        """Return nothing."""

    @command("number")
    async def number(self):  # type: ignore[no-untyped-def]  # Users may leave annotations out.
        return 5

    @command("fail")
    def fail(self) -> str:
        """Fail."""
        raise RuntimeError("it broke")

    def unmarked(self) -> str:
        raise AssertionError("this is no command")


def run(line: str, cell: Any = None) -> str:
    return asyncio.run(run_command(cell or Desk(), line))


def refusal(line: str) -> str:
    with pytest.raises(ConfigError) as caught:
        run(line)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("add 1", "1 None False"),
        ("add 1 2", "3 None False"),
        ("  add\t1   2 ", "3 None False"),
        ("add -times=2 1 2", "6 None False"),
        ("add 1 2 --times=2 -loud", "6 None True"),
        ("add 1 -share=0.5", "1 0.5 False"),
        ("add 1 -- -2", "-1 None False"),
        ("lamp on 'the red one'", "the red one is lit"),
        ("lamp on -name=red", "red is lit"),
        ("lamp on -", "- is lit"),
        ("lamp ls", "red\ngreen"),
        ("say a 'b c' -sender=me d", "me: a|b c|d"),
        ("say -sender=a=b -- -sender=c", "a=b: -sender=c"),
        ("paint", "the house is white"),
        ("paint red", "the house is red"),
        ("none", ""),
        ("number", "5"),
    ],
)
def test_command_with_arguments_and_options_returns_text(line: str, output: str) -> None:
    assert run(line) == output


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("ad 1", "unknown command 'ad'; did you mean 'add'?"),
        ("xyzzy", "unknown command 'xyzzy'; try 'help'"),
        ("lamp", "incomplete command 'lamp': use 'lamp ls' or 'lamp on'"),
        ("lamp lss", "unknown command 'lamp lss'; did you mean 'lamp ls'?"),
        ("lamp zzzzzzzz", "unknown command 'lamp zzzzzzzz'; did you mean 'lamp ls' or 'lamp on'?"),
        ("unmarked", "unknown command 'unmarked'; try 'help'"),
        ("__init__", "unknown command '__init__'; try 'help'"),
        ("-=", "unknown command '-='; try 'help'"),
        ("lamp on", "lamp on: `name` is missing; usage: lamp on NAME"),
        ("lamp on a b", "unexpected argument 'b'; usage: lamp on NAME"),
        ("lamp ls -x", "lamp ls has no parameter 'x'; it has none; usage: lamp ls"),
        ("lamp on 'a", 'cannot parse command "lamp on \'a": no closing quotation'),
        ("lamp on a\\", "cannot parse command 'lamp on a\\\\': no escaped character"),
        ("lamp on a\0b", "a command must be one line without control characters, not 'lamp on"),
        ("lamp on a\nlamp ls", "a command must be one line without control characters, not "),
        ("lamp on a\x1b[2J", "a command must be one line without control characters, not "),
        ("help nothing", "unknown command 'nothing'; try 'help'"),
        ("add x", "add: a: Expected `int`, got `str`; usage: add A [-b=B] [-times=TIMES]"),
        ("add 1 -tims=2", "add has no parameter 'tims'; did you mean 'times'?; usage: "),
        ("add 1 -times", "add: times: Expected `int`, got `bool`; usage: "),
        ("add 1 -times=", "add: times: Expected `int`, got `str`; usage: "),
        ("add 1 -times=2 -times=2", "duplicate option -times; usage: "),
        ("add 1 -loud=yes", "add: loud: Expected `bool`, got `str`; usage: "),
        ("add 1 -=3", "add has no parameter ''; it has a, b, times, share, loud; usage: "),
        ("add 1 -share=1e999", "add: share: Number out of range; usage: "),
        ("x" * 4_096, f"unknown command '{'x' * 57}...'; try 'help'"),
        ("lamp ls " + "y" * 4_000, f"unexpected argument '{'y' * 57}...'; usage: lamp ls"),
        ("z" * 1_000_000, "command of 1000000 characters is longer than 4096"),
    ],
)
def test_invalid_command_is_refused_with_its_usage(line: str, text: str) -> None:
    assert refusal(line).startswith(text)


def test_help_lists_all_commands_in_order_or_explains_one() -> None:
    for line in ["", "  ", "help"]:
        assert run(line).splitlines() == [
            "add A [-b=B] [-times=TIMES] [-share=SHARE] [-loud]  Add numbers.",
            "fail                                                Fail.",
            "info                                                "
            "Show description, state and mailbox of the cell.",
            "lamp ls                                             List all lamps.",
            "lamp on NAME                                        Light a lamp.",
            "long                                                Return a long text.",
            "none                                                Return nothing.",
            "number",
            "paint [-color=COLOR]                                Paint the house.",
            "say WORDS... [-sender=SENDER]                       Say it.",
            "help [COMMAND]                                      "
            "List the commands, or show the help of one.",
        ], line

    on = "usage: lamp on NAME\nLight a lamp.\n\nIt stays lit."
    assert run("help lamp on") == on
    assert run("help lamp") == f"usage: lamp ls\nList all lamps.\n\n{on}"


def test_cell_with_info_of_its_own_keeps_it() -> None:
    class Told(Desk):
        @command("info")
        def info(self) -> str:
            """Mine."""
            return "my own"

    assert run("info", Told()) == "my own"
    assert commands_of(Told())["info"].help == "Mine."


def test_commands_are_read_only_where_they_are_marked_so() -> None:
    lines = ["lamp ls", "lamp on a", "paint", "info", "", "help", "no such command", "'"]
    assert [line for line in lines if not is_read_command(Desk(), line)] == ["lamp on a", "paint"]


def test_command_with_variable_arguments_is_rejected_where_it_is_declared() -> None:
    with pytest.raises(ConfigError, match=r"'shout' takes \*args or \*\*kwargs: declare a list"):

        @command("shout")
        def shout(self: object, *words: str) -> str:
            raise AssertionError("it is never run")


def test_long_output_is_cut_at_a_line_and_errors_pass() -> None:
    *lines, note = run("long").splitlines()
    assert set(lines) == {"line"}
    assert note == f"({100_000 - len(lines)} more lines omitted)"
    assert len(lines) * 5 <= 256 * 1024

    with pytest.raises(RuntimeError, match="it broke"):
        run("fail")


@given(st.text(max_size=200) | st.text(alphabet="-='\" \\addlmpons1\0\n", max_size=40))
def test_any_line_is_run_or_refused(line: str) -> None:
    coroutine = run_command(SimpleNamespace() if not line else Desk(), line)
    try:
        coroutine.send(None)
    except ConfigError as error:
        assert str(error).isprintable()
    except RuntimeError:
        assert line.split() == ["fail"]
    except StopIteration as done:
        assert isinstance(done.value, str)
