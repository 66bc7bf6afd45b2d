"""All that the tests can do, one part after the other: `make nightly`.

What fails does not stop the rest; at the end a table tells of each part. All chance comes from one
seed, the date unless another is given, which is printed with every part: the same command with the
same seed tries the same again.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.support.interpreters import HERE, interpreters
from tests.support.source_tree import ROOT

PYTEST = (
    *("-m", "pytest", "-n", "3", "--dist=loadfile", "--no-loadscope-reorder"),
    *("--max-worker-restart=8", "--durations=10", "-q"),
)
# What depends on the loop or on the interpreter, and needs no server of another make.
OWN = ("tests/unit", "tests/property", *(
    f"tests/integration/{layer}"
    for layer in ("net", "cluster", "cells", "durable", "flows", "services", "node")
))  # fmt: skip


class Part(NamedTuple):
    """One command of the night."""

    name: str
    command: tuple[str, ...]
    settings: dict[str, str]
    prepare: tuple[tuple[str, ...], ...] = ()


def parts(options: argparse.Namespace) -> Iterator[Part]:
    """What is to be done, the broadest first."""
    python, seed = sys.executable, {"POSTROAD_SEED": str(options.seed)}
    yield Part("tests", (python, *PYTEST), seed | {"POSTROAD_TIER": "nightly"})
    yield Part("asyncio", (python, *PYTEST, *OWN), seed | {"POSTROAD_LOOP": "asyncio"})
    for version, path in interpreters().items():
        if version == HERE:
            continue
        there = str(ROOT / f".venv-{version}" / "bin" / "python")
        prepare = (
            (path, "-m", "venv", "--clear", str(ROOT / f".venv-{version}")),
            (there, "-m", "pip", "install", "-qq", "pip>=25.1"),
            (there, "-m", "pip", "install", "-qq", "--editable", ".", "--group", "test"),
        )
        yield Part(f"python{version}", (there, *PYTEST, *OWN), seed, prepare)
    simulate = (python, "-m", "tests.simulation", "--seeds", str(options.seeds))
    yield Part("sim", (*simulate, "--first-seed", str(options.seed)), seed)
    fuzz = (python, "-m", "fuzz", "--seconds", str(options.fuzz_seconds), "--jobs", "2")
    yield Part("fuzz", fuzz, seed)
    yield Part("planted", (python, "-m", "tests.planted_faults"), seed)
    if options.chaos_seconds:
        chaos = {"POSTROAD_CHAOS_SECONDS": str(options.chaos_seconds)}
        yield Part("chaos", (python, "-m", "pytest", "tests/chaos", "-q"), seed | chaos)


def run(part: Part) -> bool:
    """Run a part; whether it succeeded."""
    settings = " ".join(f"{name}={value}" for name, value in part.settings.items())
    _say(f"\n== {part.name}: {settings} {shlex.join(part.command)}")
    environment = os.environ | part.settings
    return all(
        subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0
        for command in (*part.prepare, part.command)
    )


def main(argv: Sequence[str] | None = None) -> int:
    today = int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    parser.add_argument("--seed", type=int, default=today, help="default: today, %(default)s")
    parser.add_argument("--seeds", type=int, default=300, help="of each simulation (%(default)s)")
    parser.add_argument("--fuzz-seconds", type=int, default=5, help="per decoder (%(default)s)")
    parser.add_argument("--chaos-seconds", type=int, default=0, help="3600 for an hour (none)")
    parser.add_argument("--only", nargs="+", metavar="PART", help="these parts only")
    parser.add_argument("--list", action="store_true", help="print the parts and stop")
    options = parser.parse_args(argv)
    chosen = [it for it in parts(options) if options.only is None or it.name in options.only]
    if options.list:
        _say("\n".join(f"{it.name:<11} {shlex.join(it.command)}" for it in chosen))
        return 0
    rows = []
    for part in chosen:
        begun_s = time.monotonic()
        is_good = run(part)
        rows.append((part.name, "ok" if is_good else "FAILED", time.monotonic() - begun_s))
    _say(f"\nPOSTROAD_SEED={options.seed}")
    for name, verdict, seconds in rows:
        _say(f"  {name:<11} {verdict:<7} {seconds / 60:6.1f} min")
    return 0 if all(verdict == "ok" for _, verdict, _ in rows) else 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
