"""The reconciliation: what must add up, from whichever side one looks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .books import BankBooks, HouseBooks, Rows
from .payments import LARGE_CENTS, make_payment


class Check(NamedTuple):
    """One thing that must hold."""

    text: str
    holds: bool


class Absence(NamedTuple):
    """A node that was killed, and came back."""

    name: str
    killed_s: float
    returned_s: float
    was_at: str
    """What it was killed at."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known after the run."""

    banks: Mapping[str, BankBooks]
    house: HouseBooks
    asked: int
    """Calls that tellers made, as far as they lived to tell."""
    answered: int
    unanswered: int
    cut_off: int
    """Calls whose caller was killed meanwhile."""
    wrong: int
    replayed: int
    """Payments that the job was given again."""
    absences: Sequence[Absence]


class Ledgers:
    """The tables of all banks together, and what should be in them."""

    def __init__(self, banks: Mapping[str, BankBooks]) -> None:
        books = banks.values()
        self.debits = _together([it.debits for it in books])
        self.credits = _together([it.credits for it in books])
        self.settlements = _together([it.settlements for it in books])
        self.refunds = _together([it.refunds for it in books])
        self.receipts = _together([it.receipts for it in books])
        self.good, self.bad = Rows(), Rows()
        for bank, book in banks.items():
            for row, times in book.settlements.items():
                is_bad = make_payment(bank, row[0], row[1]).is_bad
                (self.bad if is_bad else self.good)[row] += times


def checks(evidence: Evidence) -> list[Check]:
    """Everything that must hold; the demo succeeds only if all of it does."""
    books = Ledgers(evidence.banks)
    return [
        _check_calls(evidence),
        _check_flows(evidence, books),
        _check_agreement(books),
        _check_money(books),
        _check_clearing(evidence, books),
        _check_dead(evidence, books),
        _check_totals(evidence, books),
        _check_alerts(evidence, books),
        *(_check_absence(it) for it in evidence.absences),
    ]


def _check_calls(evidence: Evidence) -> Check:
    ended = evidence.answered + evidence.unanswered + evidence.cut_off
    return Check(
        f"calls made {evidence.asked:,} = answered {evidence.answered:,}"
        f" + failed {evidence.unanswered:,} with an error"
        f" + cut off by a kill {evidence.cut_off:,}; wrong answers {evidence.wrong:,}",
        evidence.asked == ended and not evidence.wrong,
    )


def _check_flows(evidence: Evidence, books: Ledgers) -> Check:
    ended = books.settlements + books.refunds
    lost, doubled = _lost(books.debits, ended), _doubled(books.debits) + _doubled(ended)
    unended = sum(it.unended for it in evidence.banks.values())
    return Check(
        f"flows: payments begun {books.debits.total():,} = settled {books.settlements.total():,}"
        f" + refused {books.refunds.total():,}: lost {lost:,}, duplicates {doubled:,}"
        + (f", not ended {unended:,}" if unended else ""),
        books.debits == ended and not doubled and not unended and bool(books.settlements),
    )


def _check_agreement(books: Ledgers) -> Check:
    apart = _lost(books.settlements, books.credits) + _lost(books.credits, books.settlements)
    return Check(
        f"settled by one bank {books.settlements.total():,} = credited by the other"
        f" {books.credits.total():,}: known to one only {apart:,}",
        books.settlements == books.credits,
    )


def _check_money(books: Ledgers) -> Check:
    taken, taken_in, back = map(_cents, (books.debits, books.credits, books.refunds))
    return Check(
        f"debited {taken / 100:,.2f} = credited {taken_in / 100:,.2f} + refunded {back / 100:,.2f}",
        taken == taken_in + back,
    )


def _check_clearing(evidence: Evidence, books: Ledgers) -> Check:
    """Each settled payment was posted once; it was cleared once, or is dead."""
    sent, cleared, dead = (
        books.settlements.total(),
        books.receipts.total(),
        evidence.house.dead_rows,
    )
    lost, doubled = _lost(books.good, books.receipts), _doubled(books.receipts)
    return Check(
        f"mail and Spark: payments sent {sent:,} = cleared {cleared:,} + dead {dead:,}:"
        f" lost {lost:,}, duplicates {doubled:,}, replayed {evidence.replayed:,}",
        sent == cleared + dead and not lost and not doubled and bool(cleared),
    )


def _check_dead(evidence: Evidence, books: Ledgers) -> Check:
    """What is bad is dead, and nothing else."""
    bad = {f"{account}/{number}" for account, number, _ in books.bad}
    dead = evidence.house.dead
    return Check(
        f"bad payments sent {books.bad.total():,} = dead letters {evidence.house.dead_rows:,},"
        " each with its reason",
        bad == set(dead) and books.bad.total() == evidence.house.dead_rows and all(dead.values()),
    )


def _check_totals(evidence: Evidence, books: Ledgers) -> Check:
    """The windows of the job have counted the same as the banks."""
    sums: Counter[str] = Counter()
    for (account, _, cents), times in books.good.items():
        sums[account] += cents * times
    totals = evidence.house.totals
    wrong = sum(totals.get(it) != cents for it, cents in sums.items()) + len(totals.keys() - sums)
    return Check(
        f"totals of {len(totals)} accounts, kept in windows: {sum(totals.values()) / 100:,.2f}"
        f" = {_cents(books.good) / 100:,.2f}, wrong {wrong}",
        not wrong and bool(totals),
    )


def _check_alerts(evidence: Evidence, books: Ledgers) -> Check:
    large = Rows({row: times for row, times in books.good.items() if row[2] > LARGE_CENTS})
    alerts = evidence.house.alerts
    return Check(f"large payments {large.total():,} = alerts {alerts.total():,}", large == alerts)


def _check_absence(it: Absence) -> Check:
    away_s = it.returned_s - it.killed_s
    return Check(f"{it.name} was killed {it.was_at}, and was back after {away_s:.1f} s", away_s > 0)


def _together(tables: Sequence[Rows]) -> Rows:
    whole = Rows()
    for table in tables:
        whole.update(table)
    return whole


def _lost(sent: Rows, found: Rows) -> int:
    return (sent - found).total()


def _doubled(rows: Rows) -> int:
    return rows.total() - len(rows)


def _cents(rows: Rows) -> int:
    return sum(cents * times for (_, _, cents), times in rows.items())
