"""`postroad node start`: a node as a process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from postroad.node import App, Node
from postroad.node.running import DRAIN_S

from .helping import Command
from .running import run, stop_after
from .secrets import find_secret
from .settings import load, settings_options

if TYPE_CHECKING:
    from postroad.admin.serving import AdminServer


@click.command(cls=Command)
@settings_options
@click.option("--app", metavar="FILE|MODULE", help="The program; node.app by default.")
@click.option("--name", help="What others call the node; node.name by default.")
@click.option(
    "--drain-s",
    type=click.FloatRange(min=0),
    default=DRAIN_S,
    show_default=True,
    help="How long what runs may take to end when the node is told to stop.",
)
@click.option("--until-eof", is_flag=True, help="Stop also when the standard input ends.")
@click.option("--debug", is_flag=True, help="Show where errors were raised.")
def start(
    config: Path | None,
    settings: Mapping[str, str],
    app: str | None,
    name: str | None,
    drain_s: float,
    until_eof: bool,
    debug: bool,
) -> None:
    """Run a node until it is told to stop.

    Ctrl-C, SIGTERM and `postroad node stop` let what runs come to its end, and then stop the node;
    a second Ctrl-C does not wait. Messages and flows that are not done go on with the next start.

    \b
    Example: a node, and one more that finds it
      postroad node start --app app.py --name alpha --set node.bind=127.0.0.1:26502
      postroad node start --name beta --set cluster.seeds=127.0.0.1:26502 \\
        --set admin.bind=127.0.0.1:8223
    """
    given = {"node__app": ("--app", app), "node__name": ("--name", name)}
    loaded = load(config, settings, **given)
    if secret := find_secret(loaded):
        loaded = load(config, {**settings, **secret}, **given)
    if until_eof:
        stop_after(read_to_end)
    run(loaded, _tell, is_debugging=debug, drain_s=drain_s)


def read_to_end() -> None:
    """Return when nobody holds the other end of the standard input any more."""
    # Not by sys.stdin: a thread that waits there keeps the interpreter from ending.
    while os.read(0, 4096):
        continue


def _tell(node: Node, app: App, admin: AdminServer | None) -> None:
    if node.config.log.format == "json":
        # The log has it, and whoever reads that expects nothing else.
        return
    served = "" if admin is None else f"; the dashboard is at {admin.url}"
    click.echo(f"{node.name} of cluster {node.cluster} runs at {node.service.address}{served}")
