"""`postroad dev` before anything runs: what the process that watches loads."""

import subprocess
import sys


def test_the_process_that_watches_stays_light() -> None:
    script = "import sys, postroad.cli.dev; sys.exit('postroad.node' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
