"""`postroad` as a process: pipes, watching, terminals, signals."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postroad.cli.main import run
from tests.support.cli.nodes import RunningNode
from tests.support.cli.terminal import Terminal
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.mail_pairs import until_dead


def postroad(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "postroad", *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


class Watched:
    """A process whose lines are read as they come."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "postroad", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def error_line(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def until(self, is_it: Callable[[str], bool]) -> str:
        while line := self.line():
            if is_it(line):
                return line
        raise AssertionError(f"it ended: {self._process.communicate()[1]}")

    def stop(self) -> tuple[int, str]:
        self._process.send_signal(signal.SIGINT)
        _, errors = self._process.communicate(timeout=DEADLINE_S)
        return self._process.returncode, errors.strip()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    started: list[Watched] = []

    def start(*words: str) -> Watched:
        started.append(Watched(*words))
        return started[-1]

    yield start
    for it in started:
        if it._process.poll() is None:
            it._process.kill()
            it._process.communicate()


def test_output_into_a_pipe_is_plain(alpha: RunningNode) -> None:
    done = postroad("queue", "ls", *alpha.place)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("NAME ")
    assert "\x1b" not in done.stdout


def test_exit_codes(alpha: RunningNode) -> None:
    assert run(["queue", "show", "nothing", *alpha.place]) == 3
    assert run(["queue", "sow", *alpha.place]) == 2
    assert run(["queue", "ls", "--url", "http://127.0.0.1:1"]) == 1
    assert run(["doctor", "--data", str(alpha.data)]) == 0
    done = postroad("check", "--url", "http://127.0.0.1:1")
    assert done.returncode == 4
    assert done.stdout.startswith("POSTROAD CRITICAL - nobody answers at http://127.0.0.1:1")


def test_whoever_reads_may_have_seen_enough(alpha: RunningNode) -> None:
    command = f"{sys.executable} -m postroad errors | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout.split()[:2] == ["CODE", "NAME"]
    assert done.stderr == ""


def test_changes_are_appended_in_a_pipe(alpha: RunningNode, watch: Callable[..., Watched]) -> None:
    watched = watch("queue", "ls", "--watch", *alpha.place)
    watched.until(lambda line: line.startswith("orders "))
    assert run(["queue", "post", "watched", "x", *alpha.place]) == 0
    watched.until(lambda line: line.split()[:2] == ["watched", "1"])
    assert watched.stop() == (130, "")


def test_changes_as_lines_of_json(alpha: RunningNode, watch: Callable[..., Watched]) -> None:
    watched = watch("queue", "show", "orders", "--watch", "--json", *alpha.place)
    assert json.loads(watched.line())["is_paused"] is False
    assert run(["queue", "pause", "orders", *alpha.place]) == 0
    watched.until(lambda line: json.loads(line)["is_paused"])
    assert run(["queue", "resume", "orders", *alpha.place]) == 0
    watched.until(lambda line: not json.loads(line)["is_paused"])
    assert watched.stop() == (130, "")


def test_events_tell_what_is_different(alpha: RunningNode, watch: Callable[..., Watched]) -> None:
    watched = watch("events", "--json", *alpha.place)
    assert watched.error_line() == "Following node alpha; Ctrl-C ends.\n"
    assert run(["queue", "post", "news", "x", *alpha.place]) == 0
    event = json.loads(watched.until(lambda line: '"news"' in line))
    assert (event["noun"], event["key"], event["what"]) == ("queue", "news", "new")
    assert watched.stop() == (130, "")


