"""Jobs written as Python: the same data, and functions in place of their import paths."""

import functools
from typing import Any

import pytest

from postroad.core.errors import ConfigError, JobInvalid
from postroad.pipeline.builder import import_path, new_job
from postroad.pipeline.job import Job, RetryPolicy, TaskKind, TriggerType, WindowType
from postroad.pipeline.job_files import job_from_data
from tests.support.pipeline.jobs import clearing_data

HERE = __name__


def parse(segment: dict[str, Any]) -> dict[str, Any]:
    return segment


def is_big(new: dict[str, Any], old: dict[str, Any]) -> bool:
    return bool(new) and bool(old)


class Parser:
    @staticmethod
    def plain(segment: dict[str, Any]) -> dict[str, Any]:
        return segment

    @classmethod
    def of_class(cls, segment: dict[str, Any]) -> dict[str, Any]:
        return segment

    def of_object(self, segment: dict[str, Any]) -> dict[str, Any]:
        return segment

    def __call__(self, segment: dict[str, Any]) -> dict[str, Any]:
        return segment


def shadowed() -> None:
    """Hidden by the next function of that name."""


HIDDEN = shadowed
globals()["shadowed"] = parse


def job_of(fn: Any) -> Job:
    builder = new_job("plain").input("in", connector="memory").function("parse", fn)
    return builder.output("out", connector="memory").build()


def test_the_builder_makes_the_same_data_as_a_file() -> None:
    job = (
        new_job("clearing", doc="Totals of payments.", metadata={"owner": "clearing team"})
        .input("in", connector="memory", batch_size=100)
        .function("parse", "bank.parsing:parse", after="in")
        .function(
            "total",
            "bank.sums:total",
            after="parse",
            group_by=["account", "currency"],
            params={"currency": "EUR"},
        )
        .output("out", connector="mail", after="total", options={"queue": "totals"})
        .output("errors", connector="memory", after="parse")
        .when("parse", "bank.rules:is_noise", to="none", short_circuit=True)
        .when(
            "parse",
            {"and": ["bank.rules:is_big", {"not": "bank.rules:is_old"}]},
            to=["total"],
            exclude_keys=["secret"],
        )
        .when_raised("parse", to="errors", post_transform="bank.rules:describe")
        .window(
            "daily",
            task="total",
            type="fixed",
            aggregation="sum",
            key="amount",
            time_key="at",
            range_s=86_400,
        )
        .trigger("daily", on="segments", threshold=10)
        .lifecycle("all", "bank.hooks:Log", params={"level": 3})
        .build()
    )
    data = clearing_data()
    # The builder adds edges with the task they lead to.
    data["workflow"][2:] = reversed(data["workflow"][2:])
    assert job == job_from_data(data)


def test_a_task_follows_the_one_before_it_unless_told_otherwise() -> None:
    job = (
        new_job("plain")
        .input("in", connector="memory")
        .function("a", parse)
        .function("b", parse)
        .output("out", connector="memory", after=("a", "b"))
        .build()
    )
    assert job.workflow == [("in", "a"), ("a", "b"), ("a", "out"), ("b", "out")]


def test_words_and_members_mean_the_same() -> None:
    def job(kind: Any, type: Any, on: Any, retry: Any) -> Job:
        return (
            new_job("plain")
            .input("in", connector="memory", retry=retry)
            .function("a", parse, kind=kind)
            .output("out", connector="memory")
            .window("w", task="a", type=type, aggregation="count")
            .trigger("w", on=on)
            .build()
        )

    words = job("arrow", "global", "timer", {"attempts": 2})
    members = job(TaskKind.ARROW, WindowType.GLOBAL, TriggerType.TIMER, RetryPolicy(attempts=2))
    assert words == members
    assert words.catalog[1].kind is TaskKind.ARROW


def test_a_beginning_can_be_shared() -> None:
    beginning = new_job("plain").input("in", connector="memory")
    first = beginning.output("a", connector="memory").build()
    second = beginning.output("b", connector="memory").build()
    assert first.workflow == [("in", "a")]
    assert second.workflow == [("in", "b")]


def test_functions_become_their_import_paths() -> None:
    job = (
        new_job("plain")
        .input("in", connector="memory", fn=parse)
        .function("parse", Parser.plain)
        .output("out", parse, connector="memory")
        .when("parse", {"or": [is_big, {"not": is_big}]}, to="out")
        .when_raised("parse", is_big, to="out", post_transform=parse)
        .window("w", task="parse", type="global", aggregation=Parser)
        .trigger("w", on="punctuation", predicate=is_big, emit=parse)
        .lifecycle("parse", Parser)
        .build()
    )
    assert [task.fn for task in job.catalog] == [
        f"{HERE}:parse",
        f"{HERE}:Parser.plain",
        f"{HERE}:parse",
    ]
    big = f"{HERE}:is_big"
    assert job.flow_conditions[0].predicate == {"or": [big, {"not": big}]}
    assert job.flow_conditions[1].predicate == big
    assert job.flow_conditions[1].post_transform == f"{HERE}:parse"
    assert job.windows[0].aggregation == f"{HERE}:Parser"
    assert (job.triggers[0].predicate, job.triggers[0].emit) == (big, f"{HERE}:parse")
    assert job.lifecycles[0].calls == f"{HERE}:Parser"


def test_import_paths() -> None:
    for function, path in (
        (parse, f"{HERE}:parse"),
        (Parser.of_class, f"{HERE}:Parser.of_class"),
        (len, "builtins:len"),
    ):
        assert import_path(function) == path, (function, path)


def test_a_lambda_has_no_path() -> None:
    with pytest.raises(ConfigError, match=r"a lambda in .* has no name .* define a function"):
        job_of(lambda segment: segment)


def test_a_function_in_a_function_has_no_path() -> None:
    def inner(segment: Any) -> Any:
        return segment

    with pytest.raises(
        ConfigError, match="'inner' is defined inside 'test_a_function_in_a_function_has_no_path'"
    ):
        job_of(inner)


def test_a_thing_without_a_name_has_no_path() -> None:
    for thing in (Parser(), functools.partial(parse)):
        with pytest.raises(ConfigError, match="has no name to find it by; give a function"):
            job_of(thing)


def test_a_path_must_lead_back() -> None:
    for thing in (Parser().of_object, HIDDEN):
        with pytest.raises(ConfigError, match="is not what is found at"):
            job_of(thing)


def test_functions_among_the_parameters_are_refused() -> None:
    builder = new_job("plain").input("in", connector="memory", fn=parse, params={"how": parse})
    with pytest.raises(JobInvalid, match=r"params\.how=.* is not plain data"):
        builder.output("out", connector="memory").build()


def test_every_problem_is_told_at_once() -> None:
    unknown: dict[str, Any] = {"batchsize": 3}
    builder = new_job("a b").input("in", connector="memory", **unknown).function("parse")
    with pytest.raises(JobInvalid) as caught:
        builder.output("out", connector="memory").when("prase", to="out").build()
    assert [str(problem) for problem in caught.value.problems] == [
        "catalog 'in': unknown key 'batchsize'; did you mean 'batch_size'?",
        "job: name 'a b' must be 1 to 64 letters, digits, dots, dashes or underscores",
        "catalog 'parse': a function of kind 'segment' needs fn",
        "flow condition 1 (from 'prase'): "
        "from 'prase' is not in the catalog; did you mean 'parse'?",
    ]
