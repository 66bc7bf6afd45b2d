"""Runs a node in this process, and tells people what went wrong in one sentence."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from postroad.admin import PostroadError
from postroad.admin.listening import take_address
from postroad.node import App, Node
from postroad.node.logs import set_up_logs
from postroad.node.reading import Loaded
from postroad.node.running import DRAIN_S, SIGNALS, load_program, run_node, tell_failure

if TYPE_CHECKING:
    from postroad.admin.serving import AdminServer

Started = Callable[[Node, App, "AdminServer | None"], None]


def run(
    loaded: Loaded,
    on_start: Started,
    *,
    is_debugging: bool = False,
    drain_s: float = DRAIN_S,
    signals: Sequence[signal.Signals] = SIGNALS,
    listener: socket.socket | None = None,
) -> None:
    """Run a node until it is told to stop.

    Args:
        listener: has the address of the dashboard, and is closed in the end; without one that
            address is taken before the node starts.

    Raises:
        click.ClickException: it cannot be started, and what can be done about it.
    """
    config = loaded.config
    set_up_logs(config.log)
    target = config.node.app
    try:
        with ExitStack() as stack:
            if listener is None and config.admin.enabled:
                # Who cannot have it is told so before others know of the node.
                listener = take_address(config.admin_address)
            if listener is not None:
                stack.enter_context(listener)
            app = load_program(target)
            node = Node(config, app)
            node.origins = loaded.origins
            run_node(
                node,
                lambda it: _serve(it, listener),
                lambda it: on_start(node, app, it),
                drain_s=drain_s,
                signals=signals,
            )
    except (PostroadError, OSError) as error:
        raise _told(error, explain(error), is_debugging) from error
    except Exception as error:
        directory = Path.cwd() if target is None else Path(target).parent
        text = f"{tell_failure(error, directory)} (--debug shows more)"
        raise _told(error, text, is_debugging) from error


def stop_after(wait: Callable[[], None]) -> None:
    """Have this process told to stop when a function has returned, which may block."""

    def watch() -> None:
        wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def _serve(node: Node, listener: socket.socket | None) -> AdminServer | None:
    if not node.config.admin.enabled:
        return None
    from postroad.admin.serving import AdminServer

    return AdminServer(node, listener)


def _told(error: BaseException, text: str, is_debugging: bool) -> click.ClickException:
    if is_debugging:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    return Failed(text)


class Failed(click.ClickException):
    """Shown as all errors of Postroad are."""

    def show(self, file: object = None) -> None:
        click.echo(f"postroad: {self.message}", err=True)


def explain(error: BaseException) -> str:
    """What went wrong, and the next step."""
    if getattr(error, "extra", None) == "dashboard":
        return f"{error}, or do without it: --set admin.enabled=no"
    cause = error.__cause__ or error
    if not isinstance(cause, OSError):
        return str(error)
    what = str(error).partition(": ")[0]
    other = "choose another with --set node.bind=HOST:PORT, or admin.bind for the dashboard"
    if cause.errno == errno.EADDRINUSE:
        return f"{what}: another process has that port; stop it, or {other}"
    if cause.errno == errno.EADDRNOTAVAIL:
        return f"{what}: this machine has no such address; {other}"
    if cause.errno == errno.EACCES and "listen" in what:
        return f"{what}: that port needs more rights; {other}"
    if error is cause and cause.filename is not None:
        return f"{cause.filename}: {cause.strerror}; node.data says where a node keeps its files"
    return str(error)
