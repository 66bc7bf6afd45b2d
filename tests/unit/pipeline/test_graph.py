"""What follows what, in which order, and in which stages."""

from typing import Any

from postroad.pipeline.graph import JobGraph, Stage
from postroad.pipeline.job import Job
from postroad.pipeline.job_files import job_from_data
from tests.support.pipeline.jobs import clearing_data


def job_of(tasks: str, edges: str) -> Job:
    """A job of tasks like `in a* out`, where a star groups, and edges like `in-a a-out`."""
    workflow = [edge.split("-") for edge in edges.split()]
    sources = {source for source, _ in workflow}
    targets = {target for _, target in workflow}
    catalog: list[dict[str, Any]] = []
    for word in tasks.split():
        name = word.rstrip("*")
        task: dict[str, Any] = {"name": name, "type": "function", "fn": "bank.sums:total"}
        if name not in sources or name not in targets:
            type_ = "input" if name in sources else "output"
            task = {"name": name, "type": type_, "connector": "memory"}
        catalog.append(task | ({"group_by": "key"} if word.endswith("*") else {}))
    return job_from_data({"name": "graph", "workflow": workflow, "catalog": catalog})


def test_a_whole_job() -> None:
    graph = JobGraph(job_from_data(clearing_data()))
    assert list(graph.tasks) == ["in", "parse", "total", "out", "errors"]
    assert graph.tasks["parse"].fn == "bank.parsing:parse"
    assert graph.children["parse"] == ("total", "errors")
    assert graph.children["out"] == ()
    assert graph.parents["errors"] == ("parse",)
    assert graph.parents["in"] == ()
    assert graph.inputs == ("in",)
    assert graph.outputs == ("out", "errors")
    assert graph.order == ("in", "parse", "total", "out", "errors")
    assert graph.stages == (
        Stage(0, ("in", "parse", "errors"), ()),
        Stage(1, ("total", "out"), ("total",)),
    )


def test_the_order_is_that_of_the_catalog_where_it_can_be() -> None:
    graph = JobGraph(job_of("out b a in2 in1", "in1-a in2-b a-out b-out"))
    assert graph.order == ("in2", "b", "in1", "a", "out")


def test_the_order_does_not_depend_on_that_of_the_edges() -> None:
    assert (
        JobGraph(job_of("in a b out", "in-a in-b a-out b-out")).order
        == JobGraph(job_of("in a b out", "b-out a-out in-b in-a")).order
    )


def test_children_are_in_the_order_of_the_workflow() -> None:
    assert JobGraph(job_of("in a b out", "in-b in-a a-out b-out")).children["in"] == ("b", "a")


def test_without_groups_there_is_one_stage() -> None:
    graph = JobGraph(job_of("in a out", "in-a a-out"))
    assert graph.stages == (Stage(0, ("in", "a", "out"), ()),)


def test_every_group_begins_a_stage() -> None:
    graph = JobGraph(job_of("in a* b c* out*", "in-a a-b b-c c-out"))
    assert graph.stages == (
        Stage(0, ("in",), ()),
        Stage(1, ("a", "b"), ("a",)),
        Stage(2, ("c",), ("c",)),
        Stage(3, ("out",), ("out",)),
    )


def test_groups_beside_one_another_share_a_stage() -> None:
    graph = JobGraph(job_of("in a* b* out", "in-a in-b a-out b-out"))
    assert graph.stages[1] == Stage(1, ("a", "b", "out"), ("a", "b"))


def test_a_task_waits_for_the_latest_stage_of_its_parents() -> None:
    graph = JobGraph(job_of("in a* b out", "in-a in-b a-out b-out"))
    assert graph.stage_of == {"in": 0, "a": 1, "b": 0, "out": 1}
    assert graph.stages[1].shuffled == ("a",)


def test_segments_are_shuffled_on_their_way_to_a_group() -> None:
    graph = JobGraph(job_of("in a* b out", "in-a in-b a-out b-out"))
    assert graph.is_shuffled("in", "a")
    assert not graph.is_shuffled("in", "b")
    assert not graph.is_shuffled("b", "a")
