"""Sessions of SQLAlchemy on the store's own connection; the only module that knows SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from postroad.core.errors import MissingExtraError, UsageError

from .database import Database
from .guarded import GuardedConnection, Loan
from .statements import check_session_statement

T = TypeVar("T")

_OWN = frozenset({"is_shared", "is_spoilt", "loan"})


def check_installed() -> None:
    """Raise MissingExtraError without SQLAlchemy."""
    try:
        import sqlalchemy.orm  # noqa: F401
    except ImportError:
        raise MissingExtraError("sqlalchemy", "a session of SQLAlchemy") from None


class _Connection:
    """What SQLAlchemy takes for its only connection: whatever is lent at the moment."""

    def __init__(self) -> None:
        self.loan: Loan | None = None
        # While the user's function runs: the session ends its work with savepoints alone.
        self.is_shared = False
        # Whether something was to be undone that cannot be told apart from the rest.
        self.is_spoilt = False

    def commit(self) -> NoReturn:
        raise UsageError(
            "this would end the commit that the transaction shares with others; "
            "use session.commit(), or return from the function"
        )

    def rollback(self) -> None:
        """Nothing is left to undo when SQLAlchemy gives the connection back."""
        if self.is_shared:
            self.is_spoilt = True
            self.check()

    def close(self) -> None:
        """It is the store's."""

    def check(self) -> None:
        """Raise if somebody thinks something is undone that is not."""
        if self.is_spoilt:
            raise UsageError(
                "a connection below the session was rolled back or given back; everything the "
                "function did is undone: use session.rollback() or session.begin_nested()"
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lent(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._lent(), name, value)

    def _lent(self) -> GuardedConnection:
        if self.loan is None:
            raise UsageError("the session was lent to a function that has ended")
        return self.loan.connection


class SessionSource:
    """An engine on one connection of a store: it is slow to make, and keeps what it learns."""

    def __init__(self, dialect: str) -> None:
        import sqlalchemy

        self._connection = _Connection()
        # Its types are looked up on a connection of psycopg, and this one only acts like it.
        options = {"use_native_hstore": False} if dialect.startswith("postgresql") else {}
        self._engine = sqlalchemy.create_engine(
            f"{dialect}://",
            creator=lambda: self._connection,
            poolclass=sqlalchemy.StaticPool,
            **options,
        )

    def run(self, loan: Loan, function: Callable[[Any], T]) -> T:
        """Call a function with a session, and keep what it did if it returns."""
        from sqlalchemy.orm import Session

        shared = self._connection
        shared.loan, shared.is_spoilt = loan, False
        try:
            with self._engine.connect() as connection:
                connection.begin()
                with Session(
                    connection,
                    join_transaction_mode="create_savepoint",
                    # What the function returns can be read without a session.
                    expire_on_commit=False,
                ) as session:
                    result = self._call(function, session, loan)
            return result
        finally:
            shared.loan = None

    def _call(self, function: Callable[[Any], T], session: Any, loan: Loan) -> T:
        shared = self._connection
        shared.is_shared = True
        try:
            result = function(session)
            # Results that it did not read to their end.
            loan.close_cursors()
            session.commit()
            shared.check()
        finally:
            shared.is_shared = False
        return result


def lend_session(
    database: Database, check_turn: Callable[[], None], function: Callable[[Any], T]
) -> T:
    """Call a function with a session on the connection."""
    # After a failure SQLAlchemy's own rules hold: session.rollback(), or session.begin_nested().
    with Loan(database, check_turn, check_session_statement, isolates=False) as loan:
        if database.sessions is None:
            database.sessions = SessionSource(database.dialect)
        source: SessionSource = database.sessions
        return source.run(loan, function)
