"""The reconciliation of clearing: each payment was cleared once, or is a dead letter. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .books import Cleared, Posted
from .clearing import make_order
from .mail_verdict import Absence
from .verdict import Check, Item


@dataclass(frozen=True, kw_only=True)
class ClearingEvidence:
    """What the run left in the databases."""

    posted: Sequence[Posted]
    """Written by the node that posts, together with each post."""
    cleared: Sequence[Cleared]
    """Written there by the handler of what comes back."""
    totals: Mapping[str, int]
    """The newest total of each bank, as the windows of the job told it."""
    dead: Sequence[tuple[int, str]]
    """Number and reason of each dead letter of the job."""
    away: Absence
    """Of the node that clears: until it listened again."""
    caught: int
    """Payments that Spark was at when it was killed."""
    resumed_s: float
    """When the first payment was acknowledged after its return."""


class Settlement:
    """What was posted, against what became of it."""

    def __init__(self, evidence: ClearingEvidence) -> None:
        posted = [it.number for it in evidence.posted]
        cleared = [it.number for it in evidence.cleared]
        dead = [number for number, _ in evidence.dead]
        ends = Counter(cleared) + Counter(dead)
        self.lost = len(set(posted) - set(ends))
        self.unknown = len(set(ends) - set(posted))
        self.duplicates = len(posted) - len(set(posted)) + ends.total() - len(ends)

    @property
    def adds_up(self) -> bool:
        """Whether each has come to one end."""
        return not self.lost + self.unknown + self.duplicates

    def __str__(self) -> str:
        return f"lost {self.lost:,}, duplicates {self.duplicates:,}" + (
            f", never posted {self.unknown:,}" if self.unknown else ""
        )


def clearing_checks(evidence: ClearingEvidence) -> list[Check]:
    """Everything that must hold; the demo succeeds only if all of it does."""
    posted, cleared, dead = evidence.posted, evidence.cleared, evidence.dead
    settlement = Settlement(evidence)
    return [
        Check(
            f"payments posted {len(posted):,} = cleared {len(cleared):,} + dead {len(dead):,}:"
            f" {settlement}",
            settlement.adds_up and bool(posted),
        ),
        _check_dead(evidence),
        _check_sums(evidence),
        _check_totals(evidence),
        _check_away(evidence),
    ]


def clearing_items(evidence: ClearingEvidence) -> list[Item]:
    """The table of accounts."""
    killed_s = evidence.away.killed_s
    before = sum(it.at_s <= killed_s for it in evidence.cleared)
    reasons = Counter(reason for _, reason in evidence.dead)
    return [
        Item("payments posted by alpha", len(evidence.posted), "each post with its row"),
        Item("cleared before the kill", before),
        Item("in Spark at the kill", evidence.caught, "not acknowledged, so they came again"),
        Item("cleared after the kill", len(evidence.cleared) - before),
        *(Item("dead letters", count, reason) for reason, count in sorted(reasons.items())),
    ]


def _check_dead(evidence: ClearingEvidence) -> Check:
    """What is bad is dead, and nothing else."""
    bad = {it.number for it in evidence.posted if make_order(it.number).cents is None}
    dead = {number for number, _ in evidence.dead}
    have_reasons = all(reason for _, reason in evidence.dead)
    return Check(
        f"bad payments posted {len(bad):,} = dead letters {len(evidence.dead):,},"
        f" each with its reason",
        bad == dead and bool(bad) and have_reasons,
    )


def _check_sums(evidence: ClearingEvidence) -> Check:
    """Each came back with its own amount, at its own bank."""
    due = {it.number: (it.bank, make_order(it.number).cents or 0) for it in evidence.posted}
    wrong = sum(due.get(it.number) != (it.bank, it.cents) for it in evidence.cleared)
    posted = sum(cents for _, cents in due.values())
    cleared = sum(it.cents for it in evidence.cleared)
    return Check(
        f"paid {posted / 100:,.2f} = cleared {cleared / 100:,.2f}"
        + (f", but {wrong:,} with a wrong amount" if wrong else ""),
        posted == cleared and wrong == 0,
    )


def _check_totals(evidence: ClearingEvidence) -> Check:
    """The windows of the job have counted the same."""
    sums: Counter[str] = Counter()
    for it in evidence.cleared:
        sums[it.bank] += it.cents
    wrong = sum(evidence.totals.get(bank) != cents for bank, cents in sums.items())
    total = sum(evidence.totals.values())
    return Check(
        f"totals of {len(evidence.totals)} banks, kept in windows: {total / 100:,.2f},"
        f" wrong {wrong}",
        wrong == 0 and len(sums) == len(evidence.totals),
    )


def _check_away(evidence: ClearingEvidence) -> Check:
    """The node that clears must have gone on with what it was at."""
    away = evidence.away
    waited = sum(away.killed_s < it.at_s < away.returned_s for it in evidence.posted)
    has_gone_on = any(it.at_s > evidence.resumed_s > away.killed_s for it in evidence.cleared)
    return Check(
        f"{away}: {waited:,} payments posted meanwhile, "
        + (
            f"Spark went on {evidence.resumed_s - away.returned_s:.1f} s after its return"
            if has_gone_on
            else "nothing cleared after its return"
        ),
        has_gone_on,
    )
