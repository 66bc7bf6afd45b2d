"""`postroad node`: run a node, and tell one to end."""

from __future__ import annotations

import click

from .main import LazyCommand, LazyGroup

NODE_COMMANDS = {
    "start": LazyCommand("postroad.cli.node_start:start", "Run a node until it is told to stop."),
}


@click.group(cls=LazyGroup, table=NODE_COMMANDS)
def node() -> None:
    """Run a node, and tell one to end.

    \b
    Example:
      postroad node start --app app.py --name alpha
    """
