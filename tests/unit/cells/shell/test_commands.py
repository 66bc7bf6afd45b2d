"""Operators' commands: chosen, explained, and refused with what to write instead."""

from collections.abc import Awaitable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.cells.shell.commands import bind_arguments, command, commands_of, run_command
from postroad.core.errors import ConfigError


class Lamps:
    @command("lamp on", "NAME", help="Light a lamp.\nIt stays lit.")
    def light(self, name: str) -> str:
        return f"{name} is lit"

    @command("lamp ls", help="All lamps.")
    def show(self) -> str:
        return "red\ngreen"


class Desk:
    def __init__(self) -> None:
        self.command_sets = (Lamps(),)

    @command("add", "A B [-times=N] [-share=X] [-loud]", help="Add numbers.")
    def add(
        self, a: int, b: int = 0, *, times: int = 1, share: float | None = None, loud: bool = False
    ) -> str:
        return f"{(a + b) * times} {share} {loud}"

    @command("say", "[-from=WHO] WORD...", help="Say it.")
    async def say(self, *words: str, from_: str | None = None) -> str:
        return f"{from_}: {'|'.join(words)}"

    @command("long", help="A long answer.")
    def long(self) -> str:
        return "\n".join(["line"] * 100_000)

    @command("fail", help="Fail.")
    def fail(self) -> str:
        raise RuntimeError("it broke")

    def unmarked(self) -> str:
        raise AssertionError("this is no command")


def run(line: str) -> str:
    answer = run_command(Desk(), line)
    assert isinstance(answer, str)
    return answer


async def run_later(line: str) -> str:
    answer = run_command(Desk(), line)
    assert isinstance(answer, Awaitable)
    return await answer


def refusal(line: str) -> str:
    with pytest.raises(ConfigError) as caught:
        run_command(Desk(), line)
    return str(caught.value)


async def test_arguments_and_options() -> None:
    for line, answer in [
        ("add 1", "1 None False"),
        ("add 1 2", "3 None False"),
        ("  add\t1   2 ", "3 None False"),
        ("add -times=2 1 2", "6 None False"),
        ("add 1 2 --times=2 -loud", "6 None True"),
        ("add 1 -share=0.5", "1 0.5 False"),
        ("add 1 -- -2", "-1 None False"),
        ("lamp on 'the red one'", "the red one is lit"),
        ("lamp on -", "- is lit"),
        ("lamp ls", "red\ngreen"),
    ]:
        assert run(line) == answer, line

    for line, answer in [
        ("say", "None: "),
        ("say a 'b c' -from=me d", "me: a|b c|d"),
        ("say -from=a=b -- -from=c", "a=b: -from=c"),
    ]:
        assert await run_later(line) == answer, line


