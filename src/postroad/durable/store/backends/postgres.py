"""A store in a schema of a PostgreSQL database."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from postroad.core.errors import (
    ConfigError,
    MissingExtraError,
    StoreError,
    StoreLockedError,
    StoreUnavailableError,
)
from postroad.durable.store.store import Store

from .backend import DatabaseBackend, DatabaseRow, StoreConnection
from .postgres_sessions import PostgresSessions, find_commit_risks

if TYPE_CHECKING:
    import psycopg

    from .guarded_psycopg import GuardedPsycopgConnection

logger = logging.getLogger("postroad.durable")

_TYPES = {
    "id": "BIGINT PRIMARY KEY",
    "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "blob": "BYTEA",
    "clustered": "",
}
_CONNECT_S = 10
# The session of a killed process keeps its lock until the server notices, which is when the
# statement ends that it was running. A process that is started again waits so long for that.
_LOCK_S = 2.0
_LOCK_POLL_S = 0.02


# Errors that are of a statement of a user, not of the store: serialization failures and deadlocks,
# program limits, states of objects, locks of others, timeouts.
_STATEMENT_SQLSTATES = ("40", "54", "55", "57014")
# A name that several constraints share counts only if all of them are deferred.
_DEFERRED_CONSTRAINTS = """
    SELECT string_agg(name, ', ') FROM (
        SELECT format('%I.%I', nspname, conname) AS name
        FROM pg_constraint JOIN pg_namespace ON pg_namespace.oid = connamespace
        GROUP BY nspname, conname HAVING bool_and(condeferred)) AS names
"""


@contextmanager
def translating_errors(where: str, *, is_users: bool = False) -> Iterator[None]:
    """Tell failures of the server apart from mistakes in a statement."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        if is_users and _is_statement_error(error):
            raise
        failure = _classify_error(where, error)
        if failure is None:
            raise
        raise failure from error


def _is_statement_error(error: BaseException) -> bool:
    return (getattr(error, "sqlstate", None) or "").startswith(_STATEMENT_SQLSTATES)


def _classify_error(where: str, error: BaseException) -> StoreError | None:
    import psycopg

    lost = psycopg.errors.IdleInTransactionSessionTimeout
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | lost):
        reason = " ".join(str(error).split())
        return StoreUnavailableError(f"store {where} cannot be used now: {reason}")
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return StoreUnavailableError(f"store {where} is read-only now: {error}")
    return None


def _rows_of(cursor: psycopg.Cursor[DatabaseRow]) -> list[DatabaseRow]:
    return [] if cursor.description is None else cursor.fetchall()


