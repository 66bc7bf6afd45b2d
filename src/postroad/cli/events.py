"""`postroad events` and `postroad logs`: what goes on, line by line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec

from .places import PlacedCommand, open_desk, take_place
from .screen import paint, visible
from .values import tell, tell_time

_WATCHED = ("cluster.ls", "bridge.ls", "queue.ls", "flow.ls", "dlq.groups", "job.ls")
_KEYS = ("id", "name", "peer", "queue")
_RESTLESS = ("_s", "_ms", "_per_s", "_bytes", "_share")
"""Fields that change all the time and tell nothing."""


@click.command(cls=PlacedCommand)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def events(as_json: bool, **given: Any) -> None:
    """Follow changes as they happen.

    Members that come and go, queues that grow, flows that end, letters that die: a line for each.

    \b
    Example:
      postroad events
    """
    known: dict[str, dict[str, Mapping[str, Any]]] = {}
    is_told = False
    with open_desk(take_place(given)) as desk:
        for operation, value in desk.watch([(it, {}) for it in _WATCHED]):
            rows = by_key(value)
            if operation in known:
                for change in changes(operation, known[operation], rows):
                    _tell(change, as_json)
            known[operation] = rows
            if len(known) == len(_WATCHED) and not is_told:
                is_told = True
                click.echo(f"Following {desk.label}; Ctrl-C ends.", err=True)


def by_key(rows: list[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Rows of a list by what they are called."""
    return {"/".join(str(it[key]) for key in _KEYS if it.get(key)): it for it in rows}


def changes(
    operation: str, before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """What is different now."""
    noun = operation.partition(".")[0]
    for key in [*before, *(it for it in after if it not in before)]:
        if key not in after:
            yield {"noun": noun, "key": key, "what": "gone", "changed": {}}
        elif key not in before:
            yield {"noun": noun, "key": key, "what": "new", "changed": _calm(after[key])}
        else:
            old, new = _calm(before[key]), _calm(after[key])
            changed = {name: value for name, value in new.items() if old.get(name) != value}
            if changed:
                yield {"noun": noun, "key": key, "what": "changed", "changed": changed}


def _calm(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.endswith(_RESTLESS)}


def _tell(change: dict[str, Any], as_json: bool) -> None:
    now = time.time()
    if as_json:
        click.echo(msgspec.json.encode({"at": now, **change}))
    else:
        told = ", ".join(
            f"{name} {tell(name, value)}"
            for name, value in change["changed"].items()
            if value not in (None, "", [], {})
        )
        line = f"{tell_time(now)}  {change['noun']} {change['key']} {change['what']}"
        click.echo(f"{line}: {told}" if told and change["what"] == "changed" else line)
    sys.stdout.flush()


@click.command(cls=PlacedCommand)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is said from now on.")
@click.option("--limit", default=100, show_default=True, help="How many lines at first.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def logs(follow: bool, limit: int, as_json: bool, **given: Any) -> None:
    """Show the log of a node.

    \b
    Example:
      postroad logs -f
    """
    said = {"limit": limit}
    with open_desk(take_place(given)) as desk:
        if not follow:
            _print_lines(desk.do("node.logs", said), as_json)
            return
        shown: list[Any] = []
        for _, lines in desk.watch([("node.logs", said)]):
            _print_lines(unseen(shown, lines), as_json)
            shown = lines


def unseen(shown: list[Any], lines: list[Any]) -> list[Any]:
    """The lines of a list that follow those of an older one; both end at their newest."""
    for count in range(min(len(shown), len(lines)), 0, -1):
        if shown[-count:] == lines[:count]:
            return lines[count:]
    return lines


def _print_lines(lines: list[Mapping[str, Any]], as_json: bool) -> None:
    for it in lines:
        if as_json:
            click.echo(msgspec.json.encode(it))
        else:
            level = str(it["level"]).lower()
            click.echo(
                f"{tell_time(it['at'])} {paint(level, level.ljust(8))} {it['logger']}:"
                f" {visible(it['text'])}"
            )
    sys.stdout.flush()
