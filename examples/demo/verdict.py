"""The reconciliation of requests: made, answered, handled, and whether it adds up. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .records import Totals


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the run left behind."""

    totals: Totals
    handled: int
    """Requests the peer handled in both its lives, counted by itself."""
    errors_before_kill: int
    reconnects: int
    killed_s: float
    """This and the next on the clock of `time.monotonic`."""
    returned_s: float
    """When the peer listened again."""

    @property
    def recovery_s(self) -> float:
        """From the peer listening again to the first answer."""
        # Callers may find the peer listening before the story hears of it.
        return max(0.0, self.totals.gap_ended_s - self.returned_s)


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    text: str
    holds: bool


class Item(NamedTuple):
    """One line of the accounts."""

    what: str
    amount: int
    meaning: str = ""


def checks(evidence: Evidence) -> list[Check]:
    """Everything that must hold; the demo succeeds only if all of it does."""
    totals = evidence.totals
    handled_unanswered = evidence.handled - totals.answered
    return [
        Check(
            f"made {totals.made:,} = answered {totals.answered:,} + failed {totals.failed:,}",
            totals.in_flight == 0 and totals.made > 0,
        ),
        Check(f"wrong replies {totals.wrong:,}", totals.wrong == 0),
        Check(
            f"handled by the peer {evidence.handled:,} = answered {totals.answered:,}"
            f" + {handled_unanswered:,} of {totals.unknown:,} with unknown outcome",
            0 <= handled_unanswered <= totals.unknown,
        ),
        Check(
            f"errors while both nodes were up {evidence.errors_before_kill:,}",
            evidence.errors_before_kill == 0,
        ),
        Check(
            f"no answer for {totals.longest_gap_s:.2f} s, the next one"
            f" {evidence.recovery_s * 1000:,.0f} ms after the peer was back; reconnects"
            f" {evidence.reconnects:,}",
            evidence.reconnects >= 1 and totals.gap_ended_s > evidence.killed_s,
        ),
    ]


def items(totals: Totals) -> list[Item]:
    """The table of accounts."""
    at_once = totals.answered - totals.answered_after_retry
    lines = [
        Item("requests made", totals.made),
        Item("answered at the first try", at_once),
        Item(
            "answered after a retry",
            totals.answered_after_retry,
            "never left at first, sent again with wait=True",
        ),
    ]
    meanings = {
        "unknown": "outcome unknown: maybe handled, so nobody sent them again",
        "not sent": "not sent: never left, and the caller gave up",
        "known": "failed there: the peer said so",
    }
    lines.extend(
        Item(f"failed: {it.error}", it.failed, meanings[it.outcome])
        for it in sorted(totals.troubles, key=lambda it: -it.failed)
        if it.failed
    )
    return lines
