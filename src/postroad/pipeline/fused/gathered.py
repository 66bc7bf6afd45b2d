"""A part of a batch of a job with several stages: the rows of each root meet again."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from postroad.pipeline.acks import ack_value
from postroad.pipeline.attempts import describe_exception
from postroad.pipeline.media.medium import AnySegment
from postroad.pipeline.records import FailedRoot
from postroad.pipeline.tree import WindowInput

from .calls import map_function
from .rows import ShuffleRowKind, ShuffleRow, decode_again
from .working import PartitionExecutor

_decode_outputs = msgspec.msgpack.Decoder(list[tuple[int, AnySegment]]).decode
_decode_addition = msgspec.msgpack.Decoder(tuple[int, int, object, AnySegment]).decode
_decode_failed = msgspec.msgpack.Decoder(FailedRoot).decode

_WRITE_SEGMENTS = 4096


class _RootAccount:
    """What is known of a root."""

    __slots__ = (
        "additions",
        "bits",
        "failures",
        "generation",
        "missing",
        "published",
        "put",
        "segment",
        "task",
    )

    def __init__(self) -> None:
        self.task: str | None = None
        self.generation = 0
        self.segment = b""
        self.bits = 0
        self.missing = 0
        self.failures: list[tuple[str, str]] = []
        self.additions: list[WindowInput] = []
        self.published: frozenset[int] = frozenset()
        self.put: list[int] = []

    @property
    def is_done(self) -> bool:
        return self.task is not None and not (self.failures or self.bits or self.missing)


class ShuffledPartition(PartitionExecutor):
    """Takes rows, and accounts for their roots."""

    def take_rows(self, rows: Iterable[ShuffleRow]) -> None:
        """Take all rows of some roots; those that come twice count once."""
        roots: dict[int, _RootAccount] = {}
        outputs: dict[str, list[ShuffleRow]] = {}
        seen: set[ShuffleRow] = set()
        for row in rows:
            # A task may well fail twice in the same way.
            if row.kind != ShuffleRowKind.FAILURE:
                if row in seen:
                    continue
                seen.add(row)
            if row.kind == ShuffleRowKind.DELIVERY:
                self._outcome.deliveries.append(row.edge)
                self._outcome.segments += row.missing
            elif row.kind == ShuffleRowKind.REFUSED:
                self._outcome.failed.append(_decode_failed(row.payload))
            else:
                root = roots.get(row.root)
                if root is None:
                    root = roots[row.root] = _RootAccount()
                root.bits ^= row.bits
                root.missing += row.missing
                if row.kind == ShuffleRowKind.OUTPUT:
                    outputs.setdefault(row.task, []).append(row)
                else:
                    _learn(root, row)
        for task, those in outputs.items():
            for start in range(0, len(those), _WRITE_SEGMENTS):
                self._put_out(task, those[start : start + _WRITE_SEGMENTS], roots)
        for id, root in roots.items():
            self._close(id, root)

    def _put_out(self, task: str, rows: list[ShuffleRow], roots: dict[int, _RootAccount]) -> None:
        made, raised = map_function(_decode_outputs, [row.payload for row in rows])
        for place, error in raised.items():
            roots[rows[place].root].failures.append((task, describe_exception(error)))
            made[place] = []
        made = [
            [it for it in those if it[0] not in roots[row.root].published]
            for row, those in zip(rows, made, strict=True)
        ]
        ids = [id for those in made for id, _ in those]
        segments = [segment for those in made for _, segment in those]
        refused = self._sink.write(task, ids, segments)
        for row, those in zip(rows, made, strict=True):
            root = roots[row.root]
            root.put += [id for id, _ in those if id not in refused]
            reasons = [refused[id] for id, _ in those if id in refused]
            root.failures += [(task, f"TypeError: it cannot be written: {it}") for it in reasons]
            if not reasons:
                root.bits ^= ack_value(row.edge, row.generation)
                root.missing -= 1

    def _close(self, id: int, root: _RootAccount) -> None:
        failure = self._add_to_windows(root.additions) if root.is_done else None
        if failure is not None:
            root.failures = [(failure[0], describe_exception(failure[1]))]
        if root.is_done:
            return
        if root.task is None:
            raise RuntimeError(f"rows of the root {id:016x} came without it")
        self._fail(
            id,
            root.task,
            root.generation,
            root.segment,
            root.failures,
            root.missing,
            [*root.published, *root.put],
        )


def _learn(root: _RootAccount, row: ShuffleRow) -> None:
    match row.kind:
        case ShuffleRowKind.ROOT:
            root.task, root.generation, root.segment = row.task, row.generation, row.payload
        case ShuffleRowKind.AGAIN:
            root.task, root.generation = row.task, row.generation
            root.segment, published = decode_again(row.payload)
            root.published = frozenset(published)
        case ShuffleRowKind.FAILURE:
            root.failures.append((row.task, row.payload.decode()))
        case ShuffleRowKind.ADDITION:
            try:
                root.additions.append(WindowInput(row.task, *_decode_addition(row.payload)))
            except Exception as error:
                root.failures.append((row.task, describe_exception(error)))
