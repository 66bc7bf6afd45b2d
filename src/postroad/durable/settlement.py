"""The end of a message at its sender: the peer has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .exchange import Answer, Refusal
from .fencing import check_token
from .outflow import Course
from .store.ledger import Ledger
from .store.units import Unit


class Settlement(Unit):
    """What a peer has accepted is removed; what it refused becomes dead letters."""

    __slots__ = ("_chain", "_course", "_on_settled", "_refusals", "upto")

    def __init__(
        self,
        course: Course,
        answer: Answer,
        refusals: Sequence[Refusal],
        on_settled: Callable[[Settlement, Exception | None], None],
    ) -> None:
        super().__init__()
        self._on_settled = on_settled
        self._course = course
        self._chain = answer.chain
        self._refusals = refusals
        self.upto = answer.watermark

    @property
    def epoch(self) -> int:
        """The epoch its numbers are of."""
        return self._course.epoch

    def apply(self, ledger: Ledger) -> None:
        check_token(ledger.database, self._course.token)
        ledger.outbox.settle(
            self._course.peer,
            self._course.epoch,
            self.upto,
            self._chain,
            self._refusals,
            ledger.now_ms,
        )

    def settle(self, error: Exception | None) -> None:
        self._on_settled(self, error)
