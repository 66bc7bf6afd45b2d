"""Functions of DataFrames: what is said about them, and the stages they are."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.core.errors import ConfigError, JobInvalid
from postroad.pipeline import JobBuilder, LocalRunner, MemoryInput, MemoryOutput, explain_text
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.graph import JobGraph


def joined(frame: Any, rate: int = 1) -> Any:
    return ("joined", frame, rate)


def work(segment: Any) -> Any:
    return segment


def beginning() -> JobBuilder:
    return JobBuilder("joins").input("in", connector="memory").function("parse", work)


def job_of(**keys: Any) -> JobBuilder:
    builder = beginning().function("join", joined, kind="dataframe", **keys)
    return builder.function("after", work).output("out", connector="memory")


def test_a_dataframe_is_a_stage_of_its_own() -> None:
    stages = JobGraph(job_of().build()).stages
    assert [(it.tasks, it.dataframe) for it in stages] == [
        (("in", "parse"), None),
        (("join",), "join"),
        (("after", "out"), None),
    ]


def test_dataframes_of_one_level_and_groups_beside_them_are_stages_one_after_the_other() -> None:
    job = (
        beginning()
        .function("left", joined, kind="dataframe", after="parse")
        .function("right", joined, kind="dataframe", after=["parse", "left"])
        .function("other", joined, kind="dataframe", after="parse")
        .function("group", work, group_by="key", after="parse")
        .output("out", connector="memory", after=["left", "right", "other", "group"])
        .build()
    )
    graph = JobGraph(job)
    assert all(graph.stage_of[source] <= graph.stage_of[target] for source, target in job.workflow)
    for name in ("left", "right", "other"):
        stage = graph.stages[graph.stage_of[name]]
        assert (stage.tasks, stage.dataframe) == ((name,), name)
        assert all(graph.stage_of[it] < stage.index for it in graph.parents[name])
        assert all(graph.stage_of[it] > stage.index for it in graph.children[name])
    assert sorted(name for stage in graph.stages for name in stage.tasks) == sorted(graph.order)


def test_a_compiled_job_has_the_function_with_its_parameters() -> None:
    program = CompiledJob(job_of(params={"rate": 3}).build())
    assert program.dataframe_tasks == {"join"}
    function = program.functions["join"]
    assert function is not None
    assert function("frame") == ("joined", "frame", 3)


def test_it_is_drawn() -> None:
    text = explain_text(job_of().build())
    assert "== DataFrame: join ==" in text
    assert "join: function, " in text
    assert "as a DataFrame, acknowledged with its batch" in text


@pytest.mark.parametrize(
    ("builder", "complaint"),
    [
        (job_of(group_by="key"), "kind 'dataframe' has no group_by: group its DataFrame"),
        (job_of(time_limit_s=3), "time_limit_s is for one segment"),
        (job_of().route_exception("join", to="after"), "if it raises, its whole batch comes again"),
        (
            job_of().route("join", to="none", short_circuit=True, action="retry"),
            "its rows do not say which segment would come again",
        ),
        (
            job_of().window("w", task="join", type="global", aggregation="count"),
            "task 'join' is of kind 'dataframe': it has no windows",
        ),
        (
            beginning().output("out", joined, connector="memory", kind="dataframe"),
            "kind 'dataframe' is for functions only",
        ),
    ],
)
def test_mistakes_are_told(builder: JobBuilder, complaint: str) -> None:
    with pytest.raises(JobInvalid, match=complaint):
        builder.build()


def test_the_local_runner_refuses_it() -> None:
    with pytest.raises(ConfigError, match="task 'join' is of kind dataframe, which needs Spark"):
        LocalRunner(job_of().build(), {"in": MemoryInput([])}, {"out": MemoryOutput()})
