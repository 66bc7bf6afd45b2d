"""Looks for a shorter run that fails like one that has failed: with less of what is optional."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from postroad.core.errors import UsageError
from postroad.testing.simulation.simulation import Keep

if TYPE_CHECKING:
    from postroad.testing.simulation.runner import RunResult

TRIES = 50
SECONDS = 60.0

_LIST = re.compile(r"(?P<name>[\w-]+)(?:=(?P<places>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*))?")

Run: TypeAlias = "Callable[[Keep], RunResult]"


def shrink(
    failed: RunResult, run: Run, *, tries: int = TRIES, seconds: float = SECONDS
) -> RunResult:
    """Leave out what is not needed for the failure; returns the shortest run that has it.

    First whole lists are left out, then halves of what remains of them, then quarters, and so on to
    single items, always the last ones first. A run fails in the same way if the exit code is the
    same, and so is the place in the code that found it.

    Args:
        failed: a run with everything.
        run: runs the same scenario and seed, and keeps some of what is optional.
        tries: how many runs it may take.
        seconds: how long it may take.
    """
    ends_at = time.monotonic() + seconds
    shortest = failed
    indexes = {name: tuple(range(count)) for name, count in failed.optional_items.items()}
    for name, chunk in _cuts(indexes):
        if tries <= 0 or time.monotonic() > ends_at:
            break
        tries -= 1
        fewer = {**indexes, name: tuple(index for index in indexes[name] if index not in chunk)}
        try:
            result = run(fewer)
        except KeyboardInterrupt:
            break
        if result.finding == failed.finding:
            indexes.update(fewer)
            shortest = result
    return shortest


def _cuts(indexes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, frozenset[int]]]:
    """What to leave out next, of what is still kept then."""
    parts = 1
    while parts == 1 or parts < 2 * max(map(len, indexes.values()), default=0):
        for name in indexes:
            positions = indexes[name]
            size = max(1, len(positions) // parts)
            for end in range(len(positions), 0, -size):
                yield name, frozenset(positions[max(0, end - size) : end])
        parts *= 2


def format_keep(keep: Keep) -> str:
    """The argument of `--keep`: `faults=1,4-6 jobs`; a name alone stands for an empty list."""
    return " ".join(
        f"{name}={_format(sorted(indexes))}" if indexes else name for name, indexes in keep.items()
    )


def _format(places: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for place in places:
        if ranges and ranges[-1][-1] == place - 1:
            ranges[-1][1:] = [place]
        else:
            ranges.append([place])
    return ",".join("-".join(map(str, bounds)) for bounds in ranges)


def parse_keep(text: str) -> Keep:
    """What `format_keep` has written."""
    keep: dict[str, frozenset[int]] = {}
    for part in text.split():
        match = _LIST.fullmatch(part)
        if match is None:
            raise UsageError(f"{part!r} is not like faults=1,4-6")
        keep[match["name"]] = frozenset(_parse(match["places"] or ""))
    return keep


def _parse(places: str) -> Iterator[int]:
    for span in places.split(",") if places else ():
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)
