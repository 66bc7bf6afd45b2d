"""Shrinking: searches a shorter run with the same failure, with fewer optional items."""

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
    """Leave out items that the failure does not need; return the shortest failing run.

    First whole lists are left out, then halves of their remaining items, then quarters, and so on
    down to single items, the last ones first. A run fails in the same way if exit code and place of
    the failure are the same.

    Args:
        failed: the result of the complete run.
        run: runs the same scenario and seed with some of the optional items.
        tries: maximum of runs.
        seconds: maximum time of all runs together.
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
            result = run(fewer)
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
    """Parse the text that `format_keep` returns."""
    keep: dict[str, frozenset[int]] = {}
    for part in text.split():
        match = _LIST.fullmatch(part)
        if match is None:
            raise UsageError(f"cannot parse {part!r}: expected a list like faults=1,4-6")
        keep[match["name"]] = frozenset(_parse(match["places"] or ""))
    return keep


def _parse(places: str) -> Iterator[int]:
    for span in places.split(",") if places else ():
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)
