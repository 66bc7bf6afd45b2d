"""A connection to SQLite that can be lent: its authorizer rejects what would affect others."""

from __future__ import annotations

import re
import sqlite3
from types import TracebackType
from typing import Any, cast

from postroad.core.errors import UsageError
from postroad.durable.store.guarded_connection import GuardedConnection, GuardedCursor

_NOT_CODE = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_OR_ROLLBACK = re.compile(r"\b(?:INSERT|UPDATE)\s+OR\s+ROLLBACK\b", re.IGNORECASE)
# Settings that are part of the database and the transaction, and others whose argument is no value.
_HARMLESS_PRAGMA = re.compile(
    r"(index|table)_x?info|(index|table|foreign_key)_list|(foreign_key|integrity|quick)_check"
    r"|application_id|user_version",
    re.IGNORECASE,
)
# What would hide a table of the store from its own statements.
_HIDING = (sqlite3.SQLITE_CREATE_TEMP_TABLE, sqlite3.SQLITE_CREATE_TEMP_VIEW)
_OWN_TABLES = "postroad_"
_FORBIDDEN_ACTIONS = (
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
)
_SESSION_SAVEPOINT = "sa_savepoint_"


class StatementGuard:
    """The authorizer: SQLite asks it for each action of a statement, when it compiles one.

    It is set once, since SQLite compiles all statements again when it changes. It is a context in
    which a user's statement runs. For a statement that was compiled before, SQLite does not ask
    again: such a one is a harmless statement of the store, too; statements that end transactions
    are recognized by their first word.
    """

    __slots__ = ("_statement",)

    def __init__(self) -> None:
        self._statement: str | None = None

    def of(self, statement: str) -> StatementGuard:
        """Return the context for a statement.

        Raises:
            UsageError: it would roll back what others commit.
        """
        # Tables and triggers can contain it as well: then all but this transaction are repeated.
        if "rollback" in statement.lower() and _OR_ROLLBACK.search(_NOT_CODE.sub(" ", statement)):
            raise UsageError(
                "OR ROLLBACK would undo the commit that this transaction shares with others; "
                f"use OR ABORT: {statement[:200]!r}"
            )
        self._statement = statement
        return self

    def __enter__(self) -> None:
        """The statement is known."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        statement, self._statement = self._statement or "", None
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
            raise UsageError(
                "this would change the connection or the transaction that others commit with: "
                f"{statement[:200]!r}"
            ) from None

    def __call__(self, action: int, first: str | None, second: str | None, *details: object) -> int:
        if self._statement is None:
            return sqlite3.SQLITE_OK
        is_forbidden = self._is_forbidden(action, first or "", second, self._statement)
        return sqlite3.SQLITE_DENY if is_forbidden else sqlite3.SQLITE_OK

    @staticmethod
    def _is_forbidden(action: int, first: str, second: str | None, statement: str) -> bool:
        if action == sqlite3.SQLITE_PRAGMA:
            return second is not None and _HARMLESS_PRAGMA.fullmatch(first) is None
        if action in _HIDING:
            return first.lower().startswith(_OWN_TABLES)
        if action == sqlite3.SQLITE_ALTER_TABLE:
            # SQLite does not pass the new name.
            return first == "temp" and _OWN_TABLES in statement.lower()
        if action == sqlite3.SQLITE_SAVEPOINT:
            return not (second or "").startswith(_SESSION_SAVEPOINT)
        return action in _FORBIDDEN_ACTIONS


class GuardedSqliteCursor(GuardedCursor, sqlite3.Cursor):
    """A cursor that a user's function works with."""


class GuardedSqliteConnection(GuardedConnection, sqlite3.Connection):
    """The one connection that the store and its users share: SQLite knows no second one."""

    _settable = ("row_factory", "text_factory")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guard = StatementGuard()
        self.set_authorizer(self._guard)

    def cursor(self) -> GuardedSqliteCursor:  # type: ignore[override]  # Of no other class.
        """A cursor for a user."""
        return super().cursor(GuardedSqliteCursor)  # type: ignore[arg-type]  # Of this connection.


def unguarded(connection: GuardedSqliteConnection) -> sqlite3.Connection:
    """A connection as its store uses it."""
    return cast("sqlite3.Connection", super(GuardedConnection, connection))
