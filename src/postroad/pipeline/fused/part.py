"""A part of a batch: some deliveries, worked on where they are, whole trees at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from postroad.pipeline.attempts import to_attempt
from postroad.pipeline.batch import Batch
from postroad.pipeline.delivered import Delivered
from postroad.pipeline.job import Segment
from postroad.pipeline.media.medium import (
    Chunk,
    InputMedium,
    OutputMedium,
    Undecodable,
    decode_segment,
    encode_segment,
)
from postroad.pipeline.program import Program
from postroad.pipeline.records import FailedRoot
from postroad.pipeline.tree import Addition
from postroad.pipeline.windows import DeltaMaker

from .calls import call_all, forget_frames
from .ids import Ids, root_ids
from .outcome import PartOutcome
from .passing import Pass, Piece
from .sinks import StagingSink

PIECE_SEGMENTS = 2048
"""Few enough for a processor's cache, many enough to pay for the calls of NumPy."""


class Part:
    """Works on some deliveries of a job that has one stage.

    Args:
        program: the job.
        outputs: by the names of their tasks.
        name: one that no other part has.
    """

    def __init__(self, program: Program, outputs: Mapping[str, OutputMedium], name: str) -> None:
        self._program = program
        self._sink = StagingSink(program.job.name, name, outputs)
        self._pass = Pass(program, 0, self._sink)
        self._windows = DeltaMaker(program.plan)
        self._outcome = PartOutcome()

    def take_slice(
        self, number: int, task: str, generation: int, medium: InputMedium, chunks: Iterable[Chunk]
    ) -> None:
        """Work on a slice of an input."""
        self._outcome.deliveries.append(number)
        for chunk in chunks:
            for start in range(0, len(chunk.raws), PIECE_SEGMENTS):
                stop = start + PIECE_SEGMENTS
                raws = chunk.raws[start:stop]
                roots = root_ids(
                    self._program.bits, task, chunk.source, chunk.positions[start:stop]
                )
                self._take_piece(task, generation, medium, roots, raws)

    def _take_piece(
        self,
        task: str,
        generation: int,
        medium: InputMedium,
        roots: Ids,
        raws: Sequence[bytes],
    ) -> None:
        self._outcome.segments += len(raws)
        segments, odd = _decode_all(medium.decode, raws)
        if odd:
            self._refuse(task, generation, roots, odd)
            kept = [place for place in range(len(raws)) if place not in odd]
            roots, raws = roots[kept], [raws[place] for place in kept]
            segments = [segments[place] for place in kept]
        piece = Piece(self._program, roots, generation)
        self._pass.enter(piece, task, segments)
        for failed, place in self._close(piece, task):
            segment = encode_segment(medium.decode(raws[place]))
            self._outcome.failed.append(msgspec.structs.replace(failed, segment=segment))

    def _refuse(
        self, task: str, generation: int, roots: Ids, odd: Mapping[int, Segment | Undecodable]
    ) -> None:
        batch = Batch(self._program)
        for place, found in odd.items():
            batch.take(Delivered(int(roots[place]), task, generation, found), _now_ms())
        failed, _ = batch.close(_now_ms())
        self._outcome.failed += failed

    def _close(self, piece: Piece, task: str) -> list[tuple[FailedRoot, int]]:
        """Roots of a piece that are not done with, each with its place there."""
        residues = piece.ledger.close()
        failures: dict[int, list[tuple[str, Exception]]] = {}
        for it in piece.failures:
            failures.setdefault(it.origin, []).append((it.task, it.error))
        if piece.additions:
            self._add_to_windows(piece, residues.keys() | failures.keys(), failures)
        failed = sorted(residues.keys() | failures.keys())
        published = self._sink.take_put(failed)
        found = []
        for place in failed:
            missing = residues[place].missing if place in residues else 0
            attempt = to_attempt(
                piece.generation, _now_ms(), task, failures.get(place, ()), missing
            )
            root = int(piece.roots[place])
            ids = sorted(set(published[place]))
            found.append((FailedRoot(root, task, piece.generation, b"", attempt, ids), place))
        return found

    def _add_to_windows(
        self,
        piece: Piece,
        undone: set[int],
        failures: dict[int, list[tuple[str, Exception]]],
    ) -> None:
        """All that a root adds, or nothing of it: and only if it is done with."""
        additions: dict[int, list[Addition]] = {}
        for place, addition in piece.additions:
            if place not in undone:
                additions.setdefault(place, []).append(addition)
        for place, those in additions.items():
            if (failure := self._add_one(those)) is not None:
                failures.setdefault(place, []).append(failure)

    def _add_one(self, additions: Sequence[Addition]) -> tuple[str, Exception] | None:
        one = DeltaMaker(self._program.plan)
        for it in additions:
            try:
                one.add(it.task, it.group, it.segment, order=it.order)
            except Exception as error:
                forget_frames(error)
                return it.task, error
        self._windows.merge(one.delta)
        return None

    def take_again(self, number: int, roots: Iterable[Delivered]) -> None:
        """Work on roots that come again: few, and each with a history, so one by one."""
        self._outcome.deliveries.append(number)
        batch = Batch(self._program)
        for delivered in roots:
            self._outcome.segments += 1
            batch.take(delivered, _now_ms())
        outputs = self._program.graph.outputs
        for task in outputs:
            ids, segments = batch.written(task)
            batch.refuse(self._sink.stage_more(task, ids, segments))
        batch.on_written(outputs)
        failed, delta = batch.close(_now_ms())
        self._outcome.failed += failed
        self._windows.merge(delta)

    def finish(self) -> PartOutcome:
        """Stage everything for good; returns what it came to."""
        self._outcome.staged = self._sink.finish()
        self._outcome.delta = self._windows.delta
        return self._outcome

    def abandon(self) -> None:
        """Throw away what was staged."""
        self._sink.abandon()


def _decode_all(
    decode: Callable[[bytes], Segment], raws: Sequence[bytes]
) -> tuple[list[Segment], dict[int, Segment | Undecodable]]:
    """Segments, and by their places those that are none, or none that could come again."""
    segments, raised = call_all(decode, raws)
    odd: dict[int, Segment | Undecodable] = {
        place: Undecodable(raws[place], str(error)) for place, error in raised.items()
    }
    # Other formats than the pen's own have numbers, or whatever else, that it cannot keep.
    if decode is not decode_segment:
        _, unkept = call_all(encode_segment, segments)
        odd |= {place: segments[place] for place in unkept}
        forget_frames(*unkept.values())
    forget_frames(*raised.values())
    return segments, odd


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
