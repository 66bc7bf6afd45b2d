"""The node of `postroad dev`, in the process that runs the program."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from postroad.admin import StoreLockedError
from postroad.admin.cards import token_path
from postroad.admin.listening import AddressTaken, take_address
from postroad.admin.watchers import Watcher, leave_watcher
from postroad.node import App, Node
from postroad.node.inventory import inventory
from postroad.node.reading import DEFAULT, Loaded

from .dev import BUSY
from .running import Failed, run, stop_after
from .secrets import make_secret
from .settings import load

if TYPE_CHECKING:
    from postroad.admin.serving import AdminServer


_APP = "app.py"
_LOOK_S = 0.5
_LABEL_CELLS = 11


def run_dev_node(
    app: str | None,
    config: Path | None,
    settings: Mapping[str, str],
    *,
    is_debugging: bool,
    spare_port: int | None,
) -> None:
    """Run the program once.

    Args:
        app, config, settings, is_debugging: what the user gave.
        spare_port: for the dashboard if its own port is taken. Also says that another process
            watches the files: this one ends when that one does, and leaves Ctrl-C to it.
    """
    signals = [signal.SIGTERM, signal.SIGINT]
    parent = os.getppid()
    if spare_port is not None:
        signal.signal(signals.pop(), signal.SIG_IGN)
        stop_after(lambda: _outlive(parent))
    loaded, listener = _load(app, config, settings, spare_port or 0)
    data = loaded.config.data
    if spare_port is not None:
        leave_watcher(data, Watcher(pid=parent))
    # What is durable goes on after the next save, so nothing needs to be waited for.
    try:
        run(loaded, _tell, is_debugging=is_debugging, drain_s=0, signals=signals, listener=listener)
    except Failed as failed:
        if isinstance(failed.__cause__, StoreLockedError):
            raise _Busy(failed.message) from None
        if spare_port is not None:
            leave_watcher(data, Watcher(pid=parent, problem=failed.message))
        raise


class _Busy(Failed):
    """Another node runs here, so no save will help: whoever watches the files may end."""

    exit_code = BUSY


def _outlive(parent: int) -> None:
    """Return when the parent of this process has ended."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)


def _load(
    app: str | None, config: Path | None, settings: Mapping[str, str], spare_port: int
) -> tuple[Loaded, socket.socket | None]:
    """The configuration, with what is better for people who try things out.

    Also a socket that has the address of the dashboard: whether it is free is known when it is
    taken, and not before.
    """
    loaded = load(config, settings, node__app=("FILE", app))
    better = {}
    if loaded.config.node.app is None and Path(_APP).exists():
        better["node.app"] = _APP
    if loaded.origins["tracing.enabled"] == DEFAULT:
        better["tracing.enabled"] = "yes"
    better |= make_secret(loaded)
    listener = None
    if loaded.config.admin.enabled:
        wanted = loaded.config.admin_address
        listener = _take_port(loaded, spare_port)
        if wanted.port not in (0, port := listener.getsockname()[1]):
            better["admin.bind"] = str(wanted._replace(port=port))
    return load(config, {**settings, **better}, node__app=("FILE", app)), listener


def _take_port(loaded: Loaded, spare_port: int) -> socket.socket:
    """The address of the dashboard, or another port if somebody has that one."""
    wanted = loaded.config.admin_address
    try:
        return take_address(wanted)
    except AddressTaken:
        text = f"{wanted} is taken; the dashboard is at another port."
        click.secho(text, fg="yellow", err=True)
    try:
        return take_address(wanted._replace(port=spare_port))
    except AddressTaken:
        return take_address(wanted._replace(port=0))


def _tell(node: Node, app: App, admin: AdminServer | None) -> None:
    title = click.style(node.name, bold=True)
    click.echo(f"\nnode {title} of cluster {node.cluster} runs at {node.service.address}")
    if admin is not None:
        _tell_dashboard(node, admin)
    _line("state", node.config.node.data)
    found = inventory(app)
    for kind, lines in found.items():
        for number, line in enumerate(lines):
            _line("" if number else kind, line)
    if not found:
        _line("program", "none; `postroad new shop` writes a first one")
    click.echo()


def _tell_dashboard(node: Node, admin: AdminServer) -> None:
    """On a terminal a link that opens the dashboard; what goes to a log must not hold the token."""
    if sys.stdout.isatty():
        _line("dashboard", click.style(f"{admin.url}/#token={admin.token}", fg="cyan"))
        return
    _line("dashboard", admin.url)
    is_kept = node.config.admin.token is None
    kept = str(token_path(node.config.data, node.name))
    _line("token", f"in {kept}" if is_kept else "admin.token of the configuration")


def _line(label: str, text: str) -> None:
    click.echo(f"  {label:<{_LABEL_CELLS}}{text}")
