"""The reconciliation of mail, and the databases it is made from."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo.books import Books, Entry, read_entries
from examples.demo.mail_verdict import (
    Absence,
    MailEvidence,
    count_gaps,
    count_out_of_order,
    mail_checks,
    mail_items,
)
from examples.demo.payments import make_payment


def entries(*numbers: int, account: str = "a", at_s: float = 0.0) -> list[Entry]:
    """Payments of one account, one second after the other."""
    return [
        Entry(account, number, make_payment(account, number).cents, at_s + index)
        for index, number in enumerate(numbers)
    ]


POSTED = entries(1, 2, 3, 4) + entries(1, 2, account="b", at_s=4)
HANDLED = entries(1, account="b") + entries(1, 2, 3, 4, at_s=1) + entries(2, account="b", at_s=5)
GOOD = MailEvidence(
    payments=POSTED,
    bookings=HANDLED,
    receipts=HANDLED,
    booking_runs=8,
    receipt_runs=7,
    payer_away=Absence(name="alpha", killed_s=2.5, returned_s=3.5),
    booker_away=Absence(name="beta", killed_s=0.5, returned_s=1.5),
)


def test_good_evidence_passes_every_check() -> None:
    assert [check.text for check in mail_checks(GOOD) if not check.holds] == []
    texts = [check.text for check in mail_checks(GOOD)]
    assert texts[0] == "payments posted 6 = handled 6: lost 0, duplicates 0, out of order 0"
    assert texts[3] == "handlers ran 15 times = 12 rows + 3 cut off by the kills"
    assert texts[4] == (
        "beta was away for 1.00 s: 1 payments posted meanwhile, handled on 0 ms after its return"
    )


def test_calls_of_handlers_without_a_row_were_cut_off() -> None:
    assert GOOD.undone == 3
    assert [item.amount for item in mail_items(GOOD)] == [6, 6, 6, 3]


def with_bookings(bookings: Sequence[Entry]) -> MailEvidence:
    return replace(GOOD, bookings=bookings)


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(with_bookings(HANDLED[:-1]), id="a payment is lost"),
        pytest.param(with_bookings([*HANDLED, HANDLED[-1]]), id="a payment is booked twice"),
        pytest.param(
            with_bookings([*HANDLED[:-1], Entry("b", 2, 1, 5.0)]), id="an amount is another"
        ),
        pytest.param(with_bookings([*HANDLED, *entries(5, at_s=6)]), id="booked, never posted"),
        pytest.param(
            with_bookings([HANDLED[0], HANDLED[2], HANDLED[1], *HANDLED[3:]]), id="out of order"
        ),
        pytest.param(replace(GOOD, receipts=HANDLED[1:]), id="a receipt is lost"),
        pytest.param(replace(GOOD, receipts=[*HANDLED, HANDLED[-1]]), id="a receipt came twice"),
        pytest.param(replace(GOOD, booking_runs=5), id="rows that no handler wrote"),
        pytest.param(
            replace(GOOD, booker_away=Absence(name="beta", killed_s=9.0, returned_s=9.5)),
            id="nothing booked after the kill",
        ),
        pytest.param(
            replace(GOOD, payer_away=Absence(name="alpha", killed_s=9.0, returned_s=9.5)),
            id="nothing paid after the kill",
        ),
        pytest.param(
            replace(GOOD, payments=entries(1, 3), bookings=entries(1, 3), receipts=entries(1, 3)),
            id="the payer skipped a number",
        ),
        pytest.param(
            replace(GOOD, payments=[], bookings=[], receipts=[]), id="nothing happened at all"
        ),
    ],
)
def test_anything_that_does_not_add_up_fails(evidence: MailEvidence) -> None:
    assert not all(check.holds for check in mail_checks(evidence))


def test_order_is_that_of_each_account() -> None:
    assert count_out_of_order(HANDLED) == 0
    assert count_out_of_order(entries(1, 4, 2, 3, 5)) == 2


def test_gaps_are_numbers_that_nobody_used() -> None:
    assert count_gaps(POSTED) == 0
    assert count_gaps(entries(1, 4) + entries(2, account="b")) == 3


def test_books_are_read_while_others_write(tmp_path: Path) -> None:
    payer, booker = tmp_path / "alpha.db", tmp_path / "beta.db"
    columns = "(account TEXT, number INTEGER, cents INTEGER, at_s REAL)"
    with closing(sqlite3.connect(payer, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute(f"CREATE TABLE payments {columns}")
        writer.execute(f"CREATE TABLE receipts {columns}")
        with closing(sqlite3.connect(booker)) as other:
            other.execute(f"CREATE TABLE bookings {columns}")
        with closing(Books(payer, booker)) as books:
            writer.execute("INSERT INTO payments VALUES ('a', 1, 100, 0.5)")
            writer.execute("BEGIN")
            writer.execute("INSERT INTO payments VALUES ('a', 2, 200, 0.6)")
            counts = books.count()
            assert (counts.payments, counts.bookings, counts.receipts) == (1, 0, 0)
            writer.execute("COMMIT")
            assert books.count().payments == 2
    assert read_entries(payer, "payments") == [Entry("a", 1, 100, 0.5), Entry("a", 2, 200, 0.6)]
