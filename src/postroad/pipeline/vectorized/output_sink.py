"""Stages what a partition of a batch writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from postroad.pipeline.connectors.connector import (
    Committable,
    OutputConnector,
    OutputWriter,
    UnwritableSegmentsError,
)
from postroad.pipeline.coordinator.committer import writer_id
from postroad.pipeline.job import Segment
from postroad.pipeline.vectorized.acks import EdgeBatch, Ids, Indexes, LazyIds
from postroad.pipeline.vectorized.stage_executor import RootBatch, SegmentFailure
from postroad.pipeline.vectorized.task_calls import TaskOutput


class OutputSink:
    """Stages what a part of a batch writes.

    Args:
        job: the job's name.
        part: a name that no other part has.
        outputs: by the names of their tasks.
    """

    def __init__(self, job: str, part: str, outputs: Mapping[str, OutputConnector]) -> None:
        self._job = job
        self._part = part
        self._outputs = outputs
        self._stagers: dict[str, OutputWriter] = {}
        self._put: list[tuple[Indexes, Ids]] = []

    def send_downstream(
        self, piece: RootBatch, task: str, edges: EdgeBatch, segments: list[Segment]
    ) -> None:
        raise AssertionError(f"{task!r} is of a later stage, and there is none")

    def write_output(self, piece: RootBatch, task: str, edges: EdgeBatch, made: TaskOutput) -> None:
        ids = piece.output_ids(edges, task, made)
        origins = edges.origins if made.parents is None else edges.origins[made.parents]
        failed = set(made.failed)
        segments = made.segments
        parents = made.parents
        if piece.published:
            done = np.fromiter(chain.from_iterable(piece.published.values()), dtype=np.uint64)
            new = np.flatnonzero(np.isin(ids, done, invert=True))
            segments = [segments[place] for place in new.tolist()]
            ids, origins = ids[new], origins[new]
            parents = new if parents is None else parents[new]
        reasons = self.write(task, LazyIds(ids), segments)
        if reasons:
            bad = np.flatnonzero(np.isin(ids, np.array(list(reasons), dtype=np.uint64)))
            for place in bad.tolist():
                error = TypeError(f"it cannot be written: {reasons[int(ids[place])]}")
                piece.failures.append(SegmentFailure(int(origins[place]), task, error))
                failed.add(place if parents is None else int(parents[place]))
            origins, ids = np.delete(origins, bad), np.delete(ids, bad)
        self._put.append((origins, ids))
        piece.ledger.mark_processed(edges, sorted(failed))

    def write(self, task: str, ids: Sequence[int], segments: list[Segment]) -> dict[int, str]:
        """Write what can be written; returns why the rest cannot be."""
        refused: dict[int, str] = {}
        while ids:
            stager = self._stagers.get(task)
            if stager is None:
                name = writer_id(self._job, self._part, task)
                stager = self._stagers[task] = self._outputs[task].create_writer(name)
            try:
                stager.write(ids, segments)
                break
            except UnwritableSegmentsError as error:
                refused |= error.reasons
                kept = [at for at, id in enumerate(ids) if id not in error.reasons]
                if len(kept) == len(ids):
                    raise AssertionError(f"{task!r} refuses what it was not given") from error
                ids, segments = [ids[at] for at in kept], [segments[at] for at in kept]
        return refused

    def take_written_ids(self, origins: Sequence[int]) -> dict[int, list[int]]:
        """Ids of what was written since the last time, for some roots of the piece."""
        put, self._put = self._put, []
        found: dict[int, list[int]] = {origin: [] for origin in origins}
        if not found:
            return found
        wanted = np.zeros(1 + max(found), dtype=bool)
        wanted[list(found)] = True
        for places, ids in put:
            chosen = wanted[np.minimum(places, len(wanted) - 1)] & (places < len(wanted))
            for origin, id in zip(places[chosen].tolist(), ids[chosen].tolist(), strict=True):
                found[origin].append(id)
        return found

    def prepare_commit(self) -> list[tuple[str, Committable]]:
        """Have everything where a crash does not lose it."""
        staged = [(task, stager.prepare_commit()) for task, stager in self._stagers.items()]
        return [(task, it) for task, it in staged if it is not None]

    def abort(self) -> None:
        """Throw everything away."""
        for stager in self._stagers.values():
            stager.abort()