def test_what_is_refused_is_told_with_the_usage_and_not_at_length() -> None:
    for line, text in [
        ("ad 1", "unknown command 'ad'; did you mean 'add'?"),
        ("xyzzy", "unknown command 'xyzzy'; try 'help'"),
        ("lamp", "incomplete command 'lamp': use 'lamp ls' or 'lamp on'"),
        ("lamp lss", "unknown command 'lamp lss'; did you mean 'lamp ls'?"),
        ("lamp zzzzzzzz", "unknown command 'lamp zzzzzzzz'; did you mean 'lamp ls' or 'lamp on'?"),
        ("unmarked", "unknown command 'unmarked'; try 'help'"),
        ("__init__", "unknown command '__init__'; try 'help'"),
        ("-=", "unknown command '-='; try 'help'"),
        ("lamp on", "missing argument NAME; usage: lamp on NAME"),
        ("lamp on a b", "unexpected argument 'b'; usage: lamp on NAME"),
        ("lamp ls -x", "unknown option '-x'; usage: lamp ls"),
        ("lamp on -name=a", "unknown option '-name'; usage: lamp on NAME"),
        ("lamp on 'a", 'cannot parse command "lamp on \'a": no closing quotation'),
        ("lamp on a\\", "cannot parse command 'lamp on a\\\\': no escaped character"),
        (
            "lamp on a\0b",
            "a command must be one line without control characters, not 'lamp on a?b'",
        ),
        ("lamp on a\nlamp ls", "a command must be one line without control characters, not "),
        ("lamp on a\x1b[2J", "a command must be one line without control characters, not "),
        ("help nothing", "unknown command 'nothing'; try 'help'"),
    ]:
        assert refusal(line).startswith(text), line

    for words, text in [
        ("x", "A must be a whole number, not 'x'"),
        ("1.5", "A must be a whole number, not '1.5'"),
        ("1 -tims=2", "unknown option '-tims', did you mean -times?"),
        ("1 -times", "option -times needs a value: -times=..."),
        ("1 -times=", "option -times needs a value: -times=..."),
        ("1 -times=2 -times=2", "duplicate option -times"),
        ("1 -loud -loud", "duplicate option -loud"),
        ("1 -loud=yes", "option -loud takes no value"),
        ("1 -=", "option '-=' has no name"),
        ("1 -=3", "option '-=3' has no name"),
        ("1 ---", "option '---' has no name"),
        ("1 -share=nan", "-share must be a number, not 'nan'"),
        ("1 -share=1e999", "-share must be a number, not '1e999'"),
        ("1 -share=x", "-share must be a number, not 'x'"),
    ]:
        assert refusal(f"add {words}") == f"{text}; usage: add A B [-times=N] [-share=X] [-loud]", (
            words
        )

    assert refusal("x" * 4_096) == f"unknown command '{'x' * 57}...'; try 'help'"
    assert (
        refusal("lamp ls " + "y" * 4_000) == f"unexpected argument '{'y' * 57}...'; usage: lamp ls"
    )
    assert refusal("z" * 1_000_000) == ("command of 1000000 characters is longer than 4096")


def test_help_lists_all_commands_in_order_or_one() -> None:
    for line in ["", "  ", "help"]:
        assert run(line).splitlines() == [
            "add A B [-times=N] [-share=X] [-loud]  Add numbers.",
            "fail                                   Fail.",
            "info                                   Description, state and mailbox of the cell.",
            "lamp ls                                All lamps.",
            "lamp on NAME                           Light a lamp.",
            "long                                   A long answer.",
            "say [-from=WHO] WORD...                Say it.",
            "help [COMMAND]                         List the commands, or show the help of one.",
        ], line

    on = "usage: lamp on NAME\nLight a lamp.\nIt stays lit."
    assert run("help lamp on") == on
    assert run("help lamp") == f"usage: lamp ls\nAll lamps.\n\n{on}"


def test_a_cell_may_define_info_and_its_annotations_as_it_likes() -> None:
    class Told(Desk):
        @command("info", help="Mine.")
        def info(self) -> str:
            return "my own"

    assert run_command(Told(), "info") == "my own"
    assert commands_of(Told())["info"].help == "Mine."

    def method(a: object, *, n: object = 0, f: object = False) -> None:
        raise AssertionError("it is only looked at")

    method.__annotations__.update(a=int, n=int | None, f=bool)
    assert bind_arguments(method, ["1", "-n=2", "-f"]) == ([1], {"n": 2, "f": True})
    method.__annotations__.update(a="int", n="float | None", f="bool")
    assert bind_arguments(method, ["1", "-n=2"]) == ([1], {"n": 2.0})


async def test_answers_may_be_long_no_texts_or_errors() -> None:
    class Odd:
        @command("none", help="None.")
        def none(self) -> None:
            """Nothing to say."""

        @command("number", help="A number.")
        async def number(self) -> int:
            return 5

    assert run_command(Odd(), "none") == ""
    answer = run_command(Odd(), "number")
    assert not isinstance(answer, str)
    assert await answer == "5"

    *lines, note = run("long").splitlines()
    assert set(lines) == {"line"}
    assert note == f"({100_000 - len(lines)} more lines omitted)"
    assert len(lines) * 5 <= 256 * 1024

    with pytest.raises(RuntimeError, match="it broke"):
        run("fail")


@given(st.text(max_size=200) | st.text(alphabet="-='\" \\addlmpons1\0\n", max_size=40))
def test_any_line_is_run_or_refused(line: str) -> None:
    try:
        answer = run_command(Desk(), line)
    except ConfigError as error:
        assert str(error).isprintable()
    except RuntimeError:
        assert line.split() == ["fail"]
    else:
        if not isinstance(answer, str):
            answer.close()  # type: ignore[attr-defined]  # It is a coroutine.
