"""What clients know of their orders: kept by the test, so that no crash can take it away."""

from __future__ import annotations

import enum
from typing import NamedTuple

from postroad.testing import require
from tests.simulation.flows.orders import Job


class Fate(enum.Enum):
    PLANNED = "planned"
    UNCERTAIN = "uncertain"
    """It was given, and nobody heard whether a flow was begun."""
    BEGUN = "begun"
    REFUSED = "refused"
    """It was said that no flow was begun."""


class Garbage(NamedTuple):
    """Something in the mail that no flow can make sense of."""

    sender: str
    receiver: str
    body: bytes


class Books:
    """Where all orders are.

    Attributes:
        ids: of the flows that were begun for them.
        endings: what clients were told came of them.
        is_signalled: those whose signal was sent for sure.
        first_ms: the first times of schedules, as far as somebody was told.
        garbage: what was posted that is no letter of a flow, and whether it was for sure.
    """

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = {it.name: it for it in jobs}
        self.fates = dict.fromkeys(self.jobs, Fate.PLANNED)
        self.ids: dict[str, str] = {}
        self.endings: dict[str, str] = {}
        self.is_signalled: dict[str, bool] = {}
        self.first_ms: dict[str, int] = {}
        self.garbage: dict[Garbage, bool] = {}

    def is_wanted(self, job: Job) -> bool:
        fate = self.fates[job.name]
        return fate is Fate.PLANNED or (fate is Fate.UNCERTAIN and job.is_named)

    def begin(self, job: Job) -> None:
        self.fates[job.name] = Fate.UNCERTAIN

    def confirm(self, job: Job, id: str) -> None:
        self.fates[job.name] = Fate.BEGUN
        known = self.ids.setdefault(job.name, id)
        require(known == id, f"{job.name} is flow {id}, and was {known} before")

    def refuse(self, job: Job) -> None:
        if not job.is_named:
            self.fates[job.name] = Fate.REFUSED

    def tell(self, job: Job, ending: str) -> None:
        known = self.endings.setdefault(job.name, ending)
        require(known == ending, f"{job.name} ended with {ending!r}, and with {known!r} before")

    def expect(self, name: str, next_ms: int) -> None:
        self.first_ms.setdefault(name, next_ms)

    def is_over(self, job: Job) -> bool:
        """Whether its client has nothing more to do or to wait for."""
        return not self.is_wanted(job) and (job.name not in self.ids or job.name in self.endings)

    @property
    def is_done(self) -> bool:
        return all(map(self.is_over, self.jobs.values()))
