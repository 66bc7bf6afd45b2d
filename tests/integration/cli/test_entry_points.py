"""`postroad` in processes of its own: what it loads, and how it ends."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from postroad.cli import doctor
from postroad.cli.main import COMMANDS
from tests.support.deadlines import DEADLINE_S


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_process_that_watches_loads_no_node() -> None:
    script = "import sys, postroad.cli.dev; sys.exit('postroad.node' in sys.modules)"
    assert run_python("-c", script).returncode == 0


def test_help_lists_every_command_without_importing_any() -> None:
    script = (
        "import sys; from postroad.cli.main import COMMANDS, run; run(['--help']);"
        "loaded = {entry.target.partition(':')[0] for entry in COMMANDS.values()};"
        "loaded.add('cryptography'); sys.exit(len(loaded & set(sys.modules)))"
    )
    done = run_python("-c", script)
    assert done.returncode == 0
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.summary)}$", done.stdout, re.MULTILINE)


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
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert errors.strip() == ""


def test_python_dash_m_is_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = run_python("-m", "postroad", "cert")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("Usage: postroad ")
    assert "Did you mean 'postroad certs'?" in wrong.stderr
    early = run_python("-m", "postroad", "certs", "issue", "n1")
    assert (early.returncode, early.stdout) == (1, "")
    assert early.stderr == (
        "postroad: certs/ca.pem is missing: make a trust root first with "
        "`postroad certs init --dir certs`\n"
    )
    assert run_python("-m", "postroad", "certs", "init").returncode == 0
    assert run_python("-m", "postroad", "certs", "issue", "n1").returncode == 0


def test_doctor_finds_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        finding = doctor.look_at_port(other.getsockname()[1], tmp_path)
    assert finding.status == "warning"
    assert "--set admin.bind=127.0.0.1:0" in finding.next
