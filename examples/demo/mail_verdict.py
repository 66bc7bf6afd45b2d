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


def _check_booker_away(evidence: MailEvidence) -> Check:
    away = evidence.booker_away
    meanwhile = [it for it in evidence.payments if away.killed_s < it.at_s < away.returned_s]
    return _check_return(away, evidence.bookings, f"{len(meanwhile):,} payments waited", "handled")


def _check_payer_away(evidence: MailEvidence) -> Check:
    away = evidence.payer_away
    meanwhile = [it for it in evidence.bookings if away.killed_s < it.at_s < away.returned_s]
    return _check_return(away, evidence.payments, f"{len(meanwhile):,} receipts waited", "posted")


def _check_return(away: Absence, entries: Sequence[Entry], waited: str, done: str) -> Check:
    """The node that was killed must have gone on."""
    later = [entry.at_s for entry in entries if entry.at_s > away.killed_s]
    # It may go on before the story hears that it is back.
    went_on = (
        f"{done} the next {max(0.0, later[0] - away.returned_s) * 1000:,.0f} ms after its return"
        if later
        else f"never {done} another"
    )
    seconds = away.returned_s - away.killed_s
    return Check(f"{away.name} was away for {seconds:.2f} s: {waited}; it {went_on}", bool(later))


def _sum(entries: Sequence[Entry]) -> int:
    return sum(entry.cents for entry in entries)
