"""The connection of a store while a user's function works with it: the driver's own, with limits.

A user's statements share a transaction with others. Statements that would end that transaction, or
change the connection for later users, are rejected; all else is as the driver documents it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias, TypeVar
from weakref import WeakSet

from postroad.core.errors import UsageError
from postroad.durable.store.backends.backend import StoreConnection, check_in_transaction, savepoint

logger = logging.getLogger("postroad.durable")

T = TypeVar("T")

if TYPE_CHECKING:
    _Driver: TypeAlias = Any
else:
    _Driver = object

# Methods of drivers that would end the shared transaction, or change the connection for others.
_FORBIDDEN_CONNECTION_METHODS = re.compile(
    r"adapters|backup|blobopen|cancel|cancel_safe|close|commit|deserialize|enable_load_extension"
    r"|executescript|fileno|interrupt|iterdump|load_extension|notifies|pgconn|pipeline|rollback"
    r"|serialize|set_\w+|setconfig|setlimit|tpc_\w+|transaction|wait|xid"
)
_FORBIDDEN_CURSOR_METHODS = re.compile(r"adapters|executescript|stream")

# Blanks, comments and empty statements, then the first word, or a comment within a comment, whose
# end databases do not agree on.
_FIRST_WORD = re.compile(
    r"(?:[\s;\ufeff]|--[^\n]*(?:\n|$)|/\*(?:(?!/\*).)*?\*/)*(/\*|\w*)", re.DOTALL
)
_TRANSACTION_WORDS = frozenset(
    {"ABORT", "BEGIN", "COMMIT", "END", "PREPARE", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"}
)
# These would drop what the connection has prepared for others.
_DISCARDING_WORDS = frozenset({"DEALLOCATE", "DISCARD"})
# As SQLAlchemy writes them for a session that is part of a larger transaction.
_OF_SESSION = re.compile(
    r"(?:SAVEPOINT|RELEASE SAVEPOINT|ROLLBACK TO SAVEPOINT) sa_savepoint_\d+", re.ASCII
)


def check_statement(statement: str) -> None:
    """Raise UsageError if a statement would start or end a transaction."""
    match = _FIRST_WORD.match(statement)
    word = "" if match is None else match[1].upper()
    if word == "/*":
        raise UsageError("a statement must not begin with a comment that contains another")
    if word in _TRANSACTION_WORDS:
        raise UsageError(
            f"{word} would end the commit that this transaction shares with others; "
            "to commit, return from the handler; to roll back, raise an exception"
        )
    if word in _DISCARDING_WORDS:
        raise UsageError(f"{word} would disturb the connection that others commit with")


def check_session_statement(statement: str) -> None:
    """Raise UsageError as `check_statement`, but allow the savepoints of SQLAlchemy sessions."""
    if _OF_SESSION.fullmatch(statement) is None:
        check_statement(statement)


class ConnectionLease:
    """One call of a function with the connection, which is restored afterwards.

    Args:
        database: the connection of the store.
        check_transaction: raises if the transaction is over.
        check: raises if a statement is not for users.
        uses_savepoints: whether only a statement that fails is rolled back, also in databases that
            abort the whole transaction.
    """

    def __init__(
        self,
        database: StoreConnection,
        check_transaction: Callable[[], None],
        check: Callable[[str], None] = check_statement,
        *,
        uses_savepoints: bool = True,
    ) -> None:
        self.database = database
        self.connection: GuardedConnection = database.leased
        # Whether code of the driver runs, which is not checked.
        self.is_in_driver = False
        self.cursors: WeakSet[GuardedCursor] = WeakSet()
        self._check_transaction = check_transaction
        self._check_statement = check
        self._uses_savepoints = uses_savepoints and database.aborts_on_error
        self._thread = threading.get_ident()
        self._is_over = False
        self._database_error: BaseException | None = None
        self._settings: dict[str, Any] = {}

    def __enter__(self) -> GuardedConnection:
        self.connection._lease = self
        self._settings = {
            name: getattr(self.connection, name) for name in self.connection._settable
        }
        return self.connection

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close_cursors()
        self.is_in_driver = True
        for name, value in self._settings.items():
            setattr(self.connection, name, value)
        self.is_in_driver, self._is_over = False, True
        cause, self._database_error = self._database_error, None
        if cause is not None and _is_caused_by(error, cause):
            failure = self.database.classify_error(cause)
            if failure is not None:
                raise failure from error

    def close_cursors(self) -> None:
        """Close all cursors: SQLite cannot release a savepoint before."""
        self.is_in_driver = True
        for cursor in list(self.cursors):
            try:
                cursor.close()
            except Exception as error:
                logger.debug("closing a cursor failed: %r", error)
        self.is_in_driver = False

    def check(self) -> None:
        """Raise unless the connection may be used now, in this thread."""
        if self._is_over:
            raise UsageError(
                "the connection was lent to a function that has ended; fetch what is needed "
                "inside of it, and return that"
            )
        if threading.get_ident() != self._thread:
            raise UsageError(
                "the connection was lent to a function in another thread; use it in that one"
            )
        self._check_transaction()

    def drive(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function of the driver, and record an error of the database."""
        self.check()
        self.is_in_driver = True
        try:
            return function(*args, **options)
        except Exception as error:
            if self.database.classify_error(error) is not None:
                self._database_error = error
            raise
        finally:
            self.is_in_driver = False

    @contextmanager
    def running(self, statement: object) -> Iterator[str]:
        """Return the context in which a statement runs; it yields the text of the statement."""
        text = self._text_of(statement)
        self._check_statement(text)
        check_in_transaction(self.database)
        alone = savepoint(self.database, "postroad_statement")
        with alone if self._uses_savepoints else nullcontext(), self.database.guarding(text):
            yield text

    def _text_of(self, statement: object) -> str:
        if isinstance(statement, str):
            return statement
        if isinstance(statement, bytes):
            return statement.decode(errors="replace")
        as_string = getattr(statement, "as_string", None)
        if as_string is None:
            raise UsageError(f"a statement is a text, not {type(statement).__name__}")
        return str(as_string(self.connection))

    def reject(self, what: str, *args: Any, **options: Any) -> NoReturn:
        """Raise UsageError, with any arguments."""
        self.check()
        raise UsageError(
            f"{what} is not for a connection that is lent: it would change or end the commit that "
            "this transaction shares with others; use execute(), return from the function to keep "
            "what it did, raise to undo it"
        )


