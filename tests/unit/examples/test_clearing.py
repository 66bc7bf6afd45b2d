"""The accounts of the demo: what adds up, and what it says of each thing that does not."""

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from examples.clearing.board import HEADING, Board
from examples.clearing.books import BankBooks, HouseBooks, Rows
from examples.clearing.payments import (
    BANKS,
    LARGE_CENTS,
    TAKEN_CENTS_MAX,
    Payment,
    accounts_of,
    make_payment,
)
from examples.clearing.screen import Line, LiveScreen, PlainScreen, Table, TableRow, open_screen
from examples.clearing.verdict import Absence, Evidence, checks

ROUNDS = 100


def row(payment: Payment) -> tuple[str, int, int]:
    return (payment.account, payment.number, payment.cents)


def payments_of(bank: str) -> list[Payment]:
    return [make_payment(bank, it, n) for it in accounts_of(bank) for n in range(1, ROUNDS + 1)]


@pytest.fixture
def evidence() -> Evidence:
    """What a run leaves in which everything went as it should."""
    made = {bank: payments_of(bank) for bank in BANKS}
    taken = {b: [it for it in made[b] if it.cents <= TAKEN_CENTS_MAX] for b in BANKS}
    banks = {
        bank: BankBooks(
            debits=Counter(map(row, made[bank])),
            credits=Counter(map(row, taken[other])),
            settlements=Counter(map(row, taken[bank])),
            refunds=Counter(row(it) for it in made[bank] if it.cents > TAKEN_CENTS_MAX),
            receipts=Counter(row(it) for it in taken[bank] if not it.is_bad),
            unended=0,
        )
        for bank, other in zip(BANKS, reversed(BANKS), strict=True)
    }
    settled = [it for bank in BANKS for it in taken[bank]]
    good = [it for it in settled if not it.is_bad]
    totals: Counter[str] = Counter()
    for it in good:
        totals[it.account] += it.cents
    bad = {it.id: "Refused: a bribe" for it in settled if it.is_bad}
    return Evidence(
        banks=banks,
        house=HouseBooks(
            alerts=Counter(row(it) for it in good if it.cents > LARGE_CENTS),
            totals=totals,
            dead=bad,
            dead_rows=len(bad),
        ),
        asked=10,
        answered=8,
        unanswered=1,
        cut_off=1,
        wrong=0,
        replayed=5,
        absences=[Absence("bank-b", 1.0, 3.0, "at work")],
    )


def failures(evidence: Evidence) -> list[str]:
    return [it.text for it in checks(evidence) if not it.holds]


def test_good_run_adds_up_with_payments_of_every_kind(evidence: Evidence) -> None:
    made = payments_of("bank-a")
    assert any(it.is_bad for it in made)
    assert any(it.cents > TAKEN_CENTS_MAX for it in made)
    assert any(LARGE_CENTS < it.cents <= TAKEN_CENTS_MAX for it in made)
    assert make_payment("bank-a", "bank-a-1", 7) == make_payment("bank-a", "bank-a-1", 7)
    assert failures(evidence) == []


def change(evidence: Evidence, table: str, by: int) -> Evidence:
    """The same, but one row of a table of bank-a is missing, or stands there once more."""
    books = evidence.banks["bank-a"]
    rows: Rows = Counter(getattr(books, table))
    rows[next(iter(rows))] += by
    changed = replace(books, **{table: +rows})  # type: ignore[arg-type]
    return replace(evidence, banks={**evidence.banks, "bank-a": changed})


def test_breach_of_any_sort_is_told(evidence: Evidence) -> None:
    for by, table in product([-1, 1], ["debits", "credits", "settlements", "refunds", "receipts"]):
        assert failures(change(evidence, table, by)), (by, table)
    for breach in BREACHES:
        break_it, text = BREACHES[breach]
        assert any(text in it for it in failures(break_it(evidence))), breach


def with_house(evidence: Evidence, **changes: object) -> Evidence:
    return replace(evidence, house=replace(evidence.house, **changes))  # type: ignore[arg-type]


BREACHES: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "calls": (lambda it: replace(it, asked=11), "calls made"),
    "wrong answers": (lambda it: replace(it, wrong=1), "wrong answers 1"),
    "unended": (
        lambda it: replace(
            it, banks={**it.banks, "bank-b": replace(it.banks["bank-b"], unended=1)}
        ),
        "not ended 1",
    ),
    "dead": (lambda it: with_house(it, dead_rows=it.house.dead_rows + 1), "dead letters"),
    "reason": (lambda it: with_house(it, dead=dict.fromkeys(it.house.dead, "")), "its reason"),
    "totals": (lambda it: with_house(it, totals={**it.house.totals, "bank-a-1": 1}), "wrong 1"),
    "no totals": (lambda it: with_house(it, totals={}), "totals of 0 accounts"),
    "alerts": (lambda it: with_house(it, alerts=Counter()), "alerts 0"),
    "absence": (lambda it: replace(it, absences=[Absence("core-1", 2, 0, "")]), "core-1 was"),
}


def test_board_keeps_what_a_killed_process_counted() -> None:
    board = Board()
    board.tell("bank-a", {"asked": 6, "answered": 5, "debits": 3})
    board.tell("bank-b", {"asked": 9, "answered": 7, "unanswered": 1, "debits": 4})
    board.tick(1.0)
    board.forget("bank-b")
    assert board.standing().answered == 12
    assert board.standing().begun == 7
    # One call died with bank-b; that of bank-a is still under way.
    assert board.sum("cut_off") == 1
    assert (board.last("bank-a", "asked"), board.last("bank-b", "asked")) == (6, None)
    board.tell("bank-b", {"answered": 1, "debits": 6})
    board.note("  --- bank-b is back")
    board.tick(2.0)
    assert board.standing().answered == 13
    first, second = board.seconds
    assert first.notes == ["  --- bank-b is back"]
    assert (second.now.begun, second.before.begun) == (9, 7)
    assert len(str(second)) == len(HEADING)
    board = Board()
    board.note("begun")
    assert board.seconds[0].notes == ["begun"]


TABLE = Table(["  core-1"], "heading", [TableRow([Line("one")]), TableRow([Line("two")])])


def test_screen_is_redrawn_or_plain() -> None:
    stream = io.StringIO()
    screen = PlainScreen(stream)
    screen.update(TABLE)
    screen.update(TABLE)
    assert stream.getvalue() == "  core-1\n\nheading\none\n"
    screen.finish(TABLE)
    assert stream.getvalue().endswith("one\ntwo\n")
    assert [it.text for it in TABLE.fit(4)] == ["  core-1", "", "heading", "two"]
    assert isinstance(open_screen(io.StringIO(), {"TERM": "xterm"}), PlainScreen)
    stream = io.StringIO()
    live = LiveScreen(stream, has_color=False)
    live.update(TABLE)
    live.update(TABLE)
    live.finish(TABLE)
    assert stream.getvalue().count("\x1b[5F") == 2
    assert stream.getvalue().endswith("\x1b[?25h\x1b[?7h")
