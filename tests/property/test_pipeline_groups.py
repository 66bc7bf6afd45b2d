"""Functions of groups on rows that travel as on Spark: whatever fails, each counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from postroad.pipeline import JobBuilder, Segment
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import RawRecords, decode_segment, encode_segment
from postroad.pipeline.coordinator.records import FailedRoot, RetryRoot, merge_failures
from postroad.pipeline.vectorized.partition import PartitionResult
from postroad.pipeline.windows import WindowDeltaBuilder, encode_group
from postroad.pipeline.windows.encoding import decode_plain
from tests.property.pipeline_strategies import SOME
from tests.support.pipeline.both_ways import Kept, RawInput, Slices
from tests.support.pipeline.without_spark import Again, Given, Shuffling, work_without_spark

ATTEMPTS = 3
KEYS = "abcd"


class Failing:
    """Functions that fail as often as they are told, and then do not."""

    def __init__(self, branches: dict[int, int], groups: dict[str, int]) -> None:
        self.branches = Counter(branches)
        self.groups = Counter(groups)

    def branch(self, segment: Segment) -> Segment:
        if self.branches[segment["n"]] > 0:
            self.branches[segment["n"]] -= 1
            raise ValueError("not yet")
        return segment

    def group(self, key: str, segments: list[Segment], state: Any) -> Any:
        if self.groups[key] > 0:
            self.groups[key] -= 1
            raise ValueError("not yet")
        made = [{"n": it["n"], "group": key} for it in segments]
        return made, sorted([*(state or []), *(it["n"] for it in segments)])


def spread(segment: Segment) -> list[Segment]:
    return [{"n": segment["n"], "key": key} for key in segment["keys"]]


def same(segment: Segment) -> Segment:
    return segment


def program_of(failing: Failing, *, is_shuffled: bool) -> CompiledJob:
    """One branch to groups, one to an output, one to a window."""
    job = JobBuilder("groups").input("in", connector="memory")
    job = job.function("spread", spread, after="in")
    keys: dict[str, Any] = {"group_by": "n"} if is_shuffled else {}
    job = job.function("before", same, after="spread", **keys)
    job = job.function(
        "group", failing.group, after="before", kind="group", group_by="key", state=True
    )
    job = job.output("out", connector="memory", after="group")
    job = job.function("branch", failing.branch, after="in")
    job = job.output("aside", connector="memory", after="branch")
    job = job.function("windowed", same, after="in")
    job = job.output("nowhere", connector="memory", after="windowed")
    job = job.window("w", task="windowed", type="global", aggregation="sum", key="n")
    return CompiledJob(job.build())


class Account:
    """Runs batches, and keeps what a coordinator would."""

    def __init__(self, program: CompiledJob, shuffling: Shuffling) -> None:
        self._program = program
        self._shuffling = shuffling
        self.states: dict[bytes, bytes] = {}
        self.written: Counter[tuple[str, str]] = Counter()
        self.windows = WindowDeltaBuilder(program.windows)
        self.dead: list[FailedRoot] = []
        program.read_states = lambda _, keys: {
            key: self.states[key] for key in keys if key in self.states
        }

    def run(self, segments: Sequence[Segment], done_again: Sequence[bool]) -> None:
        raws = [encode_segment(it) for it in segments]
        chunks = [RawRecords("source", list(range(len(raws))), raws)]
        given = Given(RawInput(), [Slices("in", 0, chunks)])
        again = iter(done_again)
        while given.slices or given.again:
            if next(again, False):
                # It was lost before the commit, and leaves nothing behind.
                self._work(given)
            given = Given(RawInput(), [], self._commit(*self._work(given)))

    def _work(self, given: Given) -> tuple[list[PartitionResult], dict[str, Kept]]:
        outputs = {name: Kept() for name in self._program.graph.outputs}
        return work_without_spark(self._program, given, outputs, self._shuffling), outputs

    def _commit(self, parts: list[PartitionResult], outputs: dict[str, Kept]) -> list[Again]:
        """Returns what comes with the next batch."""
        for name, output in outputs.items():
            for (_, segment), count in output.written.items():
                self.written[name, segment] += count
        waiting: dict[str, list[RetryRoot]] = {}
        changed: set[bytes] = set()
        for part in parts:
            self.windows.merge(part.delta)
            for _, key, state in part.states:
                assert state is not None
                assert key not in changed, "one part alone has a group"
                changed.add(key)
                self.states[key] = state
            for id, task, kept in part.emitted:
                waiting.setdefault(task, []).append(RetryRoot(id, 0, kept, []))
        for it in merge_failures(it for part in parts for it in part.failed):
            if it.generation + 1 < ATTEMPTS:
                root = RetryRoot(it.root, it.generation + 1, it.segment, it.published)
                waiting.setdefault(it.task, []).append(root)
            else:
                self.dead.append(it)
        return [Again(task, roots) for task, roots in waiting.items()]


SEGMENTS = st.lists(
    st.lists(st.sampled_from(KEYS), max_size=3, unique=True), min_size=1, max_size=8
)
HOW = st.builds(
    Shuffling, seed=st.integers(0, 2**32), partitions=st.integers(1, 4), batch_rows=st.just(10)
)


@SOME
@given(
    SEGMENTS,
    st.dictionaries(st.integers(0, 7), st.integers(1, 4)),
    st.dictionaries(st.sampled_from(KEYS), st.integers(1, 12)),
    st.lists(st.booleans(), max_size=4),
    HOW,
    st.booleans(),
)
def test_each_segment_counts_once_in_each_of_its_groups_whatever_fails(
    keys: list[list[str]],
    branches: dict[int, int],
    groups: dict[str, int],
    done_again: list[bool],
    how: Shuffling,
    is_shuffled: bool,
) -> None:
    program = program_of(Failing(branches, groups), is_shuffled=is_shuffled)
    account = Account(program, how)
    segments: list[Segment] = [{"n": n, "keys": its} for n, its in enumerate(keys)]
    account.run(segments, done_again)
    dead = {decode_segment(it.segment)["n"]: it for it in account.dead}
    event(f"dead: {bool(dead)}")
    states = {
        key: decode_plain(account.states.get(encode_group(key), encode_group([]))) for key in KEYS
    }
    made = Counter({it: count for (name, it), count in account.written.items() if name == "out"})
    for key in KEYS:
        assert len(states[key]) == len(set(states[key])), "nothing counts twice"
        # What a group took is what went on, once each.
        assert Counter(str([("n", n), ("group", key)]) for n in states[key]) == Counter(
            {it: count for it, count in made.items() if f"'{key}'" in it}
        )
        missing = {it["n"] for it in segments if key in it["keys"]} - {*states[key]}
        assert missing <= dead.keys()
        for n in missing:
            tasks = {*dead[n].attempt.missing}
            assert tasks & {"group", "branch"}
    aside = [
        it for (name, it), count in account.written.items() for _ in range(count) if name == "aside"
    ]
    assert len(aside) == len(set(aside))
    # A root that fails in groups alone is in windows once; one that failed elsewhere is not.
    failed_before = sum("branch" in it.attempt.missing for it in dead.values())
    panes = [
        pane
        for window in account.windows.delta.windows.values()
        for those in window.groups.values()
        for pane in those
    ]
    assert sum(pane.segments for pane in panes) == len(segments) - failed_before
