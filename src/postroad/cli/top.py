"""`postroad top`: a node at work, on one page that is drawn again as it changes."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from postroad.admin.operations import OPERATIONS

from .places import PlacedCommand, open_desk, take_place
from .screen import full_screen, is_terminal, paint, redraw, strong
from .tables import render
from .values import tell

_WATCHED = ("node.overview", "queue.ls", "bridge.ls", "cluster.ls")
_QUIT = b"q"
_TITLES = {"queue.ls": "queues", "bridge.ls": "bridges", "cluster.ls": "members"}


@click.command(cls=PlacedCommand)
@click.option("--once", is_flag=True, help="Draw it once and end.")
def top(once: bool, **given: Any) -> None:
    """Watch a node at work.

    q or Ctrl-C ends it.

    \b
    Example:
      postroad top
    """
    with open_desk(take_place(given)) as desk:
        if once or not is_terminal():
            click.echo(draw({it: desk.do(it, {}) for it in _WATCHED}))
            return
        seen: dict[str, Any] = {}
        with full_screen(), _ended_by_key():
            for operation, value in desk.watch([(it, {}) for it in _WATCHED]):
                seen[operation] = value
                if "node.overview" in seen:
                    redraw(draw(seen))


def draw(seen: Mapping[str, Any]) -> str:
    """The page, from what is known so far."""
    parts = [_head(seen["node.overview"])]
    for operation, title in _TITLES.items():
        if seen.get(operation):
            parts.append(
                f"{strong(title)}\n{render(OPERATIONS[operation].result, seen[operation])}"
            )
    return "\n\n".join(parts)


def _head(overview: Mapping[str, Any]) -> str:
    node = overview["node"]
    rates = ("requests_per_s", "posted_per_s", "handled_per_s", "failed_per_s")
    lines = [
        f"{strong(node['cluster'])} / {strong(node['name'])}  {paint(node['state'])}"
        f"  version {node['version']}  {node['address']}",
        f"memory {tell('memory_bytes', node.get('memory_bytes'))}"
        f"  cpu {tell('cpu_share', node.get('cpu_share'))}"
        f"  members {overview['members']} ({overview['suspects']} suspected)",
        "  ".join(f"{it.removesuffix('_per_s')} {tell(it, overview[it])}" for it in rates),
        f"waiting {overview['waiting']:,}  dead {overview['dead']:,}  flows "
        + (tell("flows", overview["flows"]) or "none"),
    ]
    lines += [
        f"{paint(it['severity'])} {it['title']}: {it['detail']}" for it in overview["troubles"]
    ]
    return "\n".join(lines)


@contextmanager
def _ended_by_key() -> Iterator[None]:
    """Have the letter q do what Ctrl-C does."""
    if not sys.stdin.isatty():
        yield
        return
    import signal
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    waking, woken = os.pipe()

    def read_keys() -> None:
        while True:
            ready, _, _ = select.select([descriptor, waking], [], [])
            if waking in ready:
                return
            if os.read(descriptor, 1) in (_QUIT, b""):
                os.kill(os.getpid(), signal.SIGINT)
                return

    reader = threading.Thread(target=read_keys, daemon=True)
    tty.setcbreak(descriptor)
    reader.start()
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        os.write(woken, b"x")
        reader.join()
        os.close(waking)
        os.close(woken)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
