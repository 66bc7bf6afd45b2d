"""Everything a run prints."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.campaign import Result

_HEADINGS = ("decoder", "executions", "edges", "features", "result")
_OUTPUT_LINES_MAX = 25


def say(line: str) -> None:
    """Print one line at once, also into a pipe."""
    print(line, flush=True)


def replay_command(name: str, data: bytes) -> str:
    """What a person types to see the failure again."""
    return f"python -m fuzz {name} --replay {data.hex() or repr('')}"


def render_crash(name: str, data: bytes, description: str) -> str:
    """Everything needed to look into a crash."""
    return (
        f"\n{name}: an input of {len(data)} bytes breaks it\n\n{description.rstrip()}\n\n"
        f"input   {data.hex()}\nreplay  {replay_command(name, data)}\n"
    )


def render_failure(result: Result) -> str:
    """The end of what a fuzzer said that stopped without naming an input."""
    lines = result.output.splitlines()[-_OUTPUT_LINES_MAX:]
    return "\n".join([f"\n{result.name}: the fuzzer itself failed", *lines, ""])


def render_table(results: Sequence[Result]) -> str:
    """The results as aligned text columns."""
    lines = [_HEADINGS, *map(_cells, results)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rendered = ["  ".join(map(_align, cells, widths)).rstrip() for cells in lines]
    return "\n".join([rendered[0], "-" * max(map(len, rendered)), *rendered[1:]])


def _cells(result: Result) -> tuple[str, ...]:
    numbers = (result.executions, result.edges, result.features)
    return (result.name, *(f"{number:,}" for number in numbers), result.verdict)


def _align(cell: str, width: int) -> str:
    is_number = cell.replace(",", "").isdigit()
    return cell.rjust(width) if is_number else cell.ljust(width)
