"""Jobs written as Python: the same data, and functions in place of their import paths."""

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from postroad.core.errors import ConfigError, InvalidJobError
from postroad.pipeline.builder import JobBuilder, import_path, new_job
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.explain import explain_text
from postroad.pipeline.job import Job, RetryPolicy, TaskKind, TriggerType, WindowType
from postroad.pipeline.job_files import job_from_data, job_to_data, job_to_json
from postroad.pipeline.validation import find_problems
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
    builder = JobBuilder("plain").input("in", connector="memory").function("parse", fn)
    return builder.output("out", connector="memory").build()


def test_the_builder_makes_the_same_data_as_a_file() -> None:
    job = (
        JobBuilder("clearing", doc="Totals of payments.", metadata={"owner": "clearing team"})
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
        .route("parse", "bank.rules:is_noise", to="none", short_circuit=True)
        .route(
            "parse",
            {"and": ["bank.rules:is_big", {"not": "bank.rules:is_old"}]},
            to=["total"],
            exclude_keys=["secret"],
        )
        .route_exception("parse", to="errors", post_transform="bank.rules:describe")
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
        JobBuilder("plain")
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
            JobBuilder("plain")
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
    beginning = JobBuilder("plain").input("in", connector="memory")
    first = beginning.output("a", connector="memory").build()
    second = beginning.output("b", connector="memory").build()
    assert first.workflow == [("in", "a")]
    assert second.workflow == [("in", "b")]


def test_functions_become_their_import_paths() -> None:
    job = (
        JobBuilder("plain")
        .input("in", connector="memory", fn=parse)
        .function("parse", Parser.plain)
        .output("out", parse, connector="memory")
        .route("parse", {"or": [is_big, {"not": is_big}]}, to="out")
        .route_exception("parse", is_big, to="out", post_transform=parse)
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
    assert job.lifecycles[0].hooks == f"{HERE}:Parser"


def test_import_paths() -> None:
    for function, path in (
        (parse, f"{HERE}:parse"),
        (Parser.of_class, f"{HERE}:Parser.of_class"),
        (len, "builtins:len"),
    ):
        assert import_path(function) == path, (function, path)


def test_import_path_of_what_cannot_be_imported_is_refused() -> None:
    def inner(segment: Any) -> Any:
        return segment

    for thing, reason in (
        (lambda segment: segment, "a lambda in .* has no name"),
        (inner, "'inner' is defined inside"),
        (Parser(), "has no name to find it by"),
        (functools.partial(parse), "has no name to find it by"),
        (Parser().of_object, "is another object than"),
        (HIDDEN, "is another object than"),
    ):
        with pytest.raises(ConfigError, match=reason):
            import_path(thing)


def test_functions_that_cannot_be_imported_stay_with_the_job() -> None:
    bound = 3

    def inner(segment: Any) -> Any:
        return {"n": segment["n"] * bound}

    things = [inner, Parser(), functools.partial(parse), Parser().of_object, HIDDEN]
    things += [lambda segment: segment, lambda segment: None]
    for thing in things:
        job = job_of(thing)
        (name,) = job.functions
        assert job.catalog[1].fn == name
        assert CompiledJob(job).functions["parse"] is thing
        assert find_problems(job) == []
        assert name in explain_text(job)


def test_two_lambdas_of_one_line_are_two() -> None:
    builder = JobBuilder("plain").input("in", connector="memory")
    for name, fn in (("a", lambda it: it), ("b", lambda it: None)):
        builder = builder.function(name, fn)
    job = builder.output("out", connector="memory").build()
    functions = CompiledJob(job).functions
    assert functions["a"] is not None
    assert functions["b"] is not None
    assert (functions["a"](1), functions["b"](1)) == (1, None)


def test_lambdas_route_aggregate_and_hook() -> None:
    class Hooks:
        def before_task(self) -> dict[str, Any]:
            return {}

    job = (
        JobBuilder("plain")
        .input("in", connector="memory")
        .function("parse", lambda segment: segment)
        .output("out", connector="memory")
        .route("parse", {"and": [lambda new, old: True, is_big]}, to="out")
        .route_exception("parse", to="out", post_transform=lambda error, segment: segment)
        .window("w", task="parse", type="global", aggregation="count")
        .trigger("w", on="punctuation", predicate=lambda *_: True, emit=lambda extent: [])
        .lifecycle("parse", Hooks)
        .build()
    )
    assert len(job.functions) == 6
    CompiledJob(job).start()


@pytest.mark.parametrize("save", [job_to_json, job_to_data])
def test_a_job_with_a_lambda_cannot_be_saved(save: Callable[[Job], object]) -> None:
    with pytest.raises(ConfigError, match=r"job 'plain' cannot be saved: <lambda at test_buil"):
        save(job_of(lambda segment: segment))


def test_names_of_lambdas_in_data_are_refused() -> None:
    data = job_to_data(job_of(parse))
    data["catalog"][1]["fn"] = "<lambda at bank.py:3>"
    with pytest.raises(
        InvalidJobError, match=r"fn '<lambda at bank\.py:3>' was a function of the prog"
    ):
        job_from_data(data)
    data["functions"] = {"<lambda at bank.py:3>": "os:_exit"}
    with pytest.raises(InvalidJobError, match="is not a function: no file can have any"):
        job_from_data(data)


def test_a_job_with_closures_goes_to_other_processes_by_the_serializer_of_spark() -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    factor = 7
    pickled = cloudpickle.dumps(job_of(lambda segment: {"n": segment["n"] * factor}))
    program = (
        "import pickle, sys; from postroad.pipeline.compiled_job import CompiledJob;"
        "job = pickle.loads(sys.stdin.buffer.read());"
        "print(CompiledJob(job).functions['parse']({'n': 6}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickled, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "{'n': 42}"


def test_names_of_before_mean_the_same() -> None:
    def build(builder: JobBuilder, old: bool) -> Job:
        builder = builder.input("in", connector="memory").function("parse", parse)
        builder = builder.output("out", connector="memory")
        if old:
            return builder.when("parse", is_big, to="out").when_raised("parse", to="out").build()
        return builder.route("parse", is_big, to="out").route_exception("parse", to="out").build()

    assert build(new_job("plain"), old=True) == build(JobBuilder("plain"), old=False)


def test_functions_among_the_parameters_are_refused() -> None:
    builder = JobBuilder("plain").input("in", connector="memory", fn=parse, params={"how": parse})
    with pytest.raises(InvalidJobError, match=r"params\.how=.* is not plain data"):
        builder.output("out", connector="memory").build()


def test_every_problem_is_told_at_once() -> None:
    unknown: dict[str, Any] = {"batchsize": 3}
    builder = JobBuilder("a b").input("in", connector="memory", **unknown).function("parse")
    with pytest.raises(InvalidJobError) as caught:
        builder.output("out", connector="memory").route("prase", to="out").build()
    assert [str(problem) for problem in caught.value.problems] == [
        "catalog 'in': unknown key 'batchsize'; did you mean 'batch_size'?",
        "job: name 'a b' must be 1 to 64 letters, digits, dots, dashes or underscores",
        "catalog 'parse': a function of kind 'segment' needs fn",
        "flow condition 1 (from 'prase'): "
        "from 'prase' is not in the catalog; did you mean 'parse'?",
    ]