def _is_caused_by(error: BaseException | None, origin: BaseException) -> bool:
    while error is not None and error is not origin:
        error = error.__cause__
    return error is not None


class _Guarded(_Driver):  # type: ignore[misc]  # The other base is the class of a driver.
    """An object of a driver that only the function it is lent to can use."""

    _lease: ConnectionLease | None = None
    _rejected: ClassVar[re.Pattern[str]]
    # Attributes that users may set until the function ends; empty: all.
    _settable: ClassVar[tuple[str, ...]] = ()

    def __getattribute__(self, name: str) -> Any:
        get = super().__getattribute__
        if name[0] == "_":
            return get(name)
        lease: ConnectionLease | None = self._lease
        if lease is None or lease.is_in_driver:
            return get(name)
        value = lease.drive(get, name)
        if self._rejected.fullmatch(name):
            # Methods are rejected when they are called: some code only looks whether they exist.
            return partial(lease.reject, f"{name}()") if callable(value) else lease.reject(name)
        return partial(lease.drive, value) if getattr(value, "__self__", None) is self else value

    def __setattr__(self, name: str, value: Any) -> None:
        lease = self._lease
        if name[0] != "_" and lease is not None and not lease.is_in_driver:
            lease.check()
            if self._settable and name not in self._settable:
                raise UsageError(
                    f"{name} of a borrowed connection cannot be changed: the store depends on it"
                )
        super().__setattr__(name, value)


class GuardedConnection(_Guarded):
    """A lent connection: a mixin for the connection class of a driver."""

    _rejected = _FORBIDDEN_CONNECTION_METHODS

    def execute(self, statement: Any, *args: Any, **options: Any) -> Any:
        """Run a statement with a cursor of its own."""
        return self.cursor().execute(statement, *args, **options)

    def executemany(self, statement: Any, rows: Any) -> Any:
        """Run a statement with each of some parameters."""
        cursor = self.cursor()
        cursor.executemany(statement, rows)
        return cursor

    def __enter__(self) -> NoReturn:
        assert self._lease is not None
        self._lease.reject("`with connection`")


class GuardedCursor(_Guarded):
    """A cursor of a lent connection: a mixin for the cursor classes of its driver."""

    _rejected = _FORBIDDEN_CURSOR_METHODS

    def __init__(self, connection: GuardedConnection, *args: Any, **options: Any) -> None:
        self._lease = connection._lease
        super().__init__(connection, *args, **options)
        assert self._lease is not None
        self._lease.cursors.add(self)

    def execute(self, statement: Any, *args: Any, **options: Any) -> Any:
        """Run a statement."""
        assert self._lease is not None
        with self._lease.running(statement) as text:
            parameters = args[0] if args else options.get("params")
            options |= self._lease.database.single_statement_options(text, parameters)
            return super().execute(statement, *args, **options)

    def executemany(self, statement: Any, rows: Any, **options: Any) -> Any:
        """Run a statement with each of some parameters."""
        assert self._lease is not None
        with self._lease.running(statement):
            return super().executemany(statement, rows, **options)


def call_with_connection(
    database: StoreConnection, check_transaction: Callable[[], None], function: Callable[[Any], T]
) -> T:
    """Call a function with the lent connection."""
    with ConnectionLease(database, check_transaction) as connection:
        return function(connection)
