"""Sessions of SQLAlchemy on the store's own connection; the only module that knows SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from postroad.core.errors import MissingExtraError, UsageError
from postroad.durable.store.backends.backend import StoreConnection

from .guarded_connection import ConnectionLease, check_session_statement

T = TypeVar("T")


def check_sqlalchemy_installed() -> None:
    """Raise MissingExtraError without SQLAlchemy."""
    try:
        import sqlalchemy.orm  # noqa: F401
    except ImportError:
        raise MissingExtraError("sqlalchemy", "a session of SQLAlchemy") from None


class SqlAlchemySessions:
    """An engine on one connection of a store, kept because it is slow to create."""

    def __init__(self, database: StoreConnection) -> None:
        import sqlalchemy

        # While the user's function runs: the session ends its work with savepoints alone.
        self._is_shared = False
        # Whether a rollback below the session was requested, which cannot be done alone.
        self._is_spoilt = False
        # Otherwise types are looked up when the first session starts.
        options = {"use_native_hstore": False} if database.aborts_on_error else {}
        self._engine = sqlalchemy.create_engine(
            f"{database.dialect}://",
            creator=lambda: database.leased,
            poolclass=sqlalchemy.StaticPool,
            **options,
        )
        dialect: Any = self._engine.dialect
        dialect.do_commit, dialect.do_rollback = self._commit, self._roll_back
        dialect.do_close = dialect.do_terminate = _ignore_close

    def _commit(self, connection: object) -> NoReturn:
        raise UsageError(
            "this would end the commit that the transaction shares with others; "
            "use session.commit(), or return from the function"
        )

    def _roll_back(self, connection: object) -> None:
        """Roll back nothing; while a session uses the connection, fail it."""
        if self._is_shared:
            self._is_spoilt = True
            self._check()

    def _check(self) -> None:
        """Raise if the connection was rolled back or returned below the session."""
        if self._is_spoilt:
            raise UsageError(
                "a connection below the session was rolled back or given back; everything the "
                "function did is undone: use session.rollback() or session.begin_nested()"
            )

    def call(self, lease: ConnectionLease, function: Callable[[Any], T]) -> T:
        """Call a function with a session, and keep what it did if it returns."""
        from sqlalchemy.orm import Session

        self._is_spoilt = False
        with self._engine.connect() as connection:
            connection.begin()
            with Session(
                connection,
                join_transaction_mode="create_savepoint",
                # What the function returns can be read without a session.
                expire_on_commit=False,
            ) as session:
                self._is_shared = True
                try:
                    result = function(session)
                    # Results that it did not read to their end.
                    lease.close_cursors()
                    session.commit()
                    self._check()
                finally:
                    self._is_shared = False
                return result


def _ignore_close(connection: object) -> None:
    """Not closed: it belongs to the store."""


def call_with_session(
    database: StoreConnection, check_transaction: Callable[[], None], function: Callable[[Any], T]
) -> T:
    """Call a function with a session on the connection."""
    # After a failure SQLAlchemy's own rules hold: session.rollback(), or session.begin_nested().
    lease = ConnectionLease(
        database, check_transaction, check_session_statement, uses_savepoints=False
    )
    with lease:
        if database.session_factory is None:
            database.session_factory = SqlAlchemySessions(database)
        sessions: SqlAlchemySessions = database.session_factory
        return sessions.call(lease, function)
