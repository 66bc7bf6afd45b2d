"""A real PostgreSQL server on the loopback interface.

Most tests want `fresh_database()`: an empty database each, on one server that all tests of a
session share. It is emptied and used again: to make and drop one takes several times as long.
A test that stops or disturbs the server takes one of its own: `postgres_server()`.
"""

from __future__ import annotations

import atexit
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from tests.support.servers.process import ServerProcess, free_port, send_signal

START_S = 90.0
POLL_S = 0.02

_USER = "postroad"
_MAINTENANCE = "postgres"
_DEBIAN = Path("/usr/lib/postgresql")
_INITDB_OPTIONS = (
    "--no-sync",
    "--no-instructions",
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    "--locale=C",
    f"--username={_USER}",
)
_LOG_LINES = 20
_END_OTHERS = """
    SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_DROP_ALL = """
    DO $$ DECLARE name text; BEGIN
        SET LOCAL client_min_messages = warning;
        FOR name IN SELECT nspname FROM pg_namespace
                    WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
            EXECUTE format('DROP SCHEMA %I CASCADE', name);
        END LOOP;
        CREATE SCHEMA public;
    END $$
"""
_STRATEGIES_SINCE = 150_000

HAS_SLOW_DISK = "POSTROAD_SYNC_DELAY_MS" in os.environ
"""Whether syncs are to be felt; otherwise a server does without."""


class PostgresServer:
    """A server that can be stopped, killed, paused and started again on its data."""

    def __init__(
        self, directory: Path, *, fsync: bool = HAS_SLOW_DISK, replicates: bool = False
    ) -> None:
        """Keep everything in `directory`, which the account of the server must be able to reach.

        PostgreSQL refuses to run as root: where we are root, the directory is given to the account
        that the server runs under. Without `fsync` it is quick, and loses data with the machine.
        Others can follow one that `replicates`.
        """
        self._binaries = find_binaries()
        self._account = find_account()
        self._directory = directory
        self._data = directory / "data"
        self._log = directory / "log"
        self._fsync = fsync
        self._replicates = replicates
        self._password = secrets.token_hex(16)
        self._numbers = count(1)
        self._empty: list[str] = []
        self._process: ServerProcess | None = None
        self.port = free_port()
        self.dsn = self._dsn(_MAINTENANCE)
        """Of a database that is always there."""
        self._initialise()

    def start(self) -> None:
        """Start and return when connections are accepted."""
        switches = "on" if self._fsync else "off"
        options = {
            "autovacuum": "off",
            "fsync": switches,
            "full_page_writes": switches,
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "max_wal_senders": 4 if self._replicates else 0,
            "shared_buffers": "32MB",
            "unix_socket_directories": "",
            "wal_level": "replica" if self._replicates else "minimal",
        }
        command = [str(self._binaries / "postgres"), "-D", str(self._data)]
        command += [f"--{name}={value}" for name, value in options.items()]
        with self._log.open("ab") as log:
            # At SIGQUIT it takes its own processes along; a paused one must be woken for that.
            self._process = ServerProcess(
                command,
                guard_signals=("QUIT", "CONT"),
                stderr=log,
                cwd=self._directory,
                **self._account,
            )
        deadline = time.monotonic() + START_S
        while not self._accepts():
            assert self._process.status is None, f"PostgreSQL ended:\n{self._last_words()}"
            assert time.monotonic() < deadline, f"PostgreSQL does not start:\n{self._last_words()}"
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Shut it down in good order; its clients lose their connections."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End all its processes at once, in whatever state they are."""
        process = self._running()
        # Stopped first, so that it neither starts others nor reaps: a dead child stays visible.
        process.pause()
        for pid in process.children():
            send_signal(pid, signal.SIGKILL)
        # One that lives longer would keep the next start from the data.
        while set(process.children().values()) - {"Z"}:
            time.sleep(POLL_S)
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Make it hang: connections stay open and nothing is answered."""
        process = self._running()
        process.pause()
        for pid in process.children():
            send_signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        process = self._running()
        for pid in process.children():
            send_signal(pid, signal.SIGCONT)
        process.resume()

    def close(self) -> None:
        """Be quick: nobody needs the data any more."""
        if self._process is not None:
            self.resume()
            self._end(signal.SIGQUIT)

    @contextmanager
    def database(self) -> Iterator[str]:
        """The DSN of an empty database; at the end it is emptied for whoever asks next."""
        name = self._empty.pop() if self._empty else self._create_database()
        dsn = self._dsn(name)
        try:
            yield dsn
        finally:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(_END_OTHERS)
                connection.execute(_DROP_ALL)
            self._empty.append(name)

    def _create_database(self) -> str:
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            # Half the work, and what older ones do anyway.
            has_strategies = connection.info.server_version >= _STRATEGIES_SINCE
            strategy = " STRATEGY file_copy" if has_strategies else ""
            connection.execute(f"CREATE DATABASE {name}{strategy}".encode())
        return name

    def _dsn(self, database: str) -> str:
        return f"postgresql://{_USER}:{self._password}@127.0.0.1:{self.port}/{database}"

    def _initialise(self) -> None:
        password_file = self._directory / "password"
        password_file.touch(0o600)
        password_file.write_text(self._password)
        self._log.touch()
        if self._account:
            for path in (self._directory, password_file, self._log):
                os.chown(path, self._account["user"], self._account["group"])
        command = [str(self._binaries / "initdb"), *_INITDB_OPTIONS, f"--pwfile={password_file}"]
        initdb = subprocess.run(
            [*command, "-D", str(self._data)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._directory,
            **self._account,
        )
        assert initdb.returncode == 0, f"initdb failed:\n{initdb.stdout}"

    def _accepts(self) -> bool:
        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _running(self) -> ServerProcess:
        assert self._process is not None, "start() the server first"
        return self._process

    def _end(self, number: signal.Signals) -> None:
        self._running().stop(number)
        self._process = None

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-_LOG_LINES:])


@contextmanager
def postgres_server(
    *, fsync: bool = HAS_SLOW_DISK, replicates: bool = False
) -> Iterator[PostgresServer]:
    """A running server of a test's own."""
    # Not in tmp_path, whose parents are closed to the account of the server.
    with TemporaryDirectory(prefix="postgres-") as directory:
        server = PostgresServer(Path(directory), fsync=fsync, replicates=replicates)
        try:
            server.start()
            yield server
        finally:
            server.close()


