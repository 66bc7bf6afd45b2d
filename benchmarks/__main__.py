"""Command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.harness import Settings, run_section
from benchmarks.machine import describe_machine, fastest_loop
from benchmarks.terminal import render_table, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.harness import Row, Section

# Name on the command line -> module with `sections(settings)` and a docstring to list it by.
BENCHMARKS = {
    "cells": "benchmarks.cells",
    "cluster": "benchmarks.cluster",
    "durable": "benchmarks.durable",
    "flows": "benchmarks.flows",
    "messaging": "benchmarks.messaging",
    "node": "benchmarks.node",
    "pipeline": "benchmarks.pipeline",
    "services": "benchmarks.services",
}
OUT = Path(__file__).parent / "out"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks; status 1 when a contender failed, or a goal with `--check`."""
    options = _parse(argv)
    if options.list:
        for name, module in BENCHMARKS.items():
            say(f"{name:<12} {(import_module(module).__doc__ or '').splitlines()[0]}")
        return 0
    try:
        with TemporaryDirectory(prefix="benchmark-") as scratch:
            settings = _settings(Path(scratch), quick=options.quick)
            if options.segments:
                settings = replace(settings, segments=options.segments)
            rows = [row for name in options.names or BENCHMARKS for row in _run(name, settings)]
    except KeyboardInterrupt:
        say("\nstopped")
        return 130
    has_failed = any(row.ours is None or row.peer_value is None for row in rows)
    has_missed = options.check and any(row.met is False for row in rows)
    return int(has_failed or has_missed)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; none means all")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke test")
    parser.add_argument(
        "--segments", type=int, metavar="N", help="of each pipeline; a million by default"
    )
    parser.add_argument("--check", action="store_true", help="status 1 when a goal is missed")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    return options


def _settings(scratch: Path, *, quick: bool) -> Settings:
    settings = Settings(scratch=scratch, loop=fastest_loop())
    if not quick:
        return settings
    return replace(
        settings, rounds=1, seconds=0.3, warmup_s=0.1, idle_connections=1_000, segments=50_000
    )


def _run(name: str, settings: Settings) -> list[Row]:
    machine = describe_machine(settings.loop)
    say(f"{name}: {machine}")
    sections: Iterable[Section] = import_module(BENCHMARKS[name]).sections(settings)
    rows = [row for section in sections for row in run_section(section, settings)]
    say(f"\n{render_table(rows)}\n{machine}")
    _write(name, rows, machine)
    return rows


def _write(name: str, rows: Sequence[Row], machine: str) -> None:
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps([_record(row, machine) for row in rows], indent=2) + "\n")
    say(f"written: {path}")


def _record(row: Row, machine: str) -> dict[str, str | float | None]:
    return {
        "case": row.case,
        "ours": _rounded(row.ours),
        "peer": row.peer,
        "peer_value": _rounded(row.peer_value),
        "ratio": _rounded(row.ratio),
        "goal": row.goal,
        "unit": row.unit,
        "machine": machine,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


if __name__ == "__main__":
    sys.exit(main())
