"""Functions of DataFrames: what is said about them, and where they are in a job."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.core.errors import ConfigError, InvalidJobError
from postroad.pipeline import JobBuilder, LocalRunner, MemoryInput, MemoryOutput, explain_text
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.graph import JobGraph


def joined(frame: Any, rate: int = 1) -> Any:
    return ("joined", frame, rate)


def work(segment: Any) -> Any:
    return segment


def beginning() -> JobBuilder:
    return JobBuilder("joins").input("in", connector="memory").function("parse", work)


COLUMNS = {"n": "bigint"}


def job_of(**keys: Any) -> JobBuilder:
    builder = beginning().function("join", joined, kind="dataframe", **{"columns": COLUMNS} | keys)
    return builder.function("after", work).output("out", connector="memory")


def test_segments_end_at_a_dataframe_and_need_no_stage_for_that() -> None:
    job = job_of().build()
    assert [it.tasks for it in JobGraph(job).stages] == [("in", "parse", "join", "after", "out")]
    program = CompiledJob(job)
    assert program.gathering_tasks == program.windowed_tasks == {"join"}


def test_a_compiled_job_has_the_function_with_its_parameters() -> None:
    program = CompiledJob(job_of(params={"rate": 3}).build())
    assert program.dataframe_tasks == {"join"}
    function = program.functions["join"]
    assert function is not None
    assert function("frame") == ("joined", "frame", 3)


def test_it_is_drawn() -> None:
    text = explain_text(job_of().build())
    assert "join: function, " in text
    assert "as a DataFrame, acknowledged with its batch" in text


@pytest.mark.parametrize(
    ("builder", "complaint"),
    [
        (job_of(group_by="key"), "kind 'dataframe' has no group_by: group its DataFrame"),
        (job_of(time_limit_s=-3), "time_limit_s=-3.0 must be a finite number above 0"),
        (job_of(columns={}), "kind 'dataframe' needs at least one column"),
        (job_of(columns={"_postroad_x": "int"}), "names that begin so are reserved"),
        (job_of(expressions={"n": "1"}), "expressions are for kind 'sql' only"),
        (
            job_of(side_inputs={"rates": {"connector": "memory"}}),
            "kind 'dataframe' has no side_inputs: have Spark read what its function joins",
        ),
        (
            job_of().lifecycle("join", joined),
            "'join' is of kind 'dataframe': no worker runs it, nor hooks of it",
        ),
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
    with pytest.raises(InvalidJobError, match=complaint):
        builder.build()


def test_the_local_runner_refuses_it() -> None:
    with pytest.raises(ConfigError, match="task 'join' is of kind dataframe, which needs Spark"):
        LocalRunner(job_of().build(), {"in": MemoryInput([])}, {"out": MemoryOutput()})
