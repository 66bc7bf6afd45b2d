"""The store's own connection, lent to a function of a user for as long as that runs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from postroad.core.errors import UsageError

from .database import Database, check_in_transaction, savepoint
from .statements import check_statement

logger = logging.getLogger("postroad.durable")

T = TypeVar("T")

_ENDS = (
    "would end the commit that this transaction shares with others; return from the function to "
    "keep what it did, raise to undo it"
)
_ONE_BY_ONE = "would end the commit of others too; execute the statements one by one"
_NOT_LENT = "is not for a connection that is lent; use cursor(), execute() or executemany()"
_REFUSED = {
    "cancel": "would disturb the store; return from the function instead",
    "close": "would take the connection from the store; return from the function instead",
    "commit": _ENDS,
    "executescript": _ONE_BY_ONE,
    "pipeline": _ONE_BY_ONE,
    "rollback": _ENDS,
    "transaction": _ENDS,
}
_TEXTS = re.compile("'(?:[^']|'')*'")
_ERRORS = frozenset(
    {
        "DataError",
        "DatabaseError",
        "Error",
        "IntegrityError",
        "InterfaceError",
        "InternalError",
        "NotSupportedError",
        "OperationalError",
        "ProgrammingError",
        "Warning",
    }
)
# What neither changes the transaction nor outlives the call in a way that harms the store.
_OF_CONNECTIONS = _ERRORS | {
    "add_notice_handler",
    "broken",
    "closed",
    "create_aggregate",
    "create_collation",
    "create_function",
    "create_window_function",
    "getlimit",
    "in_transaction",
    "info",
    "isolation_level",
    "remove_notice_handler",
    "total_changes",
}
_OF_CURSORS = frozenset(
    {
        "arraysize",
        "closed",
        "description",
        "format",
        "itersize",
        "lastrowid",
        "name",
        "nextset",
        "row_factory",
        "rowcount",
        "rownumber",
        "scroll",
        "scrollable",
        "setinputsizes",
        "setoutputsize",
        "statusmessage",
        "withhold",
    }
)
_SET_OF_CURSORS = frozenset({"arraysize", "itersize", "row_factory"})


class Loan:
    """What is lent to one call of a function, and how that ends.

    Args:
        database: whose connection it is.
        check_turn: raises if the transaction is over.
        rule: raises if a statement is not for users.
        isolates: whether a statement that fails undoes only itself, also where databases give up
            the whole transaction.
    """

    def __init__(
        self,
        database: Database,
        check_turn: Callable[[], None],
        rule: Callable[[str], None] = check_statement,
        *,
        isolates: bool = True,
    ) -> None:
        self.database = database
        self.native = database.native
        self.row_factory: Any = self.native.row_factory
        self._text_factory: Any = getattr(self.native, "text_factory", None)
        self._check_turn = check_turn
        self._rule = rule
        self._isolates = isolates and database.aborts_on_error
        self._cursors: WeakSet[GuardedCursor] = WeakSet()
        # The last thing that went wrong with the database itself.
        self._trouble: BaseException | None = None
        self._is_over = False
        self.connection = GuardedConnection(self)

    def __enter__(self) -> Loan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        trouble, self._trouble = self._trouble, None
        self.close_cursors()
        if self._text_factory is not None:
            self.native.text_factory = self._text_factory
        if trouble is not None and _comes_from(error, trouble):
            failure = self.database.name_failure(trouble)
            if failure is not None:
                raise failure from error

    def check(self) -> None:
        """Raise unless the connection may be used now."""
        if self._is_over:
            raise UsageError(
                "the connection was lent to a function that has ended; fetch what is needed "
                "inside of it, and return that"
            )
        self._check_turn()

    def close_cursors(self) -> None:
        """End what is under way: SQLite can release no savepoint before."""
        for cursor in list(self._cursors):
            cursor._abandon()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Remember what goes wrong with the database."""
        self.check()
        try:
            yield
        except Exception as error:
            if self.database.name_failure(error) is not None:
                self._trouble = error
            raise

    @contextmanager
    def running(self, statement: object) -> Iterator[str]:
        """Run a statement within, whose text this is."""
        with self.watching():
            text = self._read(statement)
            self._rule(text)
            check_in_transaction(self.database)
            alone = savepoint(self.database, "postroad_statement")
            with alone if self._isolates else nullcontext(), self.database.watching(text):
                yield text

    def _read(self, statement: object) -> str:
        if isinstance(statement, str):
            return statement
        if isinstance(statement, bytes):
            return statement.decode(errors="replace")
        as_string = getattr(statement, "as_string", None)
        if as_string is None:
            raise UsageError(f"a statement is a text, not {type(statement).__name__}")
        return str(as_string(self.native))

    def cursor(self, args: tuple[Any, ...], options: dict[str, Any]) -> GuardedCursor:
        """A cursor that ends with the loan."""
        with self.watching():
            native = self.native.cursor(*args, **options)
        if "row_factory" not in options:
            native.row_factory = self.row_factory
        cursor = GuardedCursor(self, native)
        self._cursors.add(cursor)
        return cursor

    def find(self, native: Any, name: str, passed: Set[str]) -> Any:
        """An attribute of the driver's object, if it is for users."""
        if name.startswith("_") or not hasattr(native, name):
            raise AttributeError(f"{type(native).__name__!r} has no attribute {name!r}", name=name)
        self.check()
        value = getattr(native, name)
        if name in passed:
            return value
        if not callable(value):
            self.refuse(name, _NOT_LENT)
        # Only when it is called: some look whether it is there.
        return partial(self.refuse, f"{name}()", _REFUSED.get(name, _NOT_LENT))

    def refuse(self, what: str, why: str, *args: Any, **options: Any) -> NoReturn:
        """Raise, whatever it was called with."""
        self.check()
        raise UsageError(f"{what} {why}")


