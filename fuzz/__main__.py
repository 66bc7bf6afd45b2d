"""Command line of the fuzzers."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence

from fuzz.campaign import Result, fuzz_all
from fuzz.replay import describe_error, find_error, shrink
from fuzz.target import Target
from fuzz.targets import TARGETS
from fuzz.terminal import render_crash, render_failure, render_table, say

SECONDS = 20.0
STOPPED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz the named decoders, or all; status 1 when an input breaks one."""
    options = _parse(argv)
    targets = [TARGETS[name] for name in options.names or TARGETS]
    if options.list:
        say("\n".join(TARGETS))
        return 0
    if options.replay is not None:
        return _replay(targets, options.replay)
    if importlib.util.find_spec("atheris") is None:
        say("fuzzing needs atheris: `make fuzz` installs it (Linux only)")
        return 2
    return _fuzz_all(targets, options.seconds, options.jobs)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to fuzz; none means all")
    parser.add_argument(
        "--seconds",
        type=float,
        default=float(os.environ.get("FUZZ_SECONDS", SECONDS)),
        help="how long for each (default: FUZZ_SECONDS or %(default)g)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=max(1, (os.cpu_count() or 1) // 2),
        help="how many at a time (default: half of the cores, %(default)d)",
    )
    parser.add_argument("--replay", type=bytes.fromhex, metavar="HEX", help="give NAME this input")
    parser.add_argument("--list", action="store_true", help="list the decoders and stop")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.names) - set(TARGETS))
    if unknown:
        parser.error(f"no decoder {', '.join(unknown)}; --list names them")
    if options.replay is not None and len(options.names) != 1:
        parser.error("--replay needs one NAME")
    return options


def _replay(targets: list[Target], data: bytes) -> int:
    (target,) = targets
    error = find_error(target, data)
    if error is None:
        say(f"{target.name}: the input of {len(data)} bytes does no harm")
        return 0
    say(render_crash(target.name, data, describe_error(error)))
    return 1


def _fuzz_all(targets: list[Target], seconds: float, jobs: int) -> int:
    results: list[Result] = []
    status = 0
    try:
        for result in fuzz_all([target.name for target in targets], seconds, jobs):
            results.append(result)
            say(f"{result.name:<38} {result.verdict}")
            if result.verdict != "ok":
                status = 1
                say(_explain(result))
    except KeyboardInterrupt:
        say("\nstopped")
        status = STOPPED
    if results:
        say("\n" + render_table(results))
    return status


def _explain(result: Result) -> str:
    if result.crash is None:
        return render_failure(result)
    target = TARGETS[result.name]
    for data in (shrink(target, result.crash), result.crash):
        if (error := find_error(target, data)) is not None:
            return render_crash(result.name, data, describe_error(error))
    # Too slow or too large: nothing is raised here, and what libFuzzer wrote tells more.
    return render_crash(result.name, result.crash, render_failure(result))


if __name__ == "__main__":
    sys.exit(main())
