"""What is done where a part of a batch is accounted for, whichever way its roots came there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from postroad.pipeline.attempts import can_retry, make_failed_attempt
from postroad.pipeline.media.medium import OutputConnector
from postroad.pipeline.program import CompiledJob
from postroad.pipeline.records import FailedRoot
from postroad.pipeline.tree import WindowInput
from postroad.pipeline.windows import WindowDeltaBuilder

from .calls import drop_tracebacks
from .clock import now_ms
from .outcome import PartitionResult
from .sinks import OutputSink


class PartitionExecutor:
    """A part of a batch.

    Args:
        program: the job.
        outputs: by the names of their tasks.
        name: one that no other part has.
    """

    def __init__(self, program: CompiledJob, outputs: Mapping[str, OutputConnector], name: str) -> None:
        self._program = program
        self._sink = OutputSink(program.job.name, name, outputs)
        self._windows = WindowDeltaBuilder(program.windows)
        self._outcome = PartitionResult()

    def _add_to_windows(self, additions: Sequence[WindowInput]) -> tuple[str, Exception] | None:
        """All that a root adds, or nothing of it; returns the task that failed, and with what."""
        one = WindowDeltaBuilder(self._program.windows)
        for it in additions:
            try:
                one.add(it.task, it.group, it.segment, order=it.order)
            except Exception as error:
                drop_tracebacks(error)
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
        attempt = make_failed_attempt(generation, now_ms(), task, failures, missing)
        ids = sorted(set(published))
        failed = FailedRoot(
            root, task, generation, segment, attempt, ids, is_permanent=not can_retry(segment)
        )
        self._outcome.failed.append(failed)

    def finish(self) -> PartitionResult:
        """Stage everything for good; returns what it came to."""
        self._outcome.staged = self._sink.prepare_commit()
        self._outcome.delta = self._windows.delta
        return self._outcome

    def abort(self) -> None:
        """Throw away what was staged."""
        self._sink.abort()
