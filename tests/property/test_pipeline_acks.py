"""A root is done with when everything made of it is reported, and never before."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from postroad.pipeline.acks import AckIds, ack_value
from tests.support.pipeline.acker import Acker, AckReport, ack_root, ack_task

ROOT = 4711
TASKS = ("a", "b", "c")

Made: TypeAlias = list[tuple[str, Any]]

# A tree: what each segment is made into, as the places of the tasks that each new one goes to.
TREES: st.SearchStrategy[Made] = st.recursive(
    st.just([]),
    lambda children: st.lists(st.tuples(st.sampled_from(TASKS), children), max_size=3),
    max_leaves=12,
)


class Grown(NamedTuple):
    """A tree as its reports."""

    reports: list[AckReport]
    edges: list[int]


def grow(tree: Made, generation: int) -> Grown:
    """Report everything about a tree."""
    bits = AckIds("job")
    grown = Grown([], [])

    def give(task: str, edge: int, made: Made) -> list[int]:
        given = []
        for ordinal, (target, _) in enumerate(made):
            given.append(bits.edge(edge, task, target, ordinal))
        grown.edges.extend(given)
        for edge_there, (target, more) in zip(given, made, strict=True):
            further = give(target, edge_there, more)
            grown.reports.append(ack_task(ROOT, generation, target, edge_there, further))
        return given

    grown.reports.append(ack_root(ROOT, generation, "in", give("in", ROOT, tree)))
    return grown


def is_done(reports: list[AckReport], generation: int = 0) -> bool:
    acker = Acker()
    for report in reports:
        acker.add(report)
    return acker.verdict(ROOT, generation).is_done


@given(TREES, st.data())
def test_reports_in_any_order_and_however_often_make_it_done(
    tree: Made, data: st.DataObject
) -> None:
    reports = grow(tree, 0).reports
    again = data.draw(st.lists(st.sampled_from(reports), max_size=6))
    assert is_done(data.draw(st.permutations(reports + again)))


@given(TREES, st.data())
def test_while_one_is_missing_nothing_makes_it_done(tree: Made, data: st.DataObject) -> None:
    reports = grow(tree, 0).reports
    missing = data.draw(st.sampled_from(reports))
    rest = [report for report in reports if report is not missing]
    seen = data.draw(st.lists(st.sampled_from(rest), max_size=12)) if rest else []
    assert not is_done(seen)
    assert not is_done(rest)


@given(TREES, st.integers(0, 3), st.data())
def test_parts_of_two_deliveries_never_make_a_whole(
    tree: Made, generation: int, data: st.DataObject
) -> None:
    first, second = grow(tree, generation).reports, grow(tree, generation + 1).reports
    cut = data.draw(st.integers(0, len(first) - 1))
    mixed = first[:cut] + second[cut:]
    assert not is_done(mixed, generation)
    assert is_done(mixed, generation + 1) == (cut == 0)
    # Nor if they were counted together.
    together = [report._replace(generation=0) for report in mixed]
    assert is_done(together) == (cut == 0 or len(first) == 1)


@given(TREES)
def test_a_failure_is_never_made_good(tree: Made) -> None:
    reports = grow(tree, 0).reports
    for index, report in enumerate(reports):
        failed = [*reports[:index], report._replace(has_failed=True), *reports[index + 1 :]]
        assert not is_done(failed)


@given(TREES)
def test_edges_are_unlike_each_other_and_the_same_each_time(
    tree: Made,
) -> None:
    grown = grow(tree, 0)
    assert len(set(grown.edges)) == len(grown.edges)
    assert grow(tree, 1).edges == grown.edges
    assert not {ack_value(edge, 1) for edge in grown.edges} & set(grown.edges)


def test_a_root_that_goes_nowhere_is_done_and_one_nobody_saw_is_not() -> None:
    assert is_done([ack_root(ROOT, 0, "in", ())])
    assert not is_done([])


def test_what_is_forgotten_may_begin_again() -> None:
    acker = Acker()
    report = ack_root(ROOT, 0, "in", (1,))
    acker.add(report)
    acker.forget(ROOT)
    assert not acker.verdict(ROOT, 0).is_begun
    acker.add(report)
    assert acker.verdict(ROOT, 0).missing == 1
