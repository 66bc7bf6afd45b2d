"""Runs pytest, and what failed once more: `python -m tests.second_chance ARGUMENTS OF PYTEST`.

Real processes can be late on a busy machine, and a change should not wait for that. But a second
chance is no excuse:

- tests of chaos, contracts and simulations get none: what they lose is lost;
- at most three tests get one, alone and with the seed they had; a process that died gets none;
- what was forgiven is printed and kept, and whatever was forgiven before fails the run: it wants
  mending;
- a test that takes too long is named, and does not fail the run.

The history is in `$XDG_STATE_HOME/postroad` (`~/.local/state/postroad`), one file for all clones of
this machine.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.source_tree import ROOT

FORGIVEN_MAX = 3
NEVER = ("tests/chaos/", "tests/contract/", "tests/simulation/")
FAILED = 1
"""Pytest's exit status when all tests ran and some failed."""
_LAST_FAILED = ROOT / ".pytest_cache/v/cache/lastfailed"


def main(arguments: Sequence[str]) -> int:
    _LAST_FAILED.unlink(missing_ok=True)
    status = _pytest(*arguments)
    if status != FAILED:
        return status
    failed = _failed()
    history = _history()
    refusal = refuse(failed, history)
    if refusal is not None:
        _say(f"No second chance: {refusal}")
        return status
    _say("Once more, alone:")
    if _pytest("-p", "no:xdist", "-p", "no:cacheprovider", *failed) != 0:
        return FAILED
    today = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    _keep(history | {name: [*history.get(name, ()), today] for name in failed})
    _say("Forgiven, and kept in " + str(_history_path()), *failed)
    return 0


def refuse(failed: Sequence[str], history: dict[str, list[str]]) -> str | None:
    """Why these tests get no second chance; None if they get one."""
    if not failed:
        return "nobody knows what failed"
    if len(failed) > FORGIVEN_MAX:
        return f"{len(failed)} tests failed, and at most {FORGIVEN_MAX} get one"
    for name in failed:
        if name.startswith(NEVER):
            return f"{name} promises that nothing is lost"
        if name in history:
            return f"{name} was forgiven before, {history[name][-1]}"
    return None


def _pytest(*arguments: str) -> int:
    environment = os.environ | {"POSTROAD_SLOW_MACHINE": "1"}
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def _failed() -> list[str]:
    try:
        return list(json.loads(_LAST_FAILED.read_text()))
    except (OSError, ValueError):
        return []


def _history_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "postroad" / "second-chances.json"


def _history() -> dict[str, list[str]]:
    try:
        history: dict[str, list[str]] = json.loads(_history_path().read_text())
    except (OSError, ValueError):
        return {}
    return history


def _keep(history: dict[str, list[str]]) -> None:
    path = _history_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(history, indent=1))


def _say(*lines: str) -> None:
    sys.stdout.write("\n" + "\n  ".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
