"""Functions of groups: called once for each key with all its segments of a batch.

Segments end there, as in windows: what a function makes of them are new roots, which come in by its
task in a later batch, and which are committed together with the batch and with the state of the
groups. So nothing is counted twice, however often something that comes after it fails. A root whose
tree failed elsewhere adds nothing; if a function fails, all roots with segments in its group do.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from postroad.core.errors import ConfigError
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import encode_segment
from postroad.pipeline.coordinator.progress import TaskCounts, add_counts
from postroad.pipeline.task_functions import drop_tracebacks
from postroad.pipeline.vectorized.stage_executor import WindowInput
from postroad.pipeline.vectorized.task_calls import call_task
from postroad.pipeline.windows import encode_group
from postroad.pipeline.windows.encoding import decode_plain, encode_canonical

GroupId = tuple[str, bytes]
"""A task, and a key as bytes."""


class GroupMember(NamedTuple):
    """A root with segments in groups."""

    additions: Sequence[WindowInput]
    confirm: Callable[[], None]
    """Called if all of them were taken."""
    fail: Callable[[str, Exception], None]
    """Called if one was not, with the task and what it failed with."""


class _Made(NamedTuple):
    """What a function made of a group."""

    roots: list[tuple[int, str, bytes]]
    state: bytes | None


class GroupBatch:
    """The groups of a part of a batch."""

    def __init__(self, program: CompiledJob) -> None:
        self._program = program
        self.counts: dict[str, TaskCounts] = {}
        """What its tasks did."""
        self._members: list[GroupMember] = []
        # Segments of each group, with the place of the member they belong to.
        self._groups: dict[GroupId, list[tuple[int, WindowInput]]] = {}

    def add(self, member: GroupMember) -> None:
        """A root is done with but for its groups."""
        place = len(self._members)
        self._members.append(member)
        for addition in member.additions:
            group = (addition.task, encode_group(addition.group))
            self._groups.setdefault(group, []).append((place, addition))

    def run(self) -> tuple[list[tuple[int, str, bytes]], list[tuple[str, bytes, bytes | None]]]:
        """Call functions; returns new roots (id, task, segment), and states (task, key, state)."""
        states = self._read_states()
        failed: dict[int, tuple[str, Exception]] = {}
        made: dict[GroupId, _Made] = {}
        waiting = list(self._groups)
        while waiting:
            before = set(failed)
            self._call(waiting, states, failed, made)
            # Without what failed elsewhere they are other groups.
            new = failed.keys() - before
            waiting = [
                group
                for group, those in self._groups.items()
                if group in made and any(place in new for place, _ in those)
            ]
        for place, member in enumerate(self._members):
            if place in failed:
                member.fail(*failed[place])
            else:
                member.confirm()
        changes = [
            (task, key, outcome.state)
            for (task, key), outcome in made.items()
            if self._program.graph.tasks[task].state and outcome.state != states.get((task, key))
        ]
        return [root for outcome in made.values() for root in outcome.roots], changes

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

    def _call(
        self,
        groups: Sequence[GroupId],
        states: dict[GroupId, bytes],
        failed: dict[int, tuple[str, Exception]],
        made: dict[GroupId, _Made],
    ) -> None:
        by_task: dict[str, list[tuple[GroupId, list[tuple[int, WindowInput]]]]] = {}
        for group in groups:
            made.pop(group, None)
            left = [entry for entry in self._groups[group] if entry[0] not in failed]
            left.sort(key=lambda entry: entry[1].order)
            if left:
                by_task.setdefault(group[0], []).append((group, left))
        for task, those in by_task.items():
            arguments = [self._arguments(group, left, states) for group, left in those]
            began_s = time.perf_counter()
            results, raised = call_task(self._program, task, arguments)
            seconds = time.perf_counter() - began_s
            sizes = [len(left) for _, left in those]
            failures = sum(sizes[at] for at in raised)
            add_counts(self.counts, {task: TaskCounts(sum(sizes), failures, seconds)})
            for at, (group, left) in enumerate(those):
                error = raised.get(at)
                if error is None:
                    try:
                        made[group] = self._keep(group, left, results[at])
                        continue
                    except Exception as failure:
                        error = failure
                drop_tracebacks(error)
                for place, _ in left:
                    failed.setdefault(place, (task, error))

    def _arguments(
        self,
        group: GroupId,
        members: Sequence[tuple[int, WindowInput]],
        states: dict[GroupId, bytes],
    ) -> tuple[Any, ...]:
        key = members[0][1].group
        key = tuple(key) if isinstance(key, list) else key
        # A copy for each call: a function may change what it is given, and be called again.
        segments = [dict(addition.segment) for _, addition in members]
        if not self._program.graph.tasks[group[0]].state:
            return key, segments
        state = states.get(group)
        return key, segments, None if state is None else decode_plain(state)

    def _keep(
        self, group: GroupId, members: Sequence[tuple[int, WindowInput]], result: Any
    ) -> _Made:
        task, key = group
        edges = b"".join(addition.order for _, addition in members)
        place = f"{key.hex()}/{hashlib.blake2b(edges, digest_size=16).hexdigest()}"
        roots = [
            (self._program.ack_ids.root(task, "", f"{place}/{at}"), task, encode_segment(segment))
            for at, segment in enumerate(result["segments"])
        ]
        state = result["state"]
        return _Made(roots, None if state is None else encode_canonical(state))
