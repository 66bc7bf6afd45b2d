"""A real PgBouncer on the loopback interface, in front of a PostgreSQL server."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.servers.postgres import find_account
from tests.support.servers.process import LocalServer, ServerProcess, find_server

_CONFIG = """\
[databases]
* = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {directory}/users
{more}
"""


class PgBouncer(LocalServer):
    """A pooler; `dsn` leads to the same database through it."""

    def __init__(self, directory: Path, dsn: str, more: str) -> None:
        """`more` goes into its configuration."""
        super().__init__(directory, "postgresql")
        self._binary = find_server("pgbouncer", "pgbouncer")
        parts = conninfo_to_dict(dsn)
        self.dsn = make_conninfo(dsn, port=self.port)
        # It refuses to run as root.
        self._account = find_account()
        self._config = directory / "pgbouncer.ini"
        self._config.write_text(
            _CONFIG.format(
                server_port=parts["port"], port=self.port, directory=directory, more=more
            )
        )
        users = directory / "users"
        users.write_text(f'"{parts["user"]}" "{parts["password"]}"\n')
        if self._account:
            for path in (directory, self._config, users):
                os.chown(path, self._account["user"], self._account["group"])

    def launch(self) -> ServerProcess:
        return ServerProcess([self._binary, str(self._config)], **self._account)


def pgbouncer(dsn: str, more: str) -> AbstractContextManager[PgBouncer]:
    """A running pooler of a test's own."""
    return PgBouncer.running(dsn, more)
