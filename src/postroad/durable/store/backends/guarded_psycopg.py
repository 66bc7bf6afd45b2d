"""A connection of psycopg that can be lent: a second one of that class on the same session."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from postroad.core.errors import UsageError
from postroad.durable.store.guarded_connection import GuardedConnection, GuardedCursor

_TEXTS = re.compile("'(?:[^']|'')*'")


class GuardedPsycopgCursor(GuardedCursor, psycopg.Cursor[Any]):  # type: ignore[misc]  # Any arguments.
    """A cursor that a user's function works with."""

    @contextmanager
    def copy(self, statement: Any, *args: Any, **options: Any) -> Iterator[Any]:
        """Copy rows in or out."""
        assert self._lease is not None
        lease = self._lease
        lease.check()
        with lease.running(statement) as text:
            # Copies are sent in a way that would take a second statement along.
            if lease.database.single_statement_options(_TEXTS.sub("", text), None):
                raise UsageError("a copy is one statement; leave out what follows its `;`")
            lease.is_in_driver = True
            try:
                with super().copy(statement, *args, **options) as copy:
                    yield copy
            finally:
                lease.is_in_driver = False

    def __next__(self) -> Any:
        assert self._lease is not None
        return self._lease.drive(super().__next__)


class GuardedServerCursor(GuardedPsycopgCursor, psycopg.ServerCursor[Any]):  # type: ignore[misc]
    """A cursor whose rows stay on the server."""

    def __del__(self, *_: object) -> None:
        """Not closed here, but with its lease."""


class GuardedPsycopgConnection(GuardedConnection, psycopg.Connection[Any]):  # type: ignore[misc]  # Any.
    """The connection that is lent to users; the store has another one on the same session."""

    _settable = ("row_factory",)

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection.pgconn)
        # Both share the prepared statements, which are dropped when a table changes.
        self._prepared = connection._prepared
        self.cursor_factory = GuardedPsycopgCursor
        self.server_cursor_factory = GuardedServerCursor

    def __del__(self, *_: object) -> None:
        """Not closed here: the session belongs to the store."""
