"""Which statements of users SQLite may run in a transaction that is shared with others."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
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
_REFUSED = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)


class _Watch:
    """Whether what is being compiled is a user's."""

    is_on = False


class WatchedConnection(sqlite3.Connection):
    """A connection that refuses users what would change it for others."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Beside the connection, which must not keep itself alive.
        self._watch = _Watch()
        self.set_authorizer(partial(_authorize, self._watch))

    @contextmanager
    def watching(self, statement: str) -> Iterator[None]:
        """Run a user's statement within.

        Raises:
            UsageError: it would undo or change what others commit.
        """
        # Tables and triggers may say so as well: then all but the guilty one are done again.
        if _OR_ROLLBACK.search(_NOT_CODE.sub(" ", statement)):
            raise UsageError(
                "OR ROLLBACK would undo the commit that this transaction shares with others; "
                f"use OR ABORT: {statement[:200]!r}"
            )
        self._watch.is_on = True
        try:
            yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_AUTH:
                raise
            raise UsageError(
                "this would change the connection or the transaction that others commit with: "
                f"{statement[:200]!r}"
            ) from None
        finally:
            self._watch.is_on = False


def _authorize(
    watch: _Watch, action: int, first: str | None, second: str | None, *details: object
) -> int:
    """Asked by SQLite for everything that a statement would do, when it is compiled."""
    if not watch.is_on:
        return sqlite3.SQLITE_OK
    is_setting = (
        action == sqlite3.SQLITE_PRAGMA
        and second is not None
        and (first or "").lower() not in _PRAGMAS
    )
    return sqlite3.SQLITE_DENY if is_setting or action in _REFUSED else sqlite3.SQLITE_OK