def _comes_from(error: BaseException | None, origin: BaseException) -> bool:
    while error is not None and error is not origin:
        error = error.__cause__
    return error is not None


class GuardedConnection:
    """A DB-API 2 connection that can neither end the transaction nor outlive its loan."""

    __slots__ = ("_loan",)
    _loan: Loan

    def __init__(self, loan: Loan) -> None:
        object.__setattr__(self, "_loan", loan)

    def cursor(self, *args: Any, **options: Any) -> GuardedCursor:
        """A cursor, with the arguments of the driver."""
        return self._loan.cursor(args, options)

    def execute(self, statement: Any, *args: Any, **options: Any) -> GuardedCursor:
        """Run a statement with a cursor of its own."""
        return self.cursor().execute(statement, *args, **options)

    def executemany(self, statement: Any, rows: Any) -> GuardedCursor:
        """Run a statement with each of some parameters."""
        return self.cursor().executemany(statement, rows)

    @property
    def row_factory(self) -> Any:
        """What makes the rows of cursors that come after."""
        self._loan.check()
        return self._loan.row_factory

    @property
    def text_factory(self) -> Any:
        """What SQLite makes of texts, until the function ends."""
        self._loan.check()
        return self._loan.native.text_factory

    @property
    def autocommit(self) -> bool:
        """Whatever the driver says: no statement commits by itself."""
        self._loan.check()
        return False

    def __getattr__(self, name: str) -> Any:
        return self._loan.find(self._loan.native, name, _OF_CONNECTIONS)

    def __setattr__(self, name: str, value: Any) -> None:
        self._loan.check()
        if name == "row_factory":
            self._loan.row_factory = value
        elif name == "text_factory":
            self._loan.native.text_factory = value
        else:
            raise UsageError(f"{name} of a connection that is lent stays as the store needs it")

    def __enter__(self) -> NoReturn:
        self._loan.refuse("`with connection`", _ENDS)

    def __exit__(self, *details: object) -> None:
        """Only there because `with` looks for it first."""


class GuardedCursor:
    """A cursor of such a connection."""

    __slots__ = ("__weakref__", "_loan", "_native")
    _loan: Loan
    _native: Any

    def __init__(self, loan: Loan, native: Any) -> None:
        object.__setattr__(self, "_loan", loan)
        object.__setattr__(self, "_native", native)

    @property
    def connection(self) -> GuardedConnection:
        """Whose cursor it is."""
        self._loan.check()
        return self._loan.connection

    def execute(self, statement: Any, *args: Any, **options: Any) -> GuardedCursor:
        """Run a statement."""
        with self._loan.running(statement) as text:
            parameters = args[0] if args else options.get("params")
            options |= self._loan.database.single(text, parameters)
            self._native.execute(statement, *args, **options)
        return self

    def executemany(self, statement: Any, rows: Any, **options: Any) -> GuardedCursor:
        """Run a statement with each of some parameters."""
        with self._loan.running(statement):
            self._native.executemany(statement, rows, **options)
        return self

    @contextmanager
    def copy(self, statement: Any, *args: Any, **options: Any) -> Iterator[Any]:
        """Copy rows in or out, where the driver can."""
        with self._loan.running(statement) as text:
            # Copies are sent in a way that would take a second statement along.
            if self._loan.database.single(_TEXTS.sub("", text), None):
                raise UsageError("a copy is one statement; leave out what follows its `;`")
            with self._native.copy(statement, *args, **options) as copy:
                yield copy

    def fetchone(self) -> Any:
        """The next row, or None."""
        with self._loan.watching():
            return self._native.fetchone()

    def fetchmany(self, *args: Any, **options: Any) -> Any:
        """Some rows."""
        with self._loan.watching():
            return self._native.fetchmany(*args, **options)

    def fetchall(self) -> Any:
        """All rows that are left."""
        with self._loan.watching():
            return self._native.fetchall()

    def __iter__(self) -> Iterator[Any]:
        for row in self._native:
            self._loan.check()
            yield row

    def __next__(self) -> Any:
        self._loan.check()
        return next(self._native)

    def close(self) -> None:
        """Be done with it."""
        self._loan.check()
        self._native.close()

    def __enter__(self) -> GuardedCursor:
        self._loan.check()
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return self._loan.find(self._native, name, _OF_CURSORS)

    def __setattr__(self, name: str, value: Any) -> None:
        self._loan.check()
        if name not in _SET_OF_CURSORS:
            raise UsageError(f"{name} of a cursor that is lent cannot be set")
        setattr(self._native, name, value)

    def _abandon(self) -> None:
        try:
            self._native.close()
        except Exception as error:
            logger.debug("closing a cursor failed: %r", error)


def lend(database: Database, check_turn: Callable[[], None], function: Callable[[Any], T]) -> T:
    """Call a function with the connection."""
    with Loan(database, check_turn) as loan:
        return function(loan.connection)