@contextmanager
def fresh_database() -> Iterator[str]:
    """The DSN of an empty database on the server that all tests share."""
    with _shared_server().database() as dsn:
        yield dsn


@cache
def _shared_server() -> PostgresServer:
    """Started when first asked for, and ended with this process."""
    stack = ExitStack()
    server = stack.enter_context(postgres_server())
    atexit.register(stack.close)
    return server


def find_binaries() -> Path:
    """The directory of initdb and postgres; the test is skipped without."""
    for directory in _places():
        if all((directory / name).exists() for name in ("initdb", "postgres")):
            return directory
    pytest.skip(f"needs PostgreSQL: no initdb on the PATH, under {_DEBIAN} or by pg_config")


def _places() -> Iterator[Path]:
    if initdb := shutil.which("initdb"):
        yield Path(initdb).resolve().parent
    versions = [path for path in _DEBIAN.glob("*/bin") if path.parent.name.isdigit()]
    yield from sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    if pg_config := shutil.which("pg_config"):
        yield Path(subprocess.check_output([pg_config, "--bindir"], text=True).strip())


def find_account() -> dict[str, Any]:
    """Options for a subprocess that refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    accounts = {entry.pw_name: entry for entry in pwd.getpwall()}
    account = accounts.get("postgres") or accounts["nobody"]
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
