"""Which statements a user may run inside a commit that is shared with others."""

from __future__ import annotations

import re

from postroad.core.errors import UsageError

# Blanks, comments and empty statements, then the first word, or a comment within a comment: that
# ends where databases do not agree on.
_FIRST_WORD = re.compile(
    r"(?:[\s;\ufeff]|--[^\n]*(?:\n|$)|/\*(?:(?!/\*).)*?\*/)*(/\*|\w*)", re.DOTALL
)
_FORBIDDEN = frozenset(
    {"ABORT", "BEGIN", "COMMIT", "END", "PREPARE", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"}
)
# These would take away what the connection has prepared for others.
_DISCARDING = frozenset({"DEALLOCATE", "DISCARD"})

# As SQLAlchemy writes them for a session that is part of a larger transaction.
_OF_SESSION = re.compile(
    r"(?:SAVEPOINT|RELEASE SAVEPOINT|ROLLBACK TO SAVEPOINT) sa_savepoint_\d+", re.ASCII
)


def check_statement(statement: str) -> None:
    """Raise UsageError if a statement would begin or end a transaction."""
    found = _FIRST_WORD.match(statement)
    word = "" if found is None else found[1].upper()
    if word == "/*":
        raise UsageError("a statement must not begin with a comment that contains another")
    if word in _FORBIDDEN:
        raise UsageError(
            f"{word} would end the commit that this transaction shares with others; "
            "returning from the handler commits, an exception undoes"
        )
    if word in _DISCARDING:
        raise UsageError(f"{word} would disturb the connection that others commit with")


def check_session_statement(statement: str) -> None:
    """The same for what a session of SQLAlchemy runs, which has savepoints of its own."""
    if _OF_SESSION.fullmatch(statement) is None:
        check_statement(statement)
