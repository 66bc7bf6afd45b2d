"""The command table, exit codes and error texts of `postroad`."""

import sys
import types
from collections.abc import Callable

import click
import pytest

from postroad._version import __version__
from postroad.admin import PostroadError
from postroad.cli import main as command_line
from postroad.cli.main import COMMANDS, LazyCommand, run

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


def test_summary_of_a_command_is_its_short_help() -> None:
    for name, entry in COMMANDS.items():
        assert entry.load().get_short_help_str(100) == entry.summary, name


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


def test_exit_code_is_that_of_the_command_or_of_its_interruption(
    add_command: AddCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, code in ((KeyboardInterrupt(), 130), (click.Abort(), 130), (EOFError(), 1)):
        add_command(raiser(error))
        assert run(["probe"]) == code, (error, code)
    add_command(lambda: click.get_current_context().exit(3))
    assert run(["probe"]) == 3
    add_command(lambda: None)
    assert run(["probe"]) == 0
    monkeypatch.setattr(sys, "argv", ["postroad", "--version"])
    with pytest.raises(SystemExit) as exit_of_main:
        command_line.main()
    assert exit_of_main.value.code == 0
