"""Which statements of users SQLite may run in a transaction that is shared with others."""

from __future__ import annotations

import re
import sqlite3
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from postroad.core.errors import UsageError

_NOT_CODE = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_OR_ROLLBACK = re.compile(r"\b(?:INSERT|UPDATE)\s+OR\s+ROLLBACK\b", re.IGNORECASE)
# Settings that are part of the database and the transaction, and others whose argument is no value.
_PRAGMAS = frozenset(
    {
        "application_id",
        "foreign_key_check",
        "foreign_key_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "quick_check",
        "table_info",
        "table_list",
        "table_xinfo",
        "user_version",
    }
)
# What would hide a table of the store from its own statements.
_HIDING = (sqlite3.SQLITE_CREATE_TEMP_TABLE, sqlite3.SQLITE_CREATE_TEMP_VIEW)
_OWN_TABLES = "postroad_"
_REFUSED = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)


class _Watch:
    """The statement of a user that is being compiled, if it is one."""

    statement: str | None = None


class _Watching:
    """A context in which a statement of a user runs."""

    # A class, which takes less time than a generator.
    __slots__ = ("_statement", "_watch")

    def __init__(self, watch: _Watch, statement: str) -> None:
        self._watch = watch
        self._statement = statement

    def __enter__(self) -> None:
        self._watch.statement = self._statement

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._watch.statement = None
        if (
            isinstance(error, sqlite3.DatabaseError)
            and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH
        ):
            raise UsageError(
                "this would change the connection or the transaction that others commit with: "
                f"{self._statement[:200]!r}"
            ) from None


class WatchedConnection(sqlite3.Connection):
    """A connection that refuses users what would change it for others."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Beside the connection, which must not keep itself alive.
        self._watch = _Watch()
        self.set_authorizer(partial(_authorize, self._watch))

    def watching(self, statement: str) -> AbstractContextManager[None]:
        """Run a user's statement within.

        Raises:
            UsageError: it would undo or change what others commit.
        """
        # Tables and triggers may say so as well: then all but the guilty one are done again.
        if "rollback" in statement.lower() and _OR_ROLLBACK.search(_NOT_CODE.sub(" ", statement)):
            raise UsageError(
                "OR ROLLBACK would undo the commit that this transaction shares with others; "
                f"use OR ABORT: {statement[:200]!r}"
            )
        return _Watching(self._watch, statement)


def _authorize(
    watch: _Watch, action: int, first: str | None, second: str | None, *details: object
) -> int:
    """Asked by SQLite for everything that a statement would do, when it is compiled."""
    if watch.statement is None:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA:
        is_refused = second is not None and (first or "").lower() not in _PRAGMAS
    elif action in _HIDING:
        is_refused = (first or "").lower().startswith(_OWN_TABLES)
    elif action == sqlite3.SQLITE_ALTER_TABLE:
        # The new name is not told.
        is_refused = first == "temp" and _OWN_TABLES in watch.statement.lower()
    else:
        is_refused = action in _REFUSED
    return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK
