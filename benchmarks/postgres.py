"""A PostgreSQL server beside the contenders, with its own defaults: each commit is synced."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.harness import BenchmarkFailed
from benchmarks.servers import await_start, free_ports, is_listening, server_process

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEBIAN = Path("/usr/lib/postgresql")
_USER = "benchmark"


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server until the block ends; the URL of its empty database."""
    binaries = _find_binaries()
    # Not in a scratch directory, whose parents may be closed to the account of the server.
    with TemporaryDirectory(prefix="postgres-") as name:
        directory, log = Path(name), Path(name) / "log"
        account = _account()
        if account:
            os.chown(directory, account["user"], account["group"])
        data = directory / "data"
        initdb = [str(binaries / "initdb"), "--auth=trust", f"--username={_USER}", "-D", str(data)]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=directory, **account)
        (port,) = free_ports(1)
        command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-k", ""]
        environment = {"PATH": os.environ["PATH"]}
        with server_process(command, log, environment, **account) as process:
            await_start(process, partial(is_listening, port), log)
            url = f"postgresql://{_USER}@127.0.0.1:{port}/postgres"
            await_start(process, partial(_answers, url), log)
            yield url


def _answers(url: str) -> bool:
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _find_binaries() -> Path:
    for directory in (Path(shutil.which("initdb") or "/").parent, *sorted(_DEBIAN.glob("*/bin"))):
        if (directory / "initdb").exists():
            return directory
    raise BenchmarkFailed("PostgreSQL is not installed: no initdb on the PATH")


def _account() -> dict[str, Any]:
    """The account of a server that refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    accounts = {entry.pw_name: entry for entry in pwd.getpwall()}
    account = accounts.get("postgres") or accounts["nobody"]
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
