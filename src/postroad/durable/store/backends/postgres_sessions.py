"""Opens sessions of a PostgreSQL server, rejects poolers without sessions, finds commit risks."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from postroad.core.errors import StoreUnavailableError

if TYPE_CHECKING:
    import psycopg

    from .backend import DatabaseRow

# Either end gives up an unreachable peer after 11 s without traffic, and after 15 s with some.
_CLIENT_SETTINGS = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
_STATEMENT = "statement_timeout"
_LOCK = "lock_timeout"
_IDLE = "idle_in_transaction_session_timeout"
_SERVER_SETTINGS: dict[str, int | str] = {
    # No statement of Postroad takes long; a server that hangs must not hang a node for ever.
    _STATEMENT: 60_000,
    _LOCK: 20_000,
    # A process that hangs in a transaction keeps others out of its rows, and out of the store.
    _IDLE: 20_000,
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "synchronous_commit": "on",
}
# Time after the timeout of a transaction until the server ends the session of its process.
_HANG_S = 10.0
_OPTION_NAMES = re.compile(r"(?:-c\s*|--)([\w.-]+)=")
# Resets all settings of users, however they were set.
_RESET = ("RESET ALL", "RESET SESSION AUTHORIZATION", "RESET ROLE")

# So often two clients look whether they share a session: others may take it in between.
_POOL_PROBES = 5
_SETTINGS_OF_COMMITS = """
    SELECT current_setting('fsync'), current_setting('synchronous_commit'),
        current_setting('synchronous_standby_names')
"""
# Of replication only a superuser sees the state; logical replication and backups are no standbys.
_COUNT_STANDBYS = """
    SELECT count(*) FROM pg_stat_replication
    WHERE coalesce(state, 'streaming') IN ('streaming', 'catchup') AND pid NOT IN (
        SELECT active_pid FROM pg_replication_slots
        WHERE slot_type = 'logical' AND active_pid IS NOT NULL)
"""


def _to_ms(seconds: float) -> int:
    # 0 would mean that there is no limit.
    return max(1, round(seconds * 1000))


class PostgresSessions:
    """Opens sessions of a store with settings, unless the connection string has them.

    Raises:
        psycopg.ProgrammingError: the connection string is invalid.
    """

    def __init__(self, dsn: str, schema: str, where: str) -> None:
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        parts = conninfo_to_dict(dsn)
        self._where = where
        self._dsn = make_conninfo(
            dsn, **{name: value for name, value in _CLIENT_SETTINGS.items() if name not in parts}
        )
        self._options = str(parts.get("options") or os.environ.get("PGOPTIONS", ""))
        self._given = {
            name.replace("-", "_").lower() for name in _OPTION_NAMES.findall(self._options)
        }
        self._settings = {
            name: value for name, value in _SERVER_SETTINGS.items() if name not in self._given
        }
        # Temporary tables of a user, which would come first, are searched last.
        self._settings["search_path"] = f'"{schema}",public,pg_temp'

    def open(self) -> tuple[psycopg.Connection[DatabaseRow], tuple[str, ...]]:
        """A session, and the statements that undo whatever its users have set.

        Raises:
            StoreUnavailableError: a pooler is in between that keeps no sessions.
        """
        import psycopg

        settings = " ".join(f"-c {name}={value}" for name, value in self._settings.items())
        try:
            connection = psycopg.connect(
                self._dsn, autocommit=True, options=f"{self._options} {settings}"
            )
        except psycopg.OperationalError as error:
            # The error of PgBouncer.
            if "unsupported startup parameter" not in str(error):
                raise
            connection = psycopg.connect(self._dsn, autocommit=True)
        try:
            return connection, self._set_up(connection)
        except BaseException:
            connection.close()
            raise

    def _set_up(self, connection: psycopg.Connection[DatabaseRow]) -> tuple[str, ...]:
        # A pooler gives clients numbers of its own.
        if _session_of(connection) == connection.info.backend_pid:
            return _RESET
        if self._is_session_shared(connection):
            raise StoreUnavailableError(
                f"store {self._where} is reached through a pooler that gives each transaction "
                "another session, as PgBouncer does with pool_mode transaction or statement, and "
                "its lock needs one that stays: connect to PostgreSQL directly, or set pool_mode "
                "to session for this database"
            )
        # Poolers reject or ignore the settings of sessions.
        statements = tuple(f"SET {name} = {value}" for name, value in self._settings.items())
        connection.execute("; ".join(statements).encode())
        return _RESET + statements

    def _is_session_shared(self, connection: psycopg.Connection[DatabaseRow]) -> bool:
        import psycopg

        session = _session_of(connection)
        with psycopg.connect(self._dsn, autocommit=True) as other:
            for _ in range(_POOL_PROBES):
                # Two sessions in turn would seem to be one each if the clients took turns, too.
                own = {_session_of(connection), _session_of(connection)}
                if own != {session} or _session_of(other) == session:
                    return True
        return False

    def limit_savepoint(self, lock_s: float, statement_s: float) -> list[str]:
        """Return the statements that limit the statements of a user until the next reset."""
        limits = {
            _LOCK: _to_ms(lock_s),
            _STATEMENT: _to_ms(statement_s),
            _IDLE: _to_ms(statement_s + _HANG_S),
        }
        return [
            f"SET LOCAL {name} = {limit}"
            for name, limit in limits.items()
            if self._settings.get(name, limit) != limit
        ]


def _session_of(connection: psycopg.Connection[DatabaseRow]) -> int:
    ((session,),) = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchall()
    return int(session)


def find_commit_risks(connection: psycopg.Connection[DatabaseRow]) -> list[str]:
    """Return how acknowledged commits may be lost, each with what prevents it."""
    ((fsync, synchronous, standby_names),) = connection.execute(_SETTINGS_OF_COMMITS).fetchall()
    ((standbys,),) = connection.execute(_COUNT_STANDBYS.encode()).fetchall()
    risks = []
    if fsync == "off":
        risks.append("fsync is off, so a crash of its machine may cost all data: set fsync = on")
    if synchronous in ("off", "local"):
        risks.append(
            f"the connection string sets synchronous_commit to {synchronous}, so a crash or "
            "fail-over loses the last commits: leave it out, or set it to on"
        )
    if standbys and not standby_names:
        risks.append(
            f"its standbys ({standbys}) replicate asynchronously, so a fail-over loses the last "
            "commits: set synchronous_standby_names"
        )
    return risks
