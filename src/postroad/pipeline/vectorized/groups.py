"""Tasks whose functions take all of a batch: segments end there, and new ones begin.

A segment is given to such a function when everything else that was made from its root is done, and
comes to it once: if the function fails, the root comes again, and brings only what failed. What the
function makes are new roots, which are committed together with the batch, and with the states of
groups. So nothing is counted twice, however often something before or behind it fails.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import AnySegment, encode_segment
from postroad.pipeline.coordinator.progress import TaskCounts, add_counts
from postroad.pipeline.coordinator.records import (
    FailedRoot,
    can_retry,
    describe_exception,
    make_failed_attempt,
    merge_failures,
)
from postroad.pipeline.job import Segment
from postroad.pipeline.task_functions import drop_tracebacks
from postroad.pipeline.vectorized.task_calls import call_task, map_function
from postroad.pipeline.windows import encode_group
from postroad.pipeline.windows.encoding import decode_plain, encode_canonical

GroupId = tuple[str, bytes]
"""A task, and a key as bytes."""


class GatheredSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment for a function that takes all of a batch, and how its root comes again."""

    root: int
    entry: str
    """The task that the root came in by."""
    generation: int
    kept: bytes
    """The root as the pen keeps it."""
    published: list[int]
    """Ids of everything that is done with if the batch is, this one among them."""
    id: int
    task: str
    """The task whose function gets it."""
    order: bytes
    """What decides which of several comes first, in whatever order they were made."""
    group: Any
    segment: AnySegment

    @property
    def shard(self) -> int:
        """Equal for all that are to meet."""
        digest = hashlib.blake2b(encode_group(self.group), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def fail(self, reason: str, now_ms: int) -> FailedRoot:
        """Its root comes again, without what is done."""
        attempt = make_failed_attempt(
            self.generation, now_ms, self.entry, [(self.task, reason)], missing=0
        )
        published = [id for id in self.published if id != self.id]
        is_permanent = not can_retry(self.kept)
        return FailedRoot(
            self.root, self.entry, self.generation, self.kept, attempt, published, is_permanent
        )


def find_unfit(
    program: CompiledJob, task: str, segments: Sequence[Segment], groups: Sequence[object]
) -> dict[int, Exception]:
    """What is wrong with segments that a function cannot be given, by their places."""
    if task in program.group_tasks:
        _, unfit = map_function(encode_group, groups)
    else:
        _, unfit = _fit(segments, program.column_types[task])
    drop_tracebacks(*unfit.values())
    return unfit


def _fit(segments: Sequence[Segment], type_: Any) -> tuple[list[Any], dict[int, Exception]]:
    import pyarrow as pa

    try:
        pa.array(segments, type_)
        return [], {}
    except Exception:
        return map_function(lambda segment: pa.array([segment], type_), segments)


class _Made(NamedTuple):
    """What a function made of a group."""

    roots: list[tuple[int, str, bytes]]
    state: bytes | None


class GroupResult(NamedTuple):
    """What functions of groups made of a part of a batch."""

    failed: list[FailedRoot]
    emitted: list[tuple[int, str, bytes]]
    """New roots, each with its task and segment."""
    states: list[tuple[str, bytes, bytes | None]]
    """Those that changed, each with its task and key."""


class GroupBatch:
    """The groups of a part of a batch."""

    def __init__(self, program: CompiledJob) -> None:
        self._program = program
        self.counts: dict[str, TaskCounts] = {}
        """What its tasks did."""
        self._groups: dict[GroupId, list[GatheredSegment]] = {}

    def add(self, member: GatheredSegment) -> None:
        """Take a segment whose root is done with but for such functions."""
        group = (member.task, encode_group(member.group))
        self._groups.setdefault(group, []).append(member)

    def run(self, now_ms: int) -> GroupResult:
        """Call the functions, once for each group."""
        states = self._read_states()
        failed: list[FailedRoot] = []
        made: dict[GroupId, _Made] = {}
        by_task: dict[str, list[GroupId]] = {}
        for group, members in self._groups.items():
            members.sort(key=lambda member: member.order)
            by_task.setdefault(group[0], []).append(group)
        for task, groups in by_task.items():
            arguments = [self._arguments(group, states) for group in groups]
            began_s = time.perf_counter()
            results, raised = call_task(self._program, task, arguments)
            seconds = time.perf_counter() - began_s
            sizes = [len(self._groups[group]) for group in groups]
            failures = sum(sizes[at] for at in raised)
            add_counts(self.counts, {task: TaskCounts(sum(sizes), failures, seconds)})
            for at, group in enumerate(groups):
                error = raised.get(at)
                if error is None:
                    try:
                        made[group] = self._keep(group, results[at])
                        continue
                    except Exception as failure:
                        error = failure
                drop_tracebacks(error)
                reason = describe_exception(error)
                failed += [member.fail(reason, now_ms) for member in self._groups[group]]
        self._groups = {}
        changes = [
            (task, key, outcome.state)
            for (task, key), outcome in made.items()
            if self._program.graph.tasks[task].state and outcome.state != states.get((task, key))
        ]
        emitted = [root for outcome in made.values() for root in outcome.roots]
        return GroupResult(merge_failures(failed), emitted, changes)

    def _read_states(self) -> dict[GroupId, bytes]:
        keys: dict[str, list[bytes]] = {}
        for task, key in self._groups:
            if self._program.graph.tasks[task].state:
                keys.setdefault(task, []).append(key)
        if keys and self._program.read_states is None:
            raise ConfigError("tasks of kind group with state need a runner that stores state")
        states: dict[GroupId, bytes] = {}
        for task, those in keys.items():
            assert self._program.read_states is not None
            known = self._program.read_states(task, those)
            states |= {(task, key): state for key, state in known.items()}
        return states

    def _arguments(self, group: GroupId, states: dict[GroupId, bytes]) -> tuple[Any, ...]:
        members = self._groups[group]
        key = members[0].group
        key = tuple(key) if isinstance(key, list) else key
        segments = [member.segment for member in members]
        if not self._program.graph.tasks[group[0]].state:
            return key, segments
        state = states.get(group)
        return key, segments, None if state is None else decode_plain(state)

    def _keep(self, group: GroupId, result: Any) -> _Made:
        task, key = group
        orders = b"".join(member.order for member in self._groups[group])
        place = f"{key.hex()}/{hashlib.blake2b(orders, digest_size=16).hexdigest()}"
        roots = [
            (self._program.ack_ids.root(task, "", f"{place}/{at}"), task, encode_segment(segment))
            for at, segment in enumerate(result["segments"])
        ]
        state = result["state"]
        return _Made(roots, None if state is None else encode_canonical(state))
