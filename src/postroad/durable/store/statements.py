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
