"""The examples of a cluster, run the way their page says."""

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT, files_of
from tests.support.servers.process import free_port

STORY = """\
alpha joined
beta joined
gamma joined
alpha knows alpha, beta, gamma
beta knows alpha, beta, gamma
gamma knows alpha, beta, gamma
beta got the reply: gamma greets beta
alpha hears: rain, says beta
beta hears: rain, says beta
gamma hears: rain, says beta
gamma fell silent
"""
END = re.compile(r"beta was told: removed gamma at 127\.0\.0\.1:\d+, dead\n\Z")


def test_three_nodes_join_talk_and_lose_one() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.cluster"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith(STORY)
    assert END.search(done.stdout)
    assert done.stderr == ""


def test_nodes_in_processes_of_their_own(tmp_path: Path) -> None:
    alpha_port, beta_port = unused_ports(2)
    program = files_of("membership.md")["node.py"]
    program = program.replace("7001", str(alpha_port)).replace("7002", str(beta_port))
    (tmp_path / "node.py").write_text(program)
    with (
        start(tmp_path, "alpha", alpha_port) as alpha,
        start(tmp_path, "beta", beta_port) as beta,
    ):
        assert alpha.stdout is not None
        assert beta.stdout is not None
        assert alpha.stdout.readline() == f"added beta at 127.0.0.1:{beta_port}, alive\n"
        assert alpha.stdout.readline() == "hello alpha, this is beta\n"
        assert beta.stdout.readline() == f"added alpha at 127.0.0.1:{alpha_port}, alive\n"
        assert beta.stdout.readline() == "hello beta, this is alpha\n"
        beta.terminate()
        assert beta.wait(20) == 143
        assert alpha.stdout.readline() == f"removed beta at 127.0.0.1:{beta_port}, left\n"
        alpha.terminate()
        assert alpha.wait(20) == 143


def start(directory: Path, name: str, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "node.py", name, str(port)]
    return subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)


def unused_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]
