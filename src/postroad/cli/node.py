"""What `postroad node` has besides operations on a node that runs."""

from __future__ import annotations

from .main import LazyCommand

NODE_COMMANDS = {
    "start": LazyCommand("postroad.cli.node_start:start", "Run a node until it is told to stop."),
}
