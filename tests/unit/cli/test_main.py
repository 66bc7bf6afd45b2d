"""The command table, exit codes and error texts of `postroad`."""

from __future__ import annotations

import re
import signal
import subprocess
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


def test_help_lists_every_command_without_importing_any() -> None:
    script = (
        "import sys; from postroad.cli.main import COMMANDS, run; run(['--help']);"
        "loaded = {entry.target.partition(':')[0] for entry in COMMANDS.values()};"
        "loaded.add('cryptography'); sys.exit(len(loaded & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.summary)}$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads_and_teaches_by_example(name: str) -> None:
    result = CliRunner().invoke(command_line.postroad, [name, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert COMMANDS[name].load().get_short_help_str(100) == COMMANDS[name].summary


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"postroad {__version__}\n"


def test_an_unknown_command_is_wrong_usage_with_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["cert"]) == 2
    assert "No such command 'cert'. Did you mean 'postroad certs'?" in capsys.readouterr().err


def test_a_command_like_no_other_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["zzz"]) == 2
    assert capsys.readouterr().err.endswith("No such command 'zzz'.\n")


def test_an_unknown_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--nonsense"]) == 2
    assert "No such option" in capsys.readouterr().err


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Tools:" in capsys.readouterr().err


def test_a_postroad_error_is_one_sentence(
    add_command: AddCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command(raiser(PostroadError("the road is closed")))
    assert run(["probe"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "postroad: the road is closed\n")


def test_our_own_bug_is_not_hidden(add_command: AddCommand) -> None:
    add_command(raiser(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        run(["probe"])


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (click.Abort(), 130), (EOFError(), 1)]
)
def test_interruption(add_command: AddCommand, error: BaseException, code: int) -> None:
    add_command(raiser(error))
    assert run(["probe"]) == code


def test_a_command_chooses_its_exit_code(add_command: AddCommand) -> None:
    add_command(lambda: click.get_current_context().exit(3))
    assert run(["probe"]) == 3


def test_a_command_without_a_result_succeeds(add_command: AddCommand) -> None:
    add_command(lambda: None)
    assert run(["probe"]) == 0


def test_main_exits_with_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["postroad", "--version"])
    with pytest.raises(SystemExit) as exit_of_main:
        command_line.main()
    assert exit_of_main.value.code == 0


def test_ctrl_c_ends_a_running_command_quietly() -> None:
    script = (
        "import sys, time, types, click; from postroad.cli import main as m;"
        "module = sys.modules['waiting'] = types.ModuleType('waiting');"
        "body = lambda: (print('ready', flush=True), time.sleep(60));"
        "module.wait = click.Command('wait', callback=body);"
        "m.COMMANDS['wait'] = m.LazyCommand('waiting:wait', '');"
        "sys.argv = ['postroad', 'wait']; m.main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.strip() == ""


def test_python_dash_m_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "postroad", "cert"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: postroad ")
    assert "Did you mean 'postroad certs'?" in done.stderr
