"""A part of a batch of a job with one stage: whole trees, worked on where they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from postroad.pipeline.attempts import tell
from postroad.pipeline.media.medium import Chunk, InputMedium, OutputMedium
from postroad.pipeline.program import Program
from postroad.pipeline.records import KeptRoot
from postroad.pipeline.tree import Addition

from .passing import Pass, Piece
from .reading import Read, read_again, read_pieces
from .working import PartWork


class Part(PartWork):
    """Works on some deliveries, and accounts for them."""

    def __init__(self, program: Program, outputs: Mapping[str, OutputMedium], name: str) -> None:
        super().__init__(program, outputs, name)
        self._pass = Pass(program, 0, self._sink)

    def take_slice(
        self, number: int, task: str, generation: int, medium: InputMedium, chunks: Iterable[Chunk]
    ) -> None:
        """Work on a slice of an input."""
        self._take(number, task, read_pieces(self._program, task, generation, medium, chunks))

    def take_again(self, number: int, task: str, roots: Iterable[KeptRoot]) -> None:
        """Work on roots that come again."""
        self._take(number, task, read_again(task, roots))

    def _take(self, number: int, task: str, pieces: Iterable[Read]) -> None:
        self._outcome.deliveries.append(number)
        for read in pieces:
            self._outcome.segments += read.total
            self._outcome.failed += read.refused
            piece = Piece(self._program, read.roots, read.generation, read.published)
            self._pass.enter(piece, task, read.segments)
            self._close(piece, task, read)

    def _close(self, piece: Piece, task: str, read: Read) -> None:
        """Account for the roots of a piece."""
        residues = piece.ledger.close()
        failures: dict[int, list[tuple[str, str]]] = {}
        for it in piece.failures:
            failures.setdefault(it.origin, []).append((it.task, tell(it.error)))
        for place, additions in _by_origin(piece.additions).items():
            # Only if the rest of it is done.
            if place in residues or place in failures:
                continue
            if (failure := self._add_to_windows(additions)) is not None:
                failures[place] = [(failure[0], tell(failure[1]))]
        failed = sorted(residues.keys() | failures.keys())
        published = self._sink.take_put(failed)
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


def _by_origin(additions: Iterable[tuple[int, Addition]]) -> dict[int, list[Addition]]:
    found: dict[int, list[Addition]] = {}
    for origin, addition in additions:
        found.setdefault(origin, []).append(addition)
    return found
