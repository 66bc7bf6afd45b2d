"""How things stand, second by second, as the table shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

# As wide as most terminals are.
HEADING = (
    f"{'time':>5} {'calls/s':>7} {'begun/s':>7} {'settled/s':>9} {'refused/s':>9}"
    f" {'cleared/s':>9} {'waiting':>7} {'in job':>6} {'replayed':>8} {'dead':>4}"
)


@dataclass(frozen=True)
class Standing:
    """Sums over all nodes; of those that are away, what they told last."""

    answered: int = 0
    begun: int = 0
    settled: int = 0
    refused: int = 0
    cleared: int = 0
    pending: int = 0
    replayed: int = 0
    dead: int = 0


@dataclass
class Second:
    """One row of the table."""

    at_s: float
    before: Standing
    now: Standing
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        was, now = self.before, self.now
        waiting = now.settled - now.cleared - now.dead
        return (
            f"{self.at_s:>3.0f} s {now.answered - was.answered:>7,} {now.begun - was.begun:>7,}"
            f" {now.settled - was.settled:>9,} {now.refused - was.refused:>9,}"
            f" {now.cleared - was.cleared:>9,} {waiting:>7,} {now.pending:>6,}"
            f" {now.replayed:>8,} {now.dead:>4,}"
        )


class Board:
    """Gathers what nodes tell."""

    # What a process counts itself, and a killed one takes along.
    _SINCE_START = ("asked", "answered", "unanswered", "wrong", "replayed")

    def __init__(self) -> None:
        self.seconds: list[Second] = []
        # What each node told last, and what it had told when its process was killed.
        self._told: dict[str, Mapping[str, int]] = {}
        self._before: dict[str, Counter[str]] = {}

    def tell(self, name: str, counts: Mapping[str, int]) -> None:
        """Take what a node tells of itself."""
        self._told[name] = counts

    def forget(self, name: str) -> None:
        """A node was killed: what its process counted is kept, and it begins anew."""
        told, before = self._told.get(name, {}), self._before.setdefault(name, Counter())
        before.update({key: told.get(key, 0) for key in self._SINCE_START})
        # Calls that were under way when it last told of them: their caller hears of no end.
        ended = sum(told.get(key, 0) for key in ("answered", "unanswered", "wrong"))
        before["cut_off"] += told.get("asked", 0) - ended
        gone = (*self._SINCE_START, "pending")
        self._told[name] = {key: count for key, count in told.items() if key not in gone}

    def last(self, name: str, key: str) -> int | None:
        """What a node told last; None if its process has not told it yet."""
        return self._told.get(name, {}).get(key)

    def sum(self, key: str) -> int:
        """Of all nodes, in all their lives."""
        return sum(it.get(key, 0) for it in (*self._told.values(), *self._before.values()))

    def standing(self) -> Standing:
        """How things stand now."""
        return Standing(
            answered=self.sum("answered"),
            begun=self.sum("debits"),
            settled=self.sum("settlements"),
            refused=self.sum("refunds"),
            cleared=self.sum("receipts"),
            pending=self.sum("pending"),
            replayed=self.sum("replayed"),
            dead=self.sum("dead"),
        )

    def tick(self, at_s: float) -> None:
        """A second is over."""
        before = self.seconds[-1].now if self.seconds else Standing()
        self.seconds.append(Second(at_s, before, self.standing()))

    def note(self, text: str) -> None:
        """Something happened, after the last second."""
        if not self.seconds:
            self.seconds.append(Second(0.0, Standing(), Standing()))
        self.seconds[-1].notes.append(text)
