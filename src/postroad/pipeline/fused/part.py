"""A part of a batch of a job with one stage: whole trees, worked on where they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from postroad.pipeline.attempts import describe_exception
from postroad.pipeline.media.medium import RawRecords, InputConnector, OutputConnector
from postroad.pipeline.program import CompiledJob
from postroad.pipeline.records import RetryRoot
from postroad.pipeline.tree import WindowInput

from .passing import StageExecutor, RootBatch
from .reading import DecodedRoots, decode_retries, decode_split
from .working import PartitionExecutor


class SingleStagePartition(PartitionExecutor):
    """Works on some deliveries, and accounts for them."""

    def __init__(self, program: CompiledJob, outputs: Mapping[str, OutputConnector], name: str) -> None:
        super().__init__(program, outputs, name)
        self._pass = StageExecutor(program, 0, self._sink)

    def process_split(
        self, number: int, task: str, generation: int, medium: InputConnector, chunks: Iterable[RawRecords]
    ) -> None:
        """Work on a slice of an input."""
        self._take(number, task, decode_split(self._program, task, generation, medium, chunks))

    def process_retries(self, number: int, task: str, roots: Iterable[RetryRoot]) -> None:
        """Work on roots that come again."""
        self._take(number, task, decode_retries(task, roots))

    def _take(self, number: int, task: str, pieces: Iterable[DecodedRoots]) -> None:
        self._outcome.deliveries.append(number)
        for read in pieces:
            self._outcome.segments += read.total
            self._outcome.failed += read.rejected
            piece = RootBatch(self._program, read.roots, read.generation, read.published)
            self._pass.run_roots(piece, task, read.segments)
            self._close(piece, task, read)

    def _close(self, piece: RootBatch, task: str, read: DecodedRoots) -> None:
        """Account for the roots of a piece."""
        residues = piece.ledger.unacked()
        failures: dict[int, list[tuple[str, str]]] = {}
        for it in piece.failures:
            failures.setdefault(it.origin, []).append((it.task, describe_exception(it.error)))
        for place, additions in _by_origin(piece.additions).items():
            # Only if the rest of it is done.
            if place in residues or place in failures:
                continue
            if (failure := self._add_to_windows(additions)) is not None:
                failures[place] = [(failure[0], describe_exception(failure[1]))]
        failed = sorted(residues.keys() | failures.keys())
        published = self._sink.take_written_ids(failed)
        for place in failed:
            self._fail(
                int(piece.roots[place]),
                task,
                piece.generation,
                read.keep(place),
                failures.get(place, ()),
                residues[place].missing if place in residues else 0,
                [*piece.published.get(place, ()), *published[place]],
            )


def _by_origin(additions: Iterable[tuple[int, WindowInput]]) -> dict[int, list[WindowInput]]:
    found: dict[int, list[WindowInput]] = {}
    for origin, addition in additions:
        found.setdefault(origin, []).append(addition)
    return found
