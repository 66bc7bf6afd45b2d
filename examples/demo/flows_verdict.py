"""The reconciliation of flows: both banks agree on every payment, to the cent. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .books import Entry
from .mail_verdict import Absence
from .verdict import Check, Item


@dataclass(frozen=True, kw_only=True)
class BankEvidence:
    """What the run left in the database of one bank."""

    name: str
    debits: Sequence[Entry]
    """Written by the first step of each payment."""
    credits: Sequence[Entry]
    """Written for the payments of the other bank."""
    settlements: Sequence[Entry]
    """Written when the other bank had agreed."""
    refunds: Sequence[Entry]
    """Written when it had not."""
    runs: int
    """How often such a step was begun, whatever came of it."""
    flows: int
    """All flows of this bank, begun here or for the other."""
    unended: int
    """Among them: those that have not ended."""
    away: Absence

    @property
    def rows(self) -> int:
        """All that steps wrote."""
        return sum(map(len, (self.debits, self.credits, self.settlements, self.refunds)))

    @property
    def undone(self) -> int:
        """Steps of which nothing is left, because the process died; they were done again."""
        return self.runs - self.rows


class Ledgers:
    """The tables of both banks together."""

    def __init__(self, banks: Sequence[BankEvidence]) -> None:
        self.debits = [it for bank in banks for it in bank.debits]
        self.credits = [it for bank in banks for it in bank.credits]
        self.settlements = [it for bank in banks for it in bank.settlements]
        self.refunds = [it for bank in banks for it in bank.refunds]


def flows_checks(banks: Sequence[BankEvidence]) -> list[Check]:
    """Everything that must hold; the demo succeeds only if all of it does."""
    books = Ledgers(banks)
    taken, taken_in, given_back = map(_sum, (books.debits, books.credits, books.refunds))
    return [
        _check_ends(books),
        _check_agreement(books),
        Check(
            f"taken {taken / 100:,.2f} = taken in {taken_in / 100:,.2f}"
            f" + given back {given_back / 100:,.2f}",
            taken == taken_in + given_back,
        ),
        _check_steps(banks),
        _check_flows(banks),
        *(_check_away(bank, books) for bank in sorted(banks, key=lambda it: it.away.killed_s)),
    ]


def flows_items(banks: Sequence[BankEvidence]) -> list[Item]:
    """The table of accounts."""
    books = Ledgers(banks)
    return [
        *(Item(f"payments begun by {it.name}", len(it.debits), "a debit each") for it in banks),
        Item("settled", len(books.settlements), "credited there, and known to be here"),
        Item("refused", len(books.refunds), "too much at once; given back"),
        Item(
            "cut off by a kill",
            sum(it.undone for it in banks),
            "a step had begun; undone, then done again",
        ),
    ]


def _check_ends(books: Ledgers) -> Check:
    """Each payment was settled or given back, once."""
    begun = _payments(books.debits)
    settled, refused = _payments(books.settlements), _payments(books.refunds)
    ended = len(books.settlements) + len(books.refunds)
    lost = len(begun - settled - refused)
    unknown = len((settled | refused) - begun)
    duplicates = len(books.debits) - len(begun) + ended - len(settled | refused)
    return Check(
        f"payments begun {len(books.debits):,} = settled {len(books.settlements):,}"
        f" + refused {len(books.refunds):,}: lost {lost:,}, duplicates {duplicates:,}"
        + (f", never begun {unknown:,}" if unknown else ""),
        lost == unknown == duplicates == 0 and bool(settled),
    )


def _check_agreement(books: Ledgers) -> Check:
    """What one bank has settled is what the other has credited."""
    settled, credited = _payments(books.settlements), _payments(books.credits)
    apart = len(settled ^ credited)
    duplicates = len(books.credits) - len(credited)
    return Check(
        f"settled by one bank {len(books.settlements):,} = credited by the other"
        f" {len(books.credits):,}: known to one only {apart:,}, duplicates {duplicates:,}",
        apart == duplicates == 0,
    )


def _check_steps(banks: Sequence[BankEvidence]) -> Check:
    """Nothing is in a table that no step has put there."""
    runs, rows = sum(it.runs for it in banks), sum(it.rows for it in banks)
    return Check(
        f"steps ran {runs:,} times = {rows:,} rows + {runs - rows:,} cut off by the kills",
        all(it.undone >= 0 for it in banks),
    )


def _check_flows(banks: Sequence[BankEvidence]) -> Check:
    """Each payment is one flow at either bank, and all of them have ended."""
    flows, unended = sum(it.flows for it in banks), sum(it.unended for it in banks)
    payments = sum(len(it.debits) for it in banks)
    return Check(
        f"flows {flows:,} = 2 x {payments:,} payments; at work, paused or parked {unended:,}",
        flows == 2 * payments and unended == 0,
    )


def _check_away(bank: BankEvidence, books: Ledgers) -> Check:
    """What was under way with a bank that was killed must have gone on, and the bank too."""
    away = bank.away
    ended_s = {it[:2]: it.at_s for it in (*books.settlements, *books.refunds)}
    resumed = sum(it.at_s < away.killed_s < ended_s.get(it[:2], 0.0) for it in books.debits)
    meanwhile = sum(away.killed_s < it.at_s < away.returned_s for it in books.debits)
    has_gone_on = any(it.at_s > away.killed_s for it in bank.debits)
    return Check(
        f"{away}: {resumed:,} payments under way went on, {meanwhile:,} begun meanwhile,"
        f" {bank.name} " + ("paid on" if has_gone_on else "paid nothing after it"),
        has_gone_on and resumed > 0,
    )


def _payments(entries: Sequence[Entry]) -> set[tuple[str, int, int]]:
    return {(it.account, it.number, it.cents) for it in entries}


def _sum(entries: Sequence[Entry]) -> int:
    return sum(it.cents for it in entries)
