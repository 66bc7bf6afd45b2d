"""`postroad dev`: a node that is started again whenever a file of its program is saved."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from .helping import Command, argument
from .settings import settings_options
from .watching import Snapshot, Sources, changed, data_directory, find_configuration

BUSY = 75
"""The status of a child that cannot run here, because another node does."""

_LOOK_S = 0.3
_STOP_S = 15.0


@click.command(cls=Command)
@argument("app", required=False, metavar="[FILE]", help="The program; app.py by default.")
@settings_options
@click.option("--reload/--no-reload", default=True, help="Start again when a file is saved.")
@click.option("--debug", is_flag=True, help="Show where errors were raised.")
@click.option("--spare-port", type=int, hidden=True, help="Given by the process that watches.")
def dev(
    app: str | None,
    config: Path | None,
    settings: Mapping[str, str],
    reload: bool,
    debug: bool,
    spare_port: int | None,
) -> None:
    """Run a program here, and again whenever it is saved.

    FILE is node.app of the configuration, or else app.py. Everything it needs is in one process;
    what is durable is kept in .postroad, and is there after each start. The address of the
    dashboard is printed.

    \b
    Example: a first project
      postroad new shop
      cd shop
      postroad dev
    """
    if not reload:
        # The process that watches has no need of all that a node is made of.
        from .dev_node import run_dev_node

        run_dev_node(app, config, settings, is_debugging=debug, spare_port=spare_port)
        return
    directory = Path.cwd() if app is None else Path(app).resolve().parent
    read = find_configuration(config)
    child = [*_command(app, config, settings, debug), "--spare-port", str(_free_port())]
    _Supervisor(child, Sources(directory, [read], [data_directory(read, settings)])).run()


def _command(
    app: str | None, config: Path | None, settings: Mapping[str, str], debug: bool
) -> list[str]:
    """The same once more, in a process that does not watch."""
    command = [sys.executable, "-m", "postroad", "dev", "--no-reload"]
    command += [app] if app is not None else []
    command += ["--config", str(config)] if config is not None else []
    command += ["--debug"] if debug else []
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    return command


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class _Supervisor:
    """Keeps a child running that is as new as the files are."""

    def __init__(self, command: list[str], sources: Sources) -> None:
        self._command = command
        self._sources = sources
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Until Ctrl-C, SIGTERM, or the child was told to end in another way."""
        with _terminated_as_interrupted():
            try:
                self._watch()
            except KeyboardInterrupt:
                click.echo(err=True)
            try:
                self._stop()
            except KeyboardInterrupt:
                self._kill()
        click.secho("Stopped.", dim=True, err=True)

    def _watch(self) -> None:
        seen = self._sources.snapshot()
        self._start()
        while True:
            time.sleep(_LOOK_S)
            if self._has_ended_well():
                return
            now = self._sources.snapshot()
            if saved := changed(seen, now):
                seen = self._settled(now)
                names = ", ".join(str(os.path.relpath(it)) for it in saved[:3])
                click.secho(f"\n{names} saved: starting again.", fg="cyan", err=True)
                self._stop()
                self._start()

    def _settled(self, now: Snapshot) -> Snapshot:
        """What is there when nothing more is being saved."""
        while True:
            time.sleep(_LOOK_S / 3)
            later = self._sources.snapshot()
            if not changed(now, later):
                return later
            now = later

    def _start(self) -> None:
        # Compiled files are told apart by the second, and people save faster than that.
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        self._child = subprocess.Popen(self._command, env=environ)

    def _has_ended_well(self) -> bool:
        if self._child is None or (status := self._child.poll()) is None:
            return False
        self._child = None
        if status == BUSY:
            raise click.exceptions.Exit(1)
        if status != 0:
            click.secho("It waits for the next save; Ctrl-C ends it.", fg="yellow", err=True)
        return status == 0

    def _stop(self) -> None:
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._child = None

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM is what Ctrl-C is."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
