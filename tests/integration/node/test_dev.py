"""`postroad dev` as a process: it starts again when a file is saved, and keeps what is durable."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cli.commands import APP, QUIET, Command, run
from tests.support.deadlines import DEADLINE_S
from tests.support.node.configs import AT_ONCE_FLAGS

pytestmark = pytest.mark.timeout(600)

BANNER = r"node \S+ of cluster postroad runs at"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_tells_what_it_has_and_starts_again_when_a_file_is_saved(app: Path) -> None:
    with Command(app.parent, "dev", "app.py", *QUIET) as dev:
        dev.wait_for(BANNER)
        dev.wait_for(r"dashboard  http://127\.0\.0\.1:\d+\n")
        dev.wait_for(r"token      in \.postroad/\S+\.token\n")
        dev.wait_for(r"actions    greeter\.hello\(name: str = 'you'\) -> str")
        app.write_text(APP.replace("hello(", "hallo("))
        dev.wait_for(r"app\.py saved: starting again\.")
        dev.wait_for(r"greeter\.hallo")
        dev.wait_for(BANNER, 2)
        assert dev.stop(signal.SIGINT) == 0
        assert dev.output.endswith("Stopped.\n")
        assert "Traceback" not in dev.output
        # What goes to a file or a log opens nothing.
        (kept,) = (app.parent / ".postroad").glob("*.token")
        assert kept.read_text().strip() not in dev.output


@pytest.mark.slow
def test_a_mistake_waits_for_the_next_save(app: Path) -> None:
    config = app.with_name("postroad.toml")
    app.write_text("def f(:\n")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Command(app.parent, "dev", *QUIET) as dev,
    ):
        dev.wait_for(r"postroad: app\.py:1: SyntaxError: invalid syntax")
        dev.wait_for("It waits for the next save")
        app.write_text(APP)
        dev.wait_for(BANNER)
        config.write_text("node.names = 1")
        dev.wait_for(r"there is no setting node\.names; did you mean node\.name\?")
        dev.wait_for("It waits for the next save", 2)
        config.write_text(f'[node]\nbind = "127.0.0.1:{server.getsockname()[1]}"\n')
        dev.wait_for("another process has that port; stop it, or choose another")
        dev.wait_for("It waits for the next save", 3)
        server.close()
        app.write_text(APP + "\n")
        dev.wait_for(BANNER, 2)
        assert dev.stop() == 0


def test_without_a_program_there_is_a_hint_and_a_configured_one_is_first(tmp_path: Path) -> None:
    with Command(tmp_path, "dev", *QUIET) as dev:
        dev.wait_for("program    none; `postroad new shop` writes a first one")
        (tmp_path / "app.py").write_text("def f(:\n")
        (tmp_path / "shop.py").write_text(APP)
        (tmp_path / "postroad.toml").write_text('node.app = "shop.py"')
        dev.wait_for(r"greeter\.hello")
        assert dev.stop() == 0


def test_a_taken_port_is_told_and_another_one_chosen(app: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        with Command(app.parent, "dev", "--set", f"admin.bind={taken}", *AT_ONCE_FLAGS) as dev:
            dev.wait_for(f"{taken} is taken; the dashboard is at another port")
            first = dev.wait_for(r"dashboard  http://127\.0\.0\.1:(\d+)\n")[1]
            app.write_text(APP + "\n")
            assert dev.wait_for(r"dashboard  http://127\.0\.0\.1:(\d+)\n", 2)[1] == first
            assert dev.stop() == 0


def test_only_its_own_files_start_it_again(app: Path) -> None:
    directory = app.parent
    (directory / "src").mkdir()
    app = app.rename(directory / "src" / "app.py")
    config = directory / "postroad.toml"
    config.write_text('[node]\ndata = "src/state"\n')
    for other in ("state", "theirs"):
        (directory / "src" / other).mkdir()
    (directory / "src" / "theirs" / "pyproject.toml").touch()
    with Command(directory, "dev", "src/app.py", *QUIET) as dev:
        dev.wait_for(r"greeter\.hello")
        for other in ("state", "theirs"):
            (directory / "src" / other / "more.py").touch()
        # The configuration is not where the program is, and belongs to it.
        config.write_text('[node]\ndata = "src/state"\ncluster = "other"\n')
        dev.wait_for("of cluster other runs at")
        # Were the others its own, they would be named, before or beside the configuration.
        assert re.findall("(.*) saved: starting again", dev.output) == ["postroad.toml"]
        assert dev.stop() == 0


def test_ports_that_are_taken_in_the_last_moment_are_replaced(app: Path) -> None:
    """Whether one is free is known when it is taken: the spare one may be gone as well."""
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        taken, spare = (server.getsockname()[1] for server in (first, second))
        arguments = ("--no-reload", "--set", f"admin.bind=127.0.0.1:{taken}", *AT_ONCE_FLAGS)
        # A process that is not there to watch: it would end the node when it ends.
        with Command(app.parent, "dev", *arguments, "--spare-port", str(spare)) as dev:
            port = int(dev.wait_for(r"dashboard  http://127\.0\.0\.1:(\d+)\n")[1])
            assert port not in (taken, spare)
            assert dev.stop() == 0


def test_without_reload_saves_are_ignored_and_mistakes_end_it(app: Path) -> None:
    with Command(app.parent, "dev", "--no-reload", *QUIET) as dev:
        dev.wait_for(BANNER)
        app.write_text("def f(:\n")
        assert dev.stop(signal.SIGINT) == 0
        assert "saved" not in dev.output
    status, output = run(app.parent, "dev", "--no-reload", *QUIET)
    assert (status, output) == (1, "postroad: app.py:1: SyntaxError: invalid syntax\n")


def test_a_second_one_is_refused_and_the_program_ends_with_its_watcher(app: Path) -> None:
    app.write_text(APP + "\nimport os\nprint('pid', os.getpid(), flush=True)\n")
    with Command(app.parent, "dev", *QUIET) as dev:
        child = int(dev.wait_for(r"pid (\d+)\n")[1])
        dev.wait_for(BANNER)
        with Command(app.parent, "dev", *QUIET) as second:
            assert second.end() == 1
            assert "is used by process" in second.output
            assert "waits for the next save" not in second.output
        assert is_alive(child)
        dev.process.kill()
        dev.process.wait()
        deadline = time.monotonic() + DEADLINE_S
        while is_alive(child):
            assert time.monotonic() < deadline, f"process {child} goes on"
            time.sleep(0.02)


def test_ctrl_c_in_a_terminal(app: Path) -> None:
    """It goes to all processes there, and the program leaves it to the one that watches."""
    ours, theirs = os.openpty()
    terminal = os.ttyname(theirs)
    # Who has none and opens a terminal gets that one as its own.
    script = f'exec "$@" <{terminal} >{terminal} 2>&1'
    command = [sys.executable, "-m", "postroad", "dev", *QUIET]
    environ = {**os.environ, "TERM": "xterm"}
    environ.pop("NO_COLOR", None)
    with subprocess.Popen(
        ["sh", "-c", script, "sh", *command], cwd=app.parent, env=environ, start_new_session=True
    ) as dev:
        shown = b""
        while b"hello(" not in shown:
            shown += os.read(ours, 4096)
        os.close(theirs)
        os.write(ours, b"\x03")
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:
            # So ends a terminal whose last user has gone.
            assert dev.wait() == 0, shown
    os.close(ours)
    assert b"Stopped." in shown
    assert b"Traceback" not in shown
    assert b"\x1b[32mINFO" in shown
    # What only its user sees opens the dashboard.
    assert re.search(rb"http://127\.0\.0\.1:\d+/#token=\S{20,}", shown)


@pytest.mark.slow
def test_its_cluster_is_closed_by_a_secret_that_others_beside_it_find(app: Path) -> None:
    with Command(app.parent, "dev", *QUIET, "--set", "node.bind=127.0.0.1:0") as dev:
        address = dev.wait_for(r"runs at (127\.0\.0\.1:\d+)")[1]
        secret = app.parent / ".postroad" / "cluster.secret"
        assert secret.stat().st_mode & 0o777 == 0o600
        contact = ("--set", f"cluster.seeds={address}", "--set", "admin.enabled=no")
        with Command(app.parent, "node", "start", "--name", "beside", *contact) as beside:
            beside.wait_for(r"beside joined the cluster; members: beside, ")
        stranger = ("--name", "stranger", "--set", "node.data=elsewhere")
        with Command(app.parent, "node", "start", *stranger, *contact) as other:
            other.wait_for(r"joined alone and keeps trying: .*node\.secret")
        assert dev.stop(signal.SIGINT) == 0
        assert secret.read_text().strip() not in dev.output