def test_shell_runs_lines_from_a_pipe(alpha: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "# a comment, and an empty line",
        "",
        "queues",
        "call greeter.hello name=Ann",
        "queue nonsense",
        'call "unfinished',
        "shell",
        "\\c printer@alpha",
        "ink",
        "\\c",
        "\\l --pattern print*",
        "\\x",
        "\\?",
        "nodes",
    ]
    done = postroad("shell", *alpha.place, given="\n".join(lines))
    assert done.returncode == 0
    assert "Hello Ann!\nhalf a bottle\n" in done.stdout
    assert "\nNAME     DOMAIN  STATE" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("alpha ")
    for told in (
        "No such command 'nonsense'",
        "No closing quotation",
        "this is the shell already",
        "there is no \\x",
    ):
        assert told in done.stderr
    for given, status in (("queue nonsense\n", 2), ("nodes\n\\q\nqueue nonsense\n", 0)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        assert run(["shell", *alpha.place]) == status, given


def test_the_shell_at_a_terminal(alpha: RunningNode, home: Path) -> None:
    with Terminal(["shell", *alpha.place], {}) as terminal:
        terminal.wait_for("shop/alpha>")
        terminal.type("this is never run")
        terminal.wait_for("never run")
        terminal.interrupt()
        terminal.type("call gree")
        terminal.wait_for("call gree")
        terminal.press_until("\t", "ter.hello")
        terminal.type(" name=Bob\r")
        terminal.wait_for("Hello Bob!")
        terminal.wait_for("shop/alpha>")
        terminal.type("queue nonsense\r")
        terminal.wait_for("No such command")
        terminal.wait_for("shop/alpha>")
        terminal.type("\\c printer@alpha\r")
        terminal.wait_for("shop/alpha printer@alpha>")
        terminal.type("ink\r")
        terminal.wait_for("half a bottle")
        terminal.wait_for("printer@alpha>")
        terminal.end()
        assert terminal.wait() == 0
    history = home / "config" / "postroad" / "history"
    assert "call greeter.hello name=Bob" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


def test_a_command_of_the_shell_is_interrupted(alpha: RunningNode) -> None:
    with Terminal(["shell", *alpha.place], {}) as terminal:
        terminal.wait_for("shop/alpha>")
        terminal.type("events\r")
        terminal.wait_for("Following node alpha")
        terminal.interrupt()
        terminal.wait_for("shop/alpha>")
        terminal.type("\\q\r")
        assert terminal.wait() in (0, 130)


def test_top_is_drawn_until_q(alpha: RunningNode) -> None:
    with Terminal(["top", *alpha.place], {}) as terminal:
        terminal.wait_for("shop / alpha")
        terminal.wait_for("members")
        terminal.type("q")
        assert terminal.wait() == 0
        assert "\x1b[?1049h" in terminal.raw
        assert terminal.raw.rstrip().endswith("\x1b[?1049l")


def test_a_watched_table_is_drawn_again_on_a_terminal(alpha: RunningNode) -> None:
    with Terminal(["queue", "show", "orders", "--watch", *alpha.place], {}) as terminal:
        terminal.wait_for("paused: no")
        assert run(["queue", "pause", "orders", *alpha.place]) == 0
        terminal.wait_for("paused: yes")
        assert run(["queue", "resume", "orders", *alpha.place]) == 0
        terminal.wait_for("paused: no")
        terminal.interrupt()
        assert terminal.wait() == 130
    assert "\x1b[?1049l" in terminal.raw


def test_lines_fit_on_a_terminal_and_have_colours(alpha: RunningNode) -> None:
    with Terminal(["cells", "ps", *alpha.place], {}, columns=60) as terminal:
        assert terminal.wait() == 0
    assert max(map(len, terminal.text.splitlines())) <= 60
    assert "…" in terminal.text
    with Terminal(["cluster", "ls", *alpha.place], {}) as terminal:
        assert terminal.wait() == 0
    assert "\x1b[32malive\x1b[0m" in terminal.raw
    with Terminal(["cluster", "ls", *alpha.place], {"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
    assert "\x1b[" not in terminal.raw


def test_long_work_shows_how_far_it_is(alpha: RunningNode) -> None:
    async def fill() -> None:
        for _ in range(600):
            await alpha.node.queues.send("crowd", b"x", to="alpha")
        await alpha.node.queues.send("calm", b"x", to="alpha")

    alpha.do(fill())
    words = ["queue", "move", "crowd", "calm", "--yes", *alpha.place]
    with Terminal(words, {}) as terminal:
        assert terminal.wait() == 0
    assert "move [##############################] 600/600 " in terminal.text
    assert "600 messages moved to calm." in terminal.text


def test_many_dead_letters_are_tried_again_part_by_part(alpha: RunningNode) -> None:
    async def fill() -> None:
        for _ in range(501):
            await alpha.node.queues.send("orders", b"bad", to="alpha")
        await until_dead(alpha.node.queues, 501)

    alpha.do(fill())
    with Terminal(["dlq", "retry", "--all", *alpha.place], {}) as terminal:
        assert terminal.wait() == 0
    assert "retry [##############################] 501/501 " in terminal.text
    assert "501 dead letters will be tried again." in terminal.text


COMPLETIONS = {
    "postroad que": "queue",
    "postroad queue sho": "show",
    "postroad queue show or": "orders",
    "postroad call gree": "greeter.hello",
    "postroad cells run pri": "printer",
    "postroad flow begin p": "pay",
}


def test_a_shell_completes(
    alpha: RunningNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTROAD_URL", alpha.url)
    monkeypatch.setenv("POSTROAD_TOKEN", alpha.token)
    monkeypatch.setenv("_POSTROAD_COMPLETE", "bash_complete")
    for line, expected in COMPLETIONS.items():
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        told: list[str] = []
        # On a busy machine a node may be too slow for somebody who types.
        for _ in range(10):
            with pytest.raises(SystemExit):
                run([])
            if told := capsys.readouterr().out.splitlines():
                break
        assert f"plain,{expected}" in told, line
    # And by a process, as a shell asks.
    assert f"plain,{expected}" in postroad().stdout.splitlines()


def test_completion_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert run(["completion", shell]) == 0
        assert "_POSTROAD_COMPLETE" in capsys.readouterr().out, shell
    assert run(["completion", "tcsh"]) == 2
