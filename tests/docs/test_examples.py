"""The example of a cluster, run the way its page says."""

import re
import subprocess
import sys

from tests.docs.pages import ROOT

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
        timeout=30,
        check=True,
    )
    assert done.stdout.startswith(STORY)
    assert END.search(done.stdout)
    assert done.stderr == ""
