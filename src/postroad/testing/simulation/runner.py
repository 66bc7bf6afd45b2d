"""Runs scenarios over seeds, shrinks a failing run and prints how to replay it.

Exit codes: 0 all seeds passed, 127 a crash, 128 a liveness failure, 129 a safety failure,
130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from postroad.core.errors import UsageError
from postroad.testing.simulation.simulation import (
    CRASH_EXIT_CODE,
    Keep,
    Scenario,
    Simulation,
    SimulationFailure,
)

SEEDS = 100
STOPPED = 130
# Limits of the search for a shorter run.
TRIES = 50
SECONDS = 60.0

_LIST = re.compile(r"(?P<name>[\w-]+)(?:=(?P<places>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*))?")
# Seconds between two lines of progress.
PROGRESS_S = 15.0


class RunResult(NamedTuple):
    """The result of a run; `exit_code` is 0 if it passed."""

    name: str
    seed: int
    exit_code: int
    reason: str
    log: str
    actions: int
    virtual_s: float
    program: str
    place: str
    """Exception and line of the failure."""
    keep: Keep
    """The items used of optional lists that were not complete."""
    optional_items: Mapping[str, int]
    """The lengths of the complete optional lists, by name."""

    @property
    def finding(self) -> tuple[int, str]:
        """Equal for runs that fail in the same way."""
        return self.exit_code, self.place

    @property
    def replay_command(self) -> str:
        command = f"{self.program} --only {self.name} --seeds 1 --first-seed {self.seed}"
        return f"{command} --keep '{format_keep(self.keep)}'" if self.keep else command

    def describe(self) -> str:
        """Return log, reason and replay command of a failed run."""
        sizes = ", ".join(
            f"{len(indexes)} of {self.optional_items.get(name, 0)} {name}"
            for name, indexes in self.keep.items()
        )
        return (
            f"{self.log}\n\n{self.name} failed with seed {self.seed}"
            f"{f', with {sizes}' if sizes else ''}\n{self.reason}\nreplay  {self.replay_command}"
        )


def run_seed(
    name: str,
    scenario: Scenario,
    seed: int,
    *,
    program: str | None = None,
    keep: Keep | None = None,
) -> RunResult:
    """Run a scenario once; exceptions of the scenario become its result."""
    simulation = Simulation(seed, keep)
    exit_code, reason, place = 0, "", ""
    try:
        scenario(simulation)
    except SimulationFailure as failure:
        exit_code, reason = failure.exit_code, f"{failure.kind}: {failure}"
        place = _place_of(failure)
    except (Exception, asyncio.CancelledError, SystemExit) as error:
        trace = "".join(traceback.format_exception(error))
        exit_code, reason = CRASH_EXIT_CODE, f"crash: {error!r}\n\n{trace}"
        place = _place_of(error)
    return RunResult(
        name=name,
        seed=seed,
        exit_code=exit_code,
        reason=reason,
        log=str(simulation.log),
        actions=simulation.actions,
        virtual_s=simulation.now,
        program=program or this_program(),
        place=place,
        keep=simulation.keep,
        optional_items=simulation.optional_items,
    )


def _place_of(error: BaseException) -> str:
    """Return the class of an error and its innermost line outside the simulator."""
    simulator = Path(__file__).parent
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if simulator not in Path(frame.filename).parents]
    place = f" at {others[-1].filename}:{others[-1].lineno}" if others else ""
    return f"{type(error).__name__}{place}"


def main(
    scenarios: Mapping[str, Scenario],
    argv: Sequence[str] | None = None,
    *,
    program: str | None = None,
    first_seed: int = 0,
) -> int:
    """Run each scenario with a range of seeds, up to the first failure; return the exit code.

    For example in `mytests/simulation/__main__.py`:

        sys.exit(main({"restart": run_restart}))

    Args:
        scenarios: by name, in the order in which they run.
        argv: the arguments; those of the command line by default.
        program: the command that starts it; this program by default.
        first_seed: the first seed unless the arguments set it.
    """
    program = program or this_program()
    options = _parse(scenarios, argv, program, first_seed)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    chosen = {options.only: scenarios[options.only]} if options.only else scenarios
    try:
        for name, scenario in chosen.items():
            if exit_code := _run(name, scenario, seeds, program, options):
                return exit_code
    except KeyboardInterrupt:
        _print("\nstopped")
        return STOPPED
    return 0


def this_program() -> str:
    """Return the command that started this process, without its arguments."""
    started = sys.modules["__main__"]
    if started.__spec__ is not None:
        return f"python -m {started.__spec__.name.removesuffix('.__main__')}"
    return f"python {sys.argv[0]}"


def _parse(
    scenarios: Mapping[str, Scenario], argv: Sequence[str] | None, program: str, first_seed: int
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program, description="Run each scenario with a range of seeds."
    )
    parser.add_argument(
        "--only", choices=list(scenarios), help="run one scenario; the default is all"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many (default: %(default)d)")
    parser.add_argument(
        "--first-seed", type=int, default=first_seed, help="the first (default: %(default)d)"
    )
    parser.add_argument("--log", action="store_true", help="print the events of every run")
    parser.add_argument(
        "--tries",
        type=int,
        default=TRIES,
        help="runs to find a shorter one that fails like the first (default: %(default)d)",
    )
    parser.add_argument(
        "--keep", default="", help="items of the plan to use, as printed by a failed run"
    )
    options = parser.parse_args(argv)
    if options.seeds < 1:
        parser.error("--seeds must be 1 or more")
    try:
        options.keep = parse_keep(options.keep)
    except UsageError as error:
        parser.error(f"--keep: {error}")
    return options


def _run(
    name: str, scenario: Scenario, seeds: range, program: str, options: argparse.Namespace
) -> int:
    started = time.monotonic()
    reported_at = started
    actions, virtual_s = 0, 0.0
    for seed in seeds:
        if time.monotonic() - reported_at > PROGRESS_S:
            reported_at = time.monotonic()
            _print(f"{name:<10}  seeds {seeds[0]} to {seed - 1}  ok so far, of {len(seeds):,}")
        result = run_seed(name, scenario, seed, program=program, keep=options.keep)
        actions += result.actions
        virtual_s += result.virtual_s
        if result.exit_code:
            if not options.keep:
                result = shorten(result, scenario, tries=options.tries)
            _print(result.describe())
            return result.exit_code
        if options.log:
            _print(f"{result.log}\n")
    _print(
        f"{name:<10}  seeds {seeds[0]} to {seeds[-1]}  ok  {actions:,} events, "
        f"{virtual_s:,.0f} s of virtual time in {time.monotonic() - started:.1f} s"
    )
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def shorten(
    failed: RunResult, scenario: Scenario, *, tries: int = TRIES, seconds: float = SECONDS
) -> RunResult:
    """Search a shorter run that fails in the same way, with fewer optional items.

    First whole lists are left out, then halves of their remaining items, then quarters, and so on
    down to single items, the last ones first. A run fails in the same way if exit code and place of
    the failure are the same.
    """
    deadline = time.monotonic() + seconds
    shortest = failed
    indexes = {name: tuple(range(count)) for name, count in failed.optional_items.items()}
    for name, chunk in _cuts(indexes):
        if tries <= 0 or time.monotonic() > deadline:
            break
        tries -= 1
        fewer = {**indexes, name: tuple(index for index in indexes[name] if index not in chunk)}
        try:
            result = run_seed(
                failed.name, scenario, failed.seed, program=failed.program, keep=fewer
            )
        except KeyboardInterrupt:
            break
        if result.finding == failed.finding:
            indexes.update(fewer)
            shortest = result
    return shortest


def _cuts(indexes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield the indexes to leave out next, of those that are still used."""
    parts = 1
    while parts == 1 or parts < 2 * max(map(len, indexes.values()), default=0):
        for name in indexes:
            positions = indexes[name]
            size = max(1, len(positions) // parts)
            for end in range(len(positions), 0, -size):
                yield name, frozenset(positions[max(0, end - size) : end])
        parts *= 2


def format_keep(keep: Keep) -> str:
    """Return the argument of `--keep`: `faults=1,4-6 jobs`; a name alone is an empty list."""
    return " ".join(
        f"{name}={_format_ranges(sorted(indexes))}" if indexes else name
        for name, indexes in keep.items()
    )


def _format_ranges(places: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for place in places:
        if ranges and ranges[-1][-1] == place - 1:
            ranges[-1][1:] = [place]
        else:
            ranges.append([place])
    return ",".join("-".join(map(str, bounds)) for bounds in ranges)


def parse_keep(text: str) -> Keep:
    keep: dict[str, frozenset[int]] = {}
    for part in text.split():
        match = _LIST.fullmatch(part)
        if match is None:
            raise UsageError(f"cannot parse {part!r}: expected a list like faults=1,4-6")
        keep[match["name"]] = frozenset(_parse_ranges(match["places"] or ""))
    return keep


def _parse_ranges(places: str) -> Iterator[int]:
    for span in places.split(",") if places else ():
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)
