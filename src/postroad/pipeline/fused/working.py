"""What is done where a part of a batch is accounted for, whichever way its roots came there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from postroad.pipeline.attempts import is_kept, to_attempt
from postroad.pipeline.media.medium import OutputMedium
from postroad.pipeline.program import Program
from postroad.pipeline.records import FailedRoot
from postroad.pipeline.tree import Addition
from postroad.pipeline.windows import DeltaMaker

from .calls import forget_frames
from .clock import now_ms
from .outcome import PartOutcome
from .sinks import StagingSink


class PartWork:
    """A part of a batch.

    Args:
        program: the job.
        outputs: by the names of their tasks.
        name: one that no other part has.
    """

    def __init__(self, program: Program, outputs: Mapping[str, OutputMedium], name: str) -> None:
        self._program = program
        self._sink = StagingSink(program.job.name, name, outputs)
        self._windows = DeltaMaker(program.plan)
        self._outcome = PartOutcome()

    def _add_to_windows(self, additions: Sequence[Addition]) -> tuple[str, Exception] | None:
        """All that a root adds, or nothing of it; returns the task that failed, and with what."""
        one = DeltaMaker(self._program.plan)
        for it in additions:
            try:
                one.add(it.task, it.group, it.segment, order=it.order)
            except Exception as error:
                forget_frames(error)
                return it.task, error
        self._windows.merge(one.delta)
        return None

    def _fail(
        self,
        root: int,
        task: str,
        generation: int,
        segment: bytes,
        failures: Sequence[tuple[str, str]],
        missing: int,
        published: Iterable[int],
    ) -> None:
        """A root is not done with."""
        attempt = to_attempt(generation, now_ms(), task, failures, missing)
        ids = sorted(set(published))
        failed = FailedRoot(
            root, task, generation, segment, attempt, ids, is_hopeless=not is_kept(segment)
        )
        self._outcome.failed.append(failed)

    def finish(self) -> PartOutcome:
        """Stage everything for good; returns what it came to."""
        self._outcome.staged = self._sink.finish()
        self._outcome.delta = self._windows.delta
        return self._outcome

    def abandon(self) -> None:
        """Throw away what was staged."""
        self._sink.abandon()
