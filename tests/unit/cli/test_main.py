"""The command table, exit codes and error texts of `postroad`."""

import sys
import types
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from postroad._version import __version__
from postroad.admin import PostroadError
from postroad.cli import main as command_line
from postroad.cli.main import COMMANDS, LazyCommand, run
from tests.support.cases import each

AddCommand = Callable[[Callable[[], object]], None]


@pytest.fixture
def add_command(monkeypatch: pytest.MonkeyPatch) -> AddCommand:
    """Put a command named `probe` into the table that runs the given function."""

    def add(body: Callable[[], object]) -> None:
        module = types.ModuleType("probe_commands")
        module.__dict__["probe"] = click.Command("probe", callback=body)
        monkeypatch.setitem(sys.modules, "probe_commands", module)
        monkeypatch.setitem(COMMANDS, "probe", LazyCommand("probe_commands:probe", "Probe."))

    return add


def raiser(error: BaseException) -> Callable[[], object]:
    def body() -> None:
        raise error

    return body


@each(*COMMANDS)
def test_every_command_loads_and_teaches_by_example(name: str) -> None:
    result = CliRunner().invoke(command_line.postroad, [name, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert COMMANDS[name].load().get_short_help_str(100) == COMMANDS[name].summary


def test_wrong_usage_is_told_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"postroad {__version__}\n"
    assert run(["cert"]) == 2
    assert "No such command 'cert'. Did you mean 'postroad certs'?" in capsys.readouterr().err
    assert run(["zzz"]) == 2
    assert capsys.readouterr().err.endswith("No such command 'zzz'.\n")
    assert run(["--nonsense"]) == 2
    assert "No such option" in capsys.readouterr().err
    assert run([]) == 2
    assert "Tools:" in capsys.readouterr().err


def test_error_is_one_sentence_but_a_bug_is_raised(
    add_command: AddCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command(raiser(PostroadError("the road is closed")))
    assert run(["probe"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "postroad: the road is closed\n")
    add_command(raiser(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        run(["probe"])


@each((KeyboardInterrupt(), 130), (click.Abort(), 130), (EOFError(), 1))
def test_interruption(error: BaseException, code: int, add_command: AddCommand) -> None:
    add_command(raiser(error))
    assert run(["probe"]) == code


def test_exit_code_is_that_of_the_command(
    add_command: AddCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_command(lambda: click.get_current_context().exit(3))
    assert run(["probe"]) == 3
    add_command(lambda: None)
    assert run(["probe"]) == 0
    monkeypatch.setattr(sys, "argv", ["postroad", "--version"])
    with pytest.raises(SystemExit) as exit_of_main:
        command_line.main()
    assert exit_of_main.value.code == 0
