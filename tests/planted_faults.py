"""Breaks a promise on purpose and shows which test notices: `python -m tests.planted_faults`.

Each fault is planted in a copy of the repository, whose own tests of the tier `test` are then run
until the first one fails; that one must pass once the fault is taken out again. A fault that no
test finds, or that cannot be planted any more because the code has changed, fails the run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.source_tree import ROOT

COPIED = ("src", "tests", "examples", "benchmarks", "fuzz", "docs", "pyproject.toml", "README.md")


class Fault(NamedTuple):
    """A change of the code that breaks a promise."""

    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Where it should be found."""


FAULTS = {
    "acknowledge-before-commit": Fault(
        "a sender forgets a message only when the receiver has it on disk",
        "durable/bridges/receiver.py",
        "            await mutation.done\n",
        "            mutation.done.add_done_callback(lambda done: done.exception())\n"
        "            last = window.first + sum(batch.count for batch in window.batches) - 1\n"
        "            chain = window.batches[-1].chain if window.batches else window.previous\n"
        "            credit = self._credit(sender)\n"
        "            answer = StreamAck(WindowStatus.ACCEPTED, last, chain, credit, [])\n"
        "            return encode(answer)\n",
        ("tests/simulation/test_durable.py", "tests/chaos/test_mail_kills.py"),
    ),
    "drop-a-window": Fault(
        "everything that was sent arrives, in order",
        "durable/bridges/bridge.py",
        "        payload = encode(frame)\n",
        "        self._sent = getattr(self, '_sent', 0) + 1\n"
        "        if self._sent % 3 == 0:\n"
        "            return\n"
        "        payload = encode(frame)\n",
        ("tests/integration/durable", "tests/simulation/test_durable.py"),
    ),
    "forget-an-xor": Fault(
        "a segment is acknowledged when all that was made of it is done with, and only then",
        "pipeline/vectorized/acks.py",
        "        if failed:\n            taken = taken.copy()\n            taken[failed] = 0\n",
        "        taken = taken.copy()\n        taken[:1] = 0\n        taken[failed] = 0\n",
        ("tests/unit/pipeline", "tests/property"),
    ),
    "skip-the-certificate-name": Fault(
        "a peer is who its certificate says",
        "wire/hello.py",
        "    if certificate_names is not None and theirs.name not in certificate_names:\n",
        "    if certificate_names is not None and not theirs.name:\n",
        ("tests/unit/wire", "tests/integration/test_tls.py"),
    ),
    "route-to-a-withdrawn-consumer": Fault(
        "a cell that was removed gets nothing any more",
        "cells/delivery/cell_registry.py",
        "        self.table = self.table.without_target(self.domain.cell(name))\n",
        "",
        ("tests/integration/cells", "tests/simulation/test_cells.py"),
    ),
    "lose-the-last-step": Fault(
        "a step of a flow that was done is never done again",
        "flows/engine/flow_mutation.py",
        "transition.first, transition.entries)\n",
        "transition.first, transition.entries[:-1])\n",
        ("tests/integration/flows", "tests/simulation/test_flows.py"),
    ),
    "answer-twice": Fault(
        "a call is answered once",
        "services/serving.py",
        "            self._transit.send(self._response(request, ctx, result), request.sender)\n",
        "            self._transit.send(self._response(request, ctx, result), request.sender)\n"
        "            self._transit.send(self._response(request, ctx, result), request.sender)\n",
        ("tests/unit/services", "tests/integration/services"),
    ),
}


def plant(fault: Fault, sound: str) -> str:
    """The code of a module with a fault."""
    if sound.count(fault.old) != 1:
        raise SystemExit(f"{fault.file} has changed: plant this fault anew in {__file__}")
    return sound.replace(fault.old, fault.new)


def copy_repository(copy: Path) -> Path:
    """Copy what tests need; the interpreter of the copy, which imports from there."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    environment = copy / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python3.*/site-packages")
    ours = sysconfig.get_path("purelib")
    (packages / "planted.pth").write_text(f"{copy}/src\nimport site; site.addsitedir({ours!r})\n")
    return environment / "bin" / "python"


def find(fault: Fault, directory: Path) -> str | None:
    """The first test that fails with a fault and passes without; None if there is none."""
    copy = directory / "copy"
    copy.mkdir()
    python = copy_repository(copy)
    module = copy / "src/postroad" / fault.file
    sound = module.read_text()
    unfit: list[str] = []
    while True:
        module.write_text(plant(fault, sound))
        test = first_failure(python, copy, fault.tests, unfit)
        if test is None:
            return None
        module.write_text(sound)
        if first_failure(python, copy, (test,)) is None:
            return test
        unfit.append(test)
        sys.stderr.write(f"{test} fails without the fault, too: on without it\n")


def first_failure(
    python: Path, copy: Path, tests: tuple[str, ...], unfit: Sequence[str] = ()
) -> str | None:
    """The first of some tests of a copy that fails; None if all pass."""
    parallel = ["-n2", "--dist=loadfile"] if len(tests) > 1 else ["-p", "no:xdist"]
    left_out = [f"--deselect={it}" for it in unfit]
    command = [str(python), "-m", "pytest", "-x", "-q", *parallel, *left_out, *tests]
    settings = {"POSTROAD_TIER": "test", "POSTROAD_SLOW_MACHINE": "1"}
    finished = subprocess.run(
        command, cwd=copy, env=os.environ | settings, capture_output=True, text=True, check=False
    )
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", finished.stdout, re.MULTILINE)
    if failed is None and finished.returncode:
        output = finished.stdout[-5_000:] + finished.stderr[-5_000:]
        raise SystemExit(f"pytest {tests} ended with {finished.returncode}:\n{output}")
    return None if failed is None else failed[1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted_faults", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FAULTS)}; none means all")
    names = parser.parse_args(argv).names or list(FAULTS)
    if unknown := sorted(set(names) - set(FAULTS)):
        parser.error(f"no fault {', '.join(unknown)}")
    missed = 0
    for name in names:
        begun_s = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            test = find(FAULTS[name], Path(directory))
        missed += test is None
        verdict = "NOT FOUND" if test is None else f"found by {test}"
        sys.stdout.write(f"{name:<30} {time.monotonic() - begun_s:4.0f} s  {verdict}\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
