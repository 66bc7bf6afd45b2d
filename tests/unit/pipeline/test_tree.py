"""One root with everything that is made of it."""

from __future__ import annotations

from collections.abc import Mapping

from postroad.pipeline import (
    FlowAction,
    FlowCondition,
    Job,
    Segment,
    Task,
    TaskType,
    Window,
    WindowType,
)
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.functions import Function
from postroad.pipeline.routing import SegmentRetryRequestedError
from tests.support.pipeline.acker import Acker, AckStatus
from tests.support.pipeline.tree import SegmentTree, execute_tree

ROOT = 99


def double(segment: Segment) -> list[Segment]:
    return [segment, {"n": segment["n"] + 1}]


def drop(segment: Segment) -> None:
    """Make nothing of it."""


def fail(segment: Segment) -> Segment:
    raise ValueError(f"not {segment['n']}")


def spoil(segment: Segment) -> Segment:
    segment["n"] = -1
    return segment


def add(segment: Segment, amount: int) -> Segment:
    return {"n": segment["n"] + amount}


def nonsense(segment: Segment) -> int:
    return 7


def is_any(new: object, old: object) -> bool:
    return True


FUNCTIONS: Mapping[str, Function] = {
    f.__name__: f for f in (double, drop, fail, spoil, add, nonsense, is_any)
}


def program(
    workflow: list[tuple[str, str]],
    conditions: list[FlowCondition] | None = None,
    windows: list[Window] | None = None,
    **functions: str,
) -> CompiledJob:
    """A job whose tasks are called `in`, `out...`, and what they do otherwise."""
    names = dict.fromkeys(name for edge in workflow for name in edge)
    catalog = [task(name, functions.get(name.rstrip("_"), name)) for name in names]
    job = Job(
        name="job",
        workflow=workflow,
        catalog=catalog,
        flow_conditions=conditions or [],
        windows=windows or [],
    )
    return CompiledJob(job, FUNCTIONS.__getitem__)


def task(name: str, function: str) -> Task:
    if name == "in":
        return Task(name=name, type=TaskType.INPUT, connector="memory")
    if name.startswith("out"):
        return Task(name=name, type=TaskType.OUTPUT, connector="memory")
    params = {"amount": 10} if function == "add" else {}
    return Task(name=name, type=TaskType.FUNCTION, fn=function, params=params)


def verdict(tree: SegmentTree, *, is_written: bool = True) -> AckStatus:
    """What all reports come to."""
    acker = Acker()
    for report in tree.reports:
        acker.add(report)
    for it in tree.outputs if is_written else ():
        acker.add(tree.report_written(it.task, it.edge))
    return acker.verdict(tree.root, tree.generation)


def written(tree: SegmentTree) -> list[tuple[str, int]]:
    return sorted((it.task, it.segment["n"]) for it in tree.outputs)


def grow_one(it: CompiledJob, generation: int = 0, entry: str = "in") -> SegmentTree:
    return execute_tree(it, entry, ROOT, generation, {"n": 1})


def test_everything_flows_to_the_outputs() -> None:
    it = program([("in", "double"), ("double", "add"), ("double", "out"), ("add", "out_b")])
    tree = grow_one(it)
    assert written(tree) == [("out", 1), ("out", 2), ("out_b", 11), ("out_b", 12)]
    assert verdict(tree).is_done
    assert verdict(tree, is_written=False).missing == 4


def test_ids_of_outputs_are_the_same_in_every_delivery_and_unlike_each_other() -> None:
    it = program([("in", "double"), ("double", "out"), ("double", "out_b")])
    first, second = grow_one(it), grow_one(it, generation=3)
    ids = [output.id for output in first.outputs]
    assert ids == [output.id for output in second.outputs]
    assert len(set(ids)) == 4
    assert verdict(second).is_done


def test_what_is_dropped_is_done_with() -> None:
    tree = grow_one(program([("in", "drop"), ("drop", "out")]))
    assert not tree.outputs
    assert verdict(tree).is_done


def test_a_failure_is_its_own_and_the_other_branch_goes_on() -> None:
    tree = grow_one(program([("in", "fail"), ("in", "out_b"), ("fail", "out")]))
    (failure,) = tree.failures
    assert (failure.task, repr(failure.error)) == ("fail", "ValueError('not 1')")
    assert failure.error.__traceback__ is None
    assert written(tree) == [("out_b", 1)]
    assert verdict(tree).has_failed


def test_nonsense_is_a_failure() -> None:
    (failure,) = grow_one(program([("in", "nonsense"), ("nonsense", "out")])).failures
    assert str(failure.error) == "a function returns segments, not int"


def test_who_changes_a_segment_changes_only_its_own() -> None:
    it = program([("in", "spoil"), ("in", "out_b"), ("spoil", "out")])
    assert written(grow_one(it)) == [("out", -1), ("out_b", 1)]


def test_an_exception_may_be_routed() -> None:
    condition = FlowCondition(source="fail", to=["out"], exceptions=True, short_circuit=True)
    tree = grow_one(program([("in", "fail"), ("fail", "out")], [condition]))
    assert not tree.failures
    assert written(tree) == [("out", 1)]
    assert verdict(tree).is_done


def test_a_condition_may_want_the_root_again() -> None:
    condition = FlowCondition(
        source="add", to="none", predicate="is_any", short_circuit=True, action=FlowAction.RETRY
    )
    tree = grow_one(program([("in", "add"), ("add", "out")], [condition]))
    (failure,) = tree.failures
    assert isinstance(failure.error, SegmentRetryRequestedError)
    assert verdict(tree).has_failed


def test_windows_keep_what_is_for_them_and_what_they_emit_goes_on() -> None:
    window = Window(name="w", task="double", type=WindowType.GLOBAL, aggregation="count")
    it = program([("in", "double"), ("double", "out")], windows=[window])
    tree = grow_one(it)
    assert [(it.task, it.segment["n"]) for it in tree.additions] == [("double", 1), ("double", 2)]
    assert not tree.outputs
    assert verdict(tree).is_done
    emitted = grow_one(it, entry="double")
    assert written(emitted) == [("out", 1)]
    assert verdict(emitted).is_done


def test_outputs_and_inputs_may_have_functions_too() -> None:
    edges = [("in", "out")]
    job = Job(
        name="job",
        workflow=edges,
        catalog=[
            Task(name="in", type=TaskType.INPUT, connector="memory", fn="double"),
            Task(name="out", type=TaskType.OUTPUT, connector="memory", fn="double"),
        ],
    )
    tree = grow_one(CompiledJob(job, FUNCTIONS.__getitem__))
    assert written(tree) == [("out", 1), ("out", 2), ("out", 2), ("out", 3)]
    assert len({output.id for output in tree.outputs}) == 4
    assert verdict(tree).is_done


def test_an_input_whose_function_fails_has_begun_and_failed() -> None:
    job = Job(
        name="job",
        workflow=[("in", "out")],
        catalog=[
            Task(name="in", type=TaskType.INPUT, connector="memory", fn="fail"),
            Task(name="out", type=TaskType.OUTPUT, connector="memory", fn="drop"),
        ],
    )
    found = verdict(grow_one(CompiledJob(job, FUNCTIONS.__getitem__)))
    assert (found.is_begun, found.has_failed, found.missing) == (True, True, 0)
