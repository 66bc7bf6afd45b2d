"""Which statements of a user would end a commit that others share."""

from itertools import product

import pytest

from postroad.core.errors import UsageError
from postroad.durable.store.guarded_connection import check_statement
from tests.support.cases import each, naming


@each(
    "SELECT 1",
    "INSERT INTO mine VALUES (1)",
    "  update mine SET x = 1",
    "WITH a AS (SELECT 1) SELECT * FROM a",
    "(SELECT 1)",
    "-- COMMIT\nSELECT 1",
    "/* COMMIT */ SELECT 1",
    "/* a */ /* b */ SELECT 'ROLLBACK'",
    "SELECT commit FROM mine",
    "COMMITTED",
    "ENDING",
    "CREATE TABLE begin_here (x BIGINT)",
    "DELETE FROM mine RETURNING x",
    "",
    "-- nothing else",
)
def test_others_may_be_run(statement: str) -> None:
    check_statement(statement)


@each(
    *product(
        ["ABORT", "BEGIN", "COMMIT", "END", "PREPARE", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"],
        [
            "{}",
            "{} TRANSACTION",
            " \t\r\n\f{}",
            "{};",
            ";;{}",
            "-- why\n{}",
            "/* why */{}",
            "/* more\nlines */ -- and\n ; {} x",
            "/**/{}",
        ],
    )
)
def test_statements_that_start_or_end_transactions_are_rejected(word: str, form: str) -> None:
    for spelled in (word, word.lower(), word.capitalize()):
        with pytest.raises(UsageError, match=f"{word} would end the commit"):
            check_statement(form.format(spelled))


def test_comments_do_not_hide_rejected_statements() -> None:
    for statement in (
        "/* a /* b */ c */ COMMIT",
        "/*/**/ SELECT 1 */ COMMIT",
        "\ufeffCOMMIT",
        "\ufeff -- a\nEND",
    ):
        """PostgreSQL has comments in comments, and SQLite takes a byte order mark for a blank."""
        with naming(statement), pytest.raises(UsageError):
            check_statement(statement)
