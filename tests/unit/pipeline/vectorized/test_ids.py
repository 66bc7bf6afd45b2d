"""Ids made for many at a time are those made one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from postroad.pipeline import OutputConnector, Segment, acks
from postroad.pipeline.acks import AckIds
from postroad.pipeline.connectors import Committable, OutputWriter
from postroad.pipeline.connectors.connector import RawRecords, encode_segment
from postroad.pipeline.vectorized import acks as ids
from postroad.pipeline.vectorized.acks import Ids, LazyIds
from postroad.pipeline.vectorized.partition import SingleStagePartition
from tests.support.pipeline.both_ways import RawInput
from tests.support.pipeline.small_jobs import program_of

BITS = AckIds("job")
EDGES = [0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]

WORDS = st.lists(st.sampled_from(EDGES) | st.integers(0, 2**64 - 1), max_size=20)
GENERATIONS = st.sampled_from([0, 1, 2, 2**32, 2**63, 2**64 - 1])
POSITIONS = st.lists(
    st.sampled_from([0, 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1]) | st.integers(0, 2**62),
    max_size=20,
)


def words(values: list[int]) -> Ids:
    return np.array(values, dtype=np.uint64)


@given(WORDS)
def test_mix(values: list[int]) -> None:
    given = words(values)
    mixed = ids.mix64_all(given)
    assert mixed.tolist() == [acks.mix64(value) for value in values]
    assert mixed is given


@given(WORDS, GENERATIONS)
def test_bits_of_edges(values: list[int], generation: int) -> None:
    edges = words(values)
    found = ids.ack_values(edges, generation)
    assert found.tolist() == [acks.ack_value(value, generation) for value in values]
    assert edges.tolist() == values


@given(POSITIONS, st.text(max_size=5), st.text(max_size=5))
def test_roots_by_number(positions: list[int], task: str, source: str) -> None:
    expected = [BITS.root(task, source, position) for position in positions]
    assert ids.root_ids(BITS, task, source, positions).tolist() == expected


def test_roots_of_a_range() -> None:
    for positions in (range(0), range(3), range(2**62 - 2, 2**62 + 2)):
        expected = [BITS.root("in", "", position) for position in positions]
        assert ids.root_ids(BITS, "in", "", positions).tolist() == expected, positions


@given(st.lists(st.text(max_size=8), max_size=8))
def test_roots_by_text(positions: list[str]) -> None:
    expected = [BITS.root("in", "source", position) for position in positions]
    found = ids.root_ids(BITS, "in", "source", positions)
    assert found.tolist() == expected
    assert found.dtype == np.uint64


@given(WORDS)
def test_edges_of_the_only_one(parents: list[int]) -> None:
    given = words(parents)
    found = ids.edge_ids(given, BITS.edge_key("a", "b"), None)
    assert found.tolist() == [BITS.edge(parent, "a", "b", 0) for parent in parents]
    assert given.tolist() == parents


@given(st.lists(st.tuples(st.sampled_from(EDGES), st.integers(0, 2**32)), max_size=20))
def test_edges_of_several(made: list[tuple[int, int]]) -> None:
    parents, ordinals = words([it for it, _ in made]), words([it for _, it in made])
    found = ids.edge_ids(parents, BITS.edge_key("a", "b"), ordinals)
    assert found.tolist() == [BITS.edge(parent, "a", "b", ordinal) for parent, ordinal in made]
    assert ordinals.tolist() == [ordinal for _, ordinal in made]


def test_lazy_ids_are_numbers_and_are_made_only_when_somebody_looks() -> None:
    lazy = LazyIds(np.array([1, 2**64 - 1], dtype=np.uint64))
    assert len(lazy) == 2
    assert bool(lazy)
    assert "_list" not in vars(lazy)
    assert (list(lazy), lazy[1], lazy[:1]) == ([1, 2**64 - 1], 2**64 - 1, [1])
    assert {type(number) for number in lazy} == {int}
    assert [0, *lazy] == [0, 1, 2**64 - 1]


class IgnoresIds(OutputWriter):
    def __init__(self) -> None:
        self.taken: list[Sequence[int]] = []

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        self.taken.append(ids)

    def prepare_commit(self) -> Committable | None:
        return None


class IgnoringOutput(OutputConnector):
    def __init__(self) -> None:
        self.writer = IgnoresIds()

    def create_writer(self, stage: str) -> OutputWriter:
        return self.writer


def test_an_output_that_ignores_ids_has_none_made() -> None:
    output, program = IgnoringOutput(), program_of([("in", "out")])
    part = SingleStagePartition(program, {"out": output}, "part")
    raws = [encode_segment({"n": n}) for n in range(5)]
    part.process_split(1, "in", 0, RawInput(), [RawRecords("", range(5), raws)])
    assert part.finish().failed == []
    (taken,) = output.writer.taken
    assert len(taken) == 5
    assert "_list" not in vars(taken)
