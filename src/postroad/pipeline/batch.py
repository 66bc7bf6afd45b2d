"""A batch in plain Python: trees grown one by one, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable

from .acks import Acker, Verdict
from .delivered import Delivered, encode_segment
from .media.medium import Undecodable, Written
from .program import Program
from .records import Attempt, FailedRoot
from .tree import Tree, grow

_ERROR_CHARS_MAX = 2_000


class Batch:
    """What some deliveries come to."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._acker = Acker()
        self._trees: list[tuple[Delivered, Tree, bytes]] = []
        self._failed: list[FailedRoot] = []

    def take(self, delivered: Delivered, now_ms: int) -> None:
        """Run the job on one root."""
        if isinstance(delivered.segment, Undecodable):
            self._failed.append(_refuse(delivered, delivered.segment, now_ms))
            return
        # Now, because functions may change what they are given.
        payload = encode_segment(delivered.segment)
        tree = grow(
            self._program,
            delivered.task,
            delivered.root,
            delivered.generation,
            delivered.segment,
        )
        for report in tree.reports:
            self._acker.add(report)
        self._trees.append((delivered, tree, payload))

    def written(self) -> dict[str, list[Written]]:
        """What is for the outputs, without what they have already."""
        written: dict[str, list[Written]] = {}
        for delivered, tree, _ in self._trees:
            for it in tree.outputs:
                if it.id not in delivered.published:
                    written.setdefault(it.task, []).append(Written(it.id, it.segment))
        return written

    def on_written(self, tasks: Iterable[str]) -> None:
        """What was for some outputs is where it cannot be lost."""
        names = set(tasks)
        for _, tree, _ in self._trees:
            for it in tree.outputs:
                if it.task in names:
                    self._acker.add(tree.report_written(it.task, it.edge))

    def failed(self, now_ms: int) -> list[FailedRoot]:
        """Roots that are not done with."""
        return self._failed + [
            _fail(delivered, tree, payload, now_ms, verdict)
            for delivered, tree, payload in self._trees
            if not (verdict := self._acker.verdict(tree.root, tree.generation)).is_done
        ]


def _fail(
    delivered: Delivered, tree: Tree, payload: bytes, now_ms: int, verdict: Verdict
) -> FailedRoot:
    tasks = [failure.task for failure in tree.failures]
    if tree.failures:
        first = tree.failures[0]
        error = f"{type(first.error).__name__}: {first.error}"[:_ERROR_CHARS_MAX]
    else:
        error = f"{verdict.missing} of what was made of it never arrived"
    attempt = Attempt(tree.generation, now_ms, tasks[0] if tasks else delivered.task, error, tasks)
    published = [*delivered.published, *(it.id for it in tree.outputs)]
    return FailedRoot(
        tree.root, delivered.task, tree.generation, payload, attempt, sorted(set(published))
    )


def _refuse(delivered: Delivered, found: Undecodable, now_ms: int) -> FailedRoot:
    error = f"it is no segment: {found.reason}"[:_ERROR_CHARS_MAX]
    attempt = Attempt(delivered.generation, now_ms, delivered.task, error)
    return FailedRoot(
        delivered.root,
        delivered.task,
        delivered.generation,
        encode_segment({"raw": found.raw}),
        attempt,
        [],
        is_hopeless=True,
    )
