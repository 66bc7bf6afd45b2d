"""What the applications know: kept by the test, so that no crash can take it away."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence

from postroad.testing import require
from tests.simulation.durable.slips import Job


class Fate(enum.Enum):
    PLANNED = "planned"
    UNCERTAIN = "uncertain"
    """It was begun, and nobody heard how that ended."""
    CONFIRMED = "confirmed"
    REFUSED = "refused"
    """It was said that nothing was changed."""


class Books:
    """Where all jobs are, and what handlers saw that leaves no row behind."""

    def __init__(self, clerks: dict[str, list[list[Job]]]) -> None:
        self.jobs = {job.name: job for lists in clerks.values() for jobs in lists for job in jobs}
        self.fates = dict.fromkeys(self.jobs, Fate.PLANNED)
        # How often a handler saw a note.
        self.notes: Counter[str] = Counter()
        # Ids that posting the same thing again must give again.
        self._ids: dict[str, list[int]] = {}

    def is_wanted(self, job: Job) -> bool:
        fate = self.fates[job.name]
        return fate is Fate.PLANNED or (fate is Fate.UNCERTAIN and job.is_idempotent)

    def begin(self, job: Job) -> None:
        self.fates[job.name] = Fate.UNCERTAIN

    def confirm(self, job: Job, ids: Sequence[int] | None) -> None:
        """It was done; `ids` are told where they have to stay the same."""
        self.fates[job.name] = Fate.CONFIRMED
        if ids is not None:
            known = self._ids.setdefault(job.name, list(ids))
            require(known == list(ids), f"job {job.name} has ids {ids}, and had {known} before")

    def refuse(self, job: Job) -> None:
        if not job.is_idempotent:
            self.fates[job.name] = Fate.REFUSED

    @property
    def is_done(self) -> bool:
        return not any(map(self.is_wanted, self.jobs.values()))