class PostgresStoreConnection(StoreConnection):
    """One connection to a PostgreSQL server."""

    aborts_on_error = True
    dialect = "postgresql+psycopg"

    def __init__(self, sessions: PostgresSessions, where: str) -> None:
        self._sessions = sessions
        with translating_errors(where):
            self._connection, self._resets = sessions.open()
        self._where = where
        self._leased: GuardedPsycopgConnection | None = None
        self._translated: dict[str, bytes] = {}
        # Statements that are sent with the next one: a round trip of their own takes longer.
        self._pending_statements: list[str] = []
        # Keys of advisory locks, which keep other processes out.
        self.locks: list[int] = []
        # Whether deferred constraints are checked at once in this transaction, and which ones were
        # deferred at its start, once that was read.
        self._checks_immediately = False
        self._deferred_constraints: str | None = None

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[DatabaseRow]:
        return _rows_of(self._run(statement, parameters))

    def _translate(self, statement: str) -> bytes:
        translated = self._translated.get(statement)
        if translated is None:
            translated = statement.replace("%", "%%").replace("?", "%s").encode()
            self._translated[statement] = translated
        return translated

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        return self._run(statement, parameters).rowcount

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self.flush()
        with translating_errors(self._where), self._connection.cursor() as cursor:
            cursor.executemany(self._translate(statement), rows)

    def execute_native(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[DatabaseRow]:
        # With `binary` the statement is sent by a protocol that allows only one.
        self.flush()
        with translating_errors(self._where, is_users=True):
            return _rows_of(self._connection.execute(statement.encode(), parameters, binary=True))

    def begin_savepoint(self, lock_s: float, statement_s: float) -> None:
        self._pending_statements += (
            *self._restore_deferred(),
            "SAVEPOINT postroad_turn",
            *self._sessions.limit_savepoint(lock_s, statement_s),
        )

    def _restore_deferred(self) -> list[str]:
        """Return statements that defer constraints again after an earlier `check_savepoint`."""
        if not self._checks_immediately:
            return []
        self._checks_immediately = False
        if self._deferred_constraints is None:
            ((names,),) = self.execute(_DEFERRED_CONSTRAINTS)
            self._deferred_constraints = names or ""
        return (
            [f"SET CONSTRAINTS {self._deferred_constraints} DEFERRED"]
            if self._deferred_constraints
            else []
        )

    def check_savepoint(self) -> None:
        # Otherwise the commit would fail, and it would not be known because of which user.
        with translating_errors(self._where, is_users=True):
            self._send("SET CONSTRAINTS ALL IMMEDIATE", *self._resets, *self._relock())
        self._checks_immediately = True

    def rollback_savepoint(self) -> None:
        self._pending_statements += (
            "ROLLBACK TO SAVEPOINT postroad_turn",
            "RELEASE SAVEPOINT postroad_turn",
            *self._relock(),
        )

    def release_savepoint(self) -> None:
        self.execute_later("RELEASE SAVEPOINT postroad_turn")

    def _relock(self) -> list[str]:
        """Return statements that acquire all locks again: a user may have released some."""
        return [f"SELECT pg_try_advisory_lock({key})" for key in self.locks]

    def execute_later(self, statement: str) -> None:
        self._pending_statements.append(statement)

    def flush(self) -> None:
        if self._pending_statements:
            with translating_errors(self._where):
                self._send()

    def _send(self, *statements: str) -> psycopg.Cursor[DatabaseRow]:
        """Run statements without parameters in one message, after the deferred ones."""
        text = "; ".join((*self._pending_statements, *statements))
        self._pending_statements.clear()
        return self._connection.execute(text.encode(), prepare=False)

    def _run(self, statement: str, parameters: Sequence[Any]) -> psycopg.Cursor[DatabaseRow]:
        import psycopg

        self.flush()
        with translating_errors(self._where):
            try:
                return self._connection.execute(self._translate(statement), parameters)
            except psycopg.errors.InvalidSqlStatementName:
                # A user has deallocated prepared statements; a new connection prepares them again.
                self._connection.close()
                raise

    @property
    def leased(self) -> GuardedPsycopgConnection:
        if self._leased is None:
            from .guarded_psycopg import GuardedPsycopgConnection

            self._leased = GuardedPsycopgConnection(self._connection)
        return self._leased

    def single_statement_options(self, statement: str, parameters: object) -> dict[str, Any]:
        # If it is not certain that there is only one, the server checks: see execute_native.
        return {} if parameters or ";" not in statement.rstrip("; \t\r\n") else {"binary": True}

    def classify_error(self, error: BaseException) -> StoreError | None:
        import psycopg

        if isinstance(error, psycopg.InterfaceError) and not self._connection.closed:
            # For example of a cursor that its user has closed.
            return None
        if _is_statement_error(error):
            return None
        return _classify_error(self._where, error)

    def begin(self) -> None:
        self._checks_immediately, self._deferred_constraints = False, None
        self.execute("BEGIN")

    def prepare(self) -> None:
        """Not needed."""

    def commit(self) -> None:
        with translating_errors(self._where):
            self._send("COMMIT")

    def rollback(self) -> None:
        self._pending_statements.clear()
        self.execute("ROLLBACK")

    def cancel(self) -> None:
        self._connection.cancel_safe(timeout=_CONNECT_S)

    @property
    def is_in_transaction(self) -> bool:
        return bool(self._connection.info.transaction_status.value)

    def find_commit_risks(self) -> list[str]:
        """Return how the server may lose acknowledged commits, each with what prevents it."""
        with translating_errors(self._where):
            return find_commit_risks(self._connection)

    def close(self) -> None:
        try:
            if not self._connection.closed:
                # The server may need a moment to notice that the connection is gone.
                self._connection.execute("SELECT pg_advisory_unlock_all()")
        finally:
            self._connection.close()


class PostgresBackend(DatabaseBackend):
    """A schema of a PostgreSQL database; an advisory lock keeps a second process out."""

    column_types = _TYPES
    is_shared = True
    simulated_sync_s = 0.0
    idle_check_s = 5.0

    def __init__(self, dsn: str, schema: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise MissingExtraError("postgres", "a store in PostgreSQL") from None
        if not schema.isidentifier():
            raise ConfigError(f"schema {schema!r} must consist of letters, digits and '_'")
        self._psycopg = psycopg
        self._schema = schema
        self._where = self._describe(dsn)
        self._sessions = PostgresSessions(dsn, schema, self._where)
        self._roles: list[str] = []

    def _describe(self, dsn: str) -> str:
        try:
            parts = self._psycopg.conninfo.conninfo_to_dict(dsn)
        except self._psycopg.ProgrammingError as error:
            raise ConfigError(f"invalid connection string of PostgreSQL: {error}") from None
        # Without the password.
        place = f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}"
        return f"postgresql://{place}/{parts.get('dbname', '')} schema {self._schema}"

    def exists(self) -> bool:
        # Not known before the owner is read.
        return True

    def lock(self, role: str) -> None:
        # Acquired and released with the connection.
        self._roles.append(role)

    def lock_additional_role(self, role: str, database: StoreConnection) -> None:
        assert isinstance(database, PostgresStoreConnection)
        self._take_lock(database, role)
        self._roles.append(role)

    def connect(self) -> PostgresStoreConnection:
        """Open a connection that holds the locks: they end with it."""
        database = self._open()
        try:
            for role in self._roles:
                self._take_lock(database, role)
        except BaseException:
            database.close()
            raise
        return database

    def _take_lock(self, database: PostgresStoreConnection, role: str) -> None:
        key = self._lock_key(role)
        deadline = time.monotonic() + _LOCK_S
        while database.execute("SELECT pg_try_advisory_lock(?)", (key,)) != [(True,)]:
            if time.monotonic() > deadline:
                raise StoreLockedError(
                    f"store {self._where} is used by another {role}; stop that one first"
                )
            time.sleep(_LOCK_POLL_S)
        database.locks.append(key)

    def _lock_key(self, purpose: str) -> int:
        name = f"postroad/{self._schema}/{purpose}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), signed=True)

    def lock_schema(self, database: StoreConnection) -> None:
        key = self._lock_key("preparation")
        database.execute("SELECT pg_advisory_xact_lock(?)", (key,))
        database.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')

    def connect_reader(self) -> PostgresStoreConnection:
        database = self._open()
        database.execute("SET default_transaction_read_only = on")
        return database

    def _open(self) -> PostgresStoreConnection:
        return PostgresStoreConnection(self._sessions, self._where)

    def check(self, database: StoreConnection) -> None:
        """Warn of lost commits; the server checks its data by itself, where checksums are on."""
        assert isinstance(database, PostgresStoreConnection)
        if risks := database.find_commit_risks():
            logger.warning(
                "store %s may lose commits that were acknowledged: %s",
                self._where,
                "; ".join(risks),
            )

    def record_commits(self, role: str, commits: int) -> None:
        """Not recorded: there is no place beside the data."""

    def unlock(self) -> None:
        self._roles.clear()

    def __str__(self) -> str:
        return self._where


class PostgresStore(Store):
    """A store in a schema of a PostgreSQL database.

    Args:
        dsn: a connection string, `postgresql://user@host/database`.
        schema: where the tables are; two nodes in one database need two.
    """

    def __init__(self, dsn: str, schema: str = "postroad") -> None:
        super().__init__(PostgresBackend(dsn, schema))
