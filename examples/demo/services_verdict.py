"""The reconciliation of services: calls, events and streams, as both sides know them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .mail_verdict import Absence
from .records import MeetingReport, MeetingSide, Totals
from .services_journal import Emitted, Heard, Streamed, Summed, Taken, Tried
from .verdict import Check, Item

# What was emitted so shortly before a kill may not have reached the node.
IN_FLIGHT_S = 0.5
MIB = 1024 * 1024

ORDER, PRICE = "desk.buy", "quotes.price"


@dataclass(frozen=True, kw_only=True)
class ServicesEvidence:
    """What the run left in the journals."""

    totals: Totals
    """The accounts of the node that makes orders."""
    tried: Sequence[Tried]
    """Written by those that call, of all actions."""
    taken: Mapping[str, Sequence[Taken]]
    """Written by each node that is called."""
    emitted: Sequence[Emitted]
    heard: Mapping[str, Sequence[Heard]]
    """Written by the nodes of each group."""
    streams: Sequence[Streamed]
    """Written by the node that asked for them, and the next by those that were asked."""
    summed: Sequence[Summed]
    killed: Absence
    """Of the node with quotes that was killed."""
    killed_group: str
    """The group it belongs to."""
    noticed_s: float
    """When every other node knew that."""

    def is_in_kill(self, ended: Tried | Streamed) -> bool:
        """Whether something may have been at the node that was killed, or on its way to it."""
        return ended.began_s <= self.noticed_s and ended.ended_s >= self.killed.killed_s

    def numbers_in_kill(self) -> set[int]:
        """The events that may have been there."""
        since_s = self.killed.killed_s - IN_FLIGHT_S
        return {it.number for it in self.emitted if since_s <= it.at_s <= self.noticed_s}


class CallBooks:
    """The calls of one action: what callers made, against what came."""

    def __init__(self, evidence: ServicesEvidence, action: str) -> None:
        tried = [it for it in evidence.tried if it.action == action]
        taken = Counter(
            (name, it.id)
            for name, them in evidence.taken.items()
            for it in them
            if it.action == action
        )
        answered = {(it.node, it.id) for it in tried if not it.error}
        failed = {(it.node, it.id) for it in tried if it.error}
        self.tried = len(tried)
        self.taken = taken.total()
        self.answered = len(answered)
        self.failed = len(failed)
        self.twice = taken.total() - len(taken) + len(tried) - len(answered | failed)
        self.never = len(answered - set(taken))
        self.unanswered = len(failed & set(taken))
        self.stray = len(set(taken) - answered - failed)

    @property
    def adds_up(self) -> bool:
        """Whether each answer was given once, and nothing came that nobody asked."""
        return not self.twice + self.never + self.stray and self.answered > 0

    def __str__(self) -> str:
        return (
            f"twice {self.twice:,}"
            + (f", answered and never taken {self.never:,}" if self.never else "")
            + (f", never asked {self.stray:,}" if self.stray else "")
        )


class EventBooks:
    """What was emitted, against what one group heard."""

    def __init__(self, evidence: ServicesEvidence, group: str) -> None:
        emitted = {it.number for it in evidence.emitted}
        heard = [it.number for it in evidence.heard[group]]
        may_miss = evidence.numbers_in_kill() if group == evidence.killed_group else set()
        missing = emitted - set(heard)
        self.heard = len(heard)
        self.lost = len(missing & may_miss)
        self.missing = len(missing - may_miss)
        self.twice = len(heard) - len(set(heard))
        self.stray = len(set(heard) - emitted)

    @property
    def adds_up(self) -> bool:
        """Whether the group heard each event once, but for what died with a node."""
        return not self.missing + self.twice + self.stray and self.heard > 0


def services_checks(evidence: ServicesEvidence) -> list[Check]:
    """Everything that must hold; the demo succeeds only if all of it does."""
    totals = evidence.totals
    return [
        Check(
            f"orders made {totals.made:,} = filled {totals.answered:,} + failed"
            f" {totals.failed:,}, each with its error; wrong replies {totals.wrong:,}",
            totals.in_flight == 0 and totals.answered > 0 and totals.wrong == 0,
        ),
        _check_orders(evidence),
        _check_prices(evidence),
        *(_check_events(evidence, group) for group in evidence.heard),
        _check_streams(evidence),
        _check_errors(evidence),
        _check_killed(evidence),
    ]


def services_items(evidence: ServicesEvidence) -> list[Item]:
    """The table of accounts."""
    totals = evidence.totals
    return [
        Item("orders made", totals.made),
        Item("filled at first", totals.answered - totals.answered_after_retry),
        Item("filled after a retry", totals.answered_after_retry, "tried again by the broker"),
        *(
            Item(f"failed: {it.error}", it.failed, f"outcome {it.outcome}, and given up")
            for it in totals.troubles
            if it.failed
        ),
        *(
            Item(f"prices told by {name}", amount)
            for name, them in evidence.taken.items()
            if (amount := sum(it.action == PRICE for it in them))
        ),
        Item("events emitted", len(evidence.emitted)),
        *(Item(f"heard by group {name}", len(them)) for name, them in evidence.heard.items()),
        Item("streams", len(evidence.streams), "half of them each way"),
    ]


def _check_orders(evidence: ServicesEvidence) -> Check:
    """The node that takes orders was there all the time, so each try came to it."""
    books = CallBooks(evidence, ORDER)
    return Check(
        f"{ORDER}: calls {books.tried:,} = came to the desk {books.taken:,}; {books}",
        books.adds_up and books.tried == books.taken,
    )


def _check_prices(evidence: ServicesEvidence) -> Check:
    books = CallBooks(evidence, PRICE)
    return Check(
        f"{PRICE}: came to both nodes {books.taken:,} = answered {books.answered:,} +"
        f" {books.unanswered:,} of {books.failed:,} that failed; {books}",
        books.adds_up,
    )


def _check_events(evidence: ServicesEvidence, group: str) -> Check:
    books = EventBooks(evidence, group)
    return Check(
        f"events emitted {len(evidence.emitted):,} = heard by group {group} {books.heard:,}"
        + (f" + {books.lost:,} lost with the node" if group == evidence.killed_group else "")
        + f"; missing {books.missing:,}, twice {books.twice:,}"
        + (f", never emitted {books.stray:,}" if books.stray else ""),
        books.adds_up,
    )


def _check_streams(evidence: ServicesEvidence) -> Check:
    """What came to its end has the same bytes at both ends."""
    whole = [it for it in evidence.streams if not it.error]
    sums = {it.number: (it.size, it.digest) for it in evidence.summed}
    wrong = sum(sums.get(it.number) != (it.size, it.digest) for it in whole)
    mebibytes = sum(it.size for it in whole) / MIB
    return Check(
        f"streams {len(evidence.streams):,} = whole {len(whole):,} + broken off"
        f" {len(evidence.streams) - len(whole):,}; {mebibytes:,.0f} MiB, SHA-256 differs"
        f" {wrong:,}",
        wrong == 0 and len(whole) > 0,
    )


def _check_errors(evidence: ServicesEvidence) -> Check:
    """Nothing fails for any other reason than the kill."""
    ended: list[Tried | Streamed] = [*evidence.tried, *evidence.streams]
    failed = [it for it in ended if it.error]
    others = sum(not evidence.is_in_kill(it) for it in failed)
    return Check(
        f"calls and streams that met an error {len(failed):,}, for another reason than the kill"
        f" {others:,}",
        others == 0,
    )


def _check_killed(evidence: ServicesEvidence) -> Check:
    """Orders must have been filled without the node, and it must be of use when it is back."""
    away = evidence.killed
    answered = [it for it in evidence.tried if not it.error]
    meanwhile = sum(
        it.action == ORDER and evidence.noticed_s < it.began_s < away.returned_s for it in answered
    )
    later = sum(
        it.action == PRICE and it.node == away.name and it.began_s > away.returned_s
        for it in answered
    )
    noticed_s = evidence.noticed_s - away.killed_s
    return Check(
        f"{away}: missed within {noticed_s:.1f} s, {meanwhile:,} orders filled without it, and"
        f" {later:,} prices from it when it was back",
        meanwhile > 0 and later > 0,
    )


# The meeting with a node of Moleculer.


def meeting_checks(met: MeetingReport) -> list[Check]:
    """Whether each side got what the other one gave."""
    return [
        _check_side("Postroad", met.ours, "Moleculer", met.theirs),
        _check_side("Moleculer", met.theirs, "Postroad", met.ours),
    ]


def _check_side(name: str, side: MeetingSide, other: str, other_side: MeetingSide) -> Check:
    return Check(
        f"{name} called {other} {side.called:,} = right results {side.answered:,}; events emitted"
        f" {side.emitted:,} = heard {other_side.heard:,}",
        0 < side.called == side.answered and 0 < side.emitted == other_side.heard,
    )
