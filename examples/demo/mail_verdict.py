"""The reconciliation of mail: each message was handled, once, in the order of its account. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .books import Entry
from .verdict import Check, Item


@dataclass(frozen=True, kw_only=True)
class Absence:
    """The time between a kill and the return."""

    name: str
    killed_s: float
    """When the process was gone; this and the next on the clock of `time.monotonic`."""
    returned_s: float

    def __str__(self) -> str:
        return f"{self.name} was away for {self.returned_s - self.killed_s:.2f} s"


@dataclass(frozen=True, kw_only=True)
class MailEvidence:
    """What the run left in the databases."""

    payments: Sequence[Entry]
    """Written by the payer together with each post."""
    bookings: Sequence[Entry]
    """Written by the handler of payments, together with posting the receipt."""
    receipts: Sequence[Entry]
    """Written by the handler of receipts."""
    booking_runs: int
    """How often the handler of payments was called, whatever came of it."""
    receipt_runs: int
    payer_away: Absence
    booker_away: Absence

    @property
    def undone(self) -> int:
        """Calls of handlers of which nothing is left, because their process died."""
        runs = self.booking_runs + self.receipt_runs
        return runs - len(self.bookings) - len(self.receipts)


class Delivery:
    """What was posted, against what was handled."""

    def __init__(self, posted: Sequence[Entry], handled: Sequence[Entry]) -> None:
        sent = {entry[:3] for entry in posted}
        came = {entry[:3] for entry in handled}
        self.posted = len(posted)
        self.handled = len(handled)
        self.lost = len(sent - came)
        self.unknown = len(came - sent)
        self.duplicates = len(posted) - len(sent) + len(handled) - len(came)
        self.out_of_order = count_out_of_order(handled)

    def check(self, what: str) -> Check:
        """Whether each came once, and in order."""
        wrong = self.lost + self.unknown + self.duplicates + self.out_of_order
        return Check(
            f"{what} posted {self.posted:,} = handled {self.handled:,}: lost {self.lost:,},"
            f" duplicates {self.duplicates:,}, out of order {self.out_of_order:,}"
            + (f", never posted {self.unknown:,}" if self.unknown else ""),
            wrong == 0 and self.posted > 0,
        )


def count_out_of_order(entries: Sequence[Entry]) -> int:
    """Those that came after a later one of their account."""
    newest: dict[str, int] = {}
    count = 0
    for entry in entries:
        count += entry.number < newest.get(entry.account, 0)
        newest[entry.account] = max(entry.number, newest.get(entry.account, 0))
    return count


def mail_checks(evidence: MailEvidence) -> list[Check]:
    """Everything that must hold; the demo succeeds only if all of it does."""
    paid, booked = _sum(evidence.payments), _sum(evidence.bookings)
    return [
        Delivery(evidence.payments, evidence.bookings).check("payments"),
        Delivery(evidence.bookings, evidence.receipts).check("receipts"),
        Check(f"paid {paid / 100:,.2f} = booked {booked / 100:,.2f}", paid == booked),
        _check_runs(evidence),
        _check_booker_away(evidence),
        _check_payer_away(evidence),
    ]


def mail_items(evidence: MailEvidence) -> list[Item]:
    """The table of accounts."""
    payer, booker = evidence.payer_away.name, evidence.booker_away.name
    return [
        Item(f"payments posted by {payer}", len(evidence.payments), "each post with its row"),
        Item(
            f"payments handled by {booker}",
            len(evidence.bookings),
            "each with its row and the post of its receipt",
        ),
        Item(f"receipts handled by {payer}", len(evidence.receipts), "each with its row"),
        Item(
            "cut off by a kill", evidence.undone, "a handler had begun; undone, then handled again"
        ),
    ]


def _check_runs(evidence: MailEvidence) -> Check:
    """Nothing is in a table that no handler has put there."""
    runs = evidence.booking_runs + evidence.receipt_runs
    rows = len(evidence.bookings) + len(evidence.receipts)
    return Check(
        f"handlers ran {runs:,} times = {rows:,} rows + {evidence.undone:,} cut off by the kills",
        evidence.booking_runs >= len(evidence.bookings)
        and evidence.receipt_runs >= len(evidence.receipts),
    )


def _check_booker_away(evidence: MailEvidence) -> Check:
    """The node that books must have gone on with what waited for it."""
    away = evidence.booker_away
    waited = _count_within(away, evidence.payments)
    later = [entry.at_s for entry in evidence.bookings if entry.at_s > away.killed_s]
    # It may go on before the story hears that it is back.
    went_on = (
        f"handled on {max(0.0, later[0] - away.returned_s) * 1000:,.0f} ms after its return"
        if later
        else "nothing handled after its return"
    )
    return Check(f"{away}: {waited:,} payments posted meanwhile, {went_on}", bool(later))


def _check_payer_away(evidence: MailEvidence) -> Check:
    """The node that pays must have gone on where its database says it stopped."""
    away = evidence.payer_away
    waited = _count_within(away, evidence.bookings)
    has_gone_on = any(entry.at_s > away.killed_s for entry in evidence.payments)
    gaps = count_gaps(evidence.payments)
    return Check(
        f"{away}: {waited:,} receipts posted meanwhile, "
        + (
            f"paid on with {gaps:,} gaps in its numbers" if has_gone_on else "paid nothing after it"
        ),
        has_gone_on and gaps == 0,
    )


def count_gaps(entries: Sequence[Entry]) -> int:
    """Numbers that an account has skipped."""
    newest: dict[str, int] = {}
    for entry in entries:
        newest[entry.account] = max(entry.number, newest.get(entry.account, 0))
    return sum(newest.values()) - len({entry[:2] for entry in entries})


def _count_within(away: Absence, entries: Sequence[Entry]) -> int:
    return sum(away.killed_s < entry.at_s < away.returned_s for entry in entries)


def _sum(entries: Sequence[Entry]) -> int:
    return sum(entry.cents for entry in entries)
