"""The reconciliation of cells: each call and each copy, as sender and receivers know it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .cells_journal import Attempted, Copied, Handled, Published
from .mail_verdict import Absence
from .records import Totals
from .verdict import Check, Item

# What was published so shortly before a kill may not have left the core.
IN_FLIGHT_S = 0.5


@dataclass(frozen=True, kw_only=True)
class CellsEvidence:
    """What the run left in the journals."""

    totals: Totals
    """The accounts of the satellite that sends."""
    attempts: Sequence[Attempted]
    """Written by the satellite that sends, as the next."""
    published: Sequence[Published]
    handled: Mapping[str, Sequence[Handled]]
    """Written by each consumer."""
    copies: Mapping[str, Sequence[Copied]]
    """Written by each subscriber."""
    killed: Absence
    """Of the core that was killed."""
    noticed_s: float
    """When every satellite knew that."""
    restarted: Absence
    """Of the core that was restarted in good order; it is away as soon as it is told to go."""

    def is_in_kill(self, attempt: Attempted) -> bool:
        """Whether an attempt may have been in the core that was killed, or on its way to it."""
        return attempt.began_s <= self.noticed_s and attempt.ended_s >= self.killed.killed_s

    def numbers_in_kill(self) -> set[int]:
        """The publications that may have been there."""
        since_s = self.killed.killed_s - IN_FLIGHT_S
        return {it.number for it in self.published if since_s <= it.at_s <= self.noticed_s}


class CallLedger:
    """What became of each attempt of a call, against what the consumers were given."""

    def __init__(self, evidence: CellsEvidence) -> None:
        given = [
            (name, it.call, it.attempt) for name, them in evidence.handled.items() for it in them
        ]
        attempts = Counter((call, attempt) for _, call, attempt in given)
        answered = {(it.handler, it.call, it.attempt) for it in evidence.attempts if it.handler}
        unknown = {(it.call, it.attempt) for it in evidence.attempts if it.outcome == "unknown"}
        others = {(call, attempt) for _, call, attempt in set(given) - answered}
        self.handled = len(given)
        self.answered = len(answered)
        self.unknown = len(unknown)
        self.twice = attempts.total() - len(attempts)
        self.never = len(answered - set(given))
        # Handled without an answer, which only those may be whose outcome is unknown.
        self.unanswered = len(others & unknown)
        self.stray = len(others - unknown)

    def check(self) -> Check:
        """Whether what was answered was handled once, and nothing else that was given up."""
        return Check(
            f"handled {self.handled:,} = answered {self.answered:,} + {self.unanswered:,} of"
            f" {self.unknown:,} attempts with unknown outcome; twice {self.twice:,}"
            + (f", answered and never handled {self.never:,}" if self.never else "")
            + (f", handled and known to have failed {self.stray:,}" if self.stray else ""),
            not self.twice + self.never + self.stray and self.answered > 0,
        )


class CopyLedger:
    """What was published, against what the subscribers were given."""

    def __init__(self, evidence: CellsEvidence) -> None:
        published = {it.number for it in evidence.published}
        in_kill = evidence.numbers_in_kill()
        self.published = len(published)
        self.in_kill = len(in_kill)
        self.subscribers = len(evidence.copies)
        self.copies = self.twice = self.missing = self.lost = self.stray = 0
        for them in evidence.copies.values():
            came = {it.number for it in them}
            self.copies += len(them)
            self.twice += len(them) - len(came)
            self.missing += len(published - came - in_kill)
            self.lost += len((published - came) & in_kill)
            self.stray += len(came - published)

    def check(self) -> Check:
        """Whether each subscriber has each publication once, but for what a core died with."""
        return Check(
            f"published {self.published:,} x {self.subscribers} subscribers = copies"
            f" {self.copies:,} + {self.lost:,} lost with the core; missing {self.missing:,},"
            f" twice {self.twice:,}" + (f", never published {self.stray:,}" if self.stray else ""),
            not self.missing + self.twice + self.stray and self.copies > 0,
        )


def cells_checks(evidence: CellsEvidence) -> list[Check]:
    """Everything that must hold; the demo succeeds only if all of it does."""
    totals = evidence.totals
    return [
        Check(
            f"calls made {totals.made:,} = answered {totals.answered:,} + failed"
            f" {totals.failed:,}; wrong replies {totals.wrong:,}",
            totals.in_flight == 0 and totals.made > 0 and totals.wrong == 0,
        ),
        CallLedger(evidence).check(),
        CopyLedger(evidence).check(),
        _check_errors(evidence),
        _check_killed(evidence),
        _check_restarted(evidence),
    ]


def cells_items(evidence: CellsEvidence) -> list[Item]:
    """The table of accounts."""
    totals = evidence.totals
    copies = CopyLedger(evidence)
    return [
        Item("calls made", totals.made),
        Item("answered at first", totals.answered - totals.answered_after_retry),
        Item("answered after a retry", totals.answered_after_retry, "lost with the core at first"),
        *(
            Item(f"failed: {it.error}", it.failed, f"outcome {it.outcome}, and given up")
            for it in totals.troubles
            if it.failed
        ),
        *(
            Item(f"handled by {name}", len(them), "each attempt is one")
            for name, them in evidence.handled.items()
        ),
        Item("published", copies.published, f"{copies.in_kill:,} of them when the core was killed"),
        *(Item(f"copies at {name}", len(them)) for name, them in evidence.copies.items()),
    ]


def _check_errors(evidence: CellsEvidence) -> Check:
    """Nothing fails for any other reason than the kill."""
    failed = [it for it in evidence.attempts if not it.handler]
    others = sum(not evidence.is_in_kill(it) for it in failed)
    return Check(
        f"attempts that met an error {len(failed):,}, for another reason than the kill {others:,}",
        others == 0,
    )


def _check_killed(evidence: CellsEvidence) -> Check:
    """Traffic must have gone on without the core that was killed."""
    away = evidence.killed
    answered = sum(
        evidence.noticed_s < it.began_s < away.returned_s and bool(it.handler)
        for it in evidence.attempts
    )
    noticed_ms = (evidence.noticed_s - away.killed_s) * 1000
    return Check(
        f"{away}: noticed within {noticed_ms:,.0f} ms, {answered:,} calls answered meanwhile",
        answered > 0,
    )


def _check_restarted(evidence: CellsEvidence) -> Check:
    """An orderly restart must have gone unnoticed."""
    away = evidence.restarted
    during = [
        it
        for it in evidence.attempts
        if it.began_s <= away.returned_s and it.ended_s >= away.killed_s
    ]
    failed = sum(not it.handler for it in during)
    return Check(
        f"{away} in good order: {len(during):,} calls meanwhile, failed {failed:,}",
        failed == 0 and len(during) > 0,
    )
