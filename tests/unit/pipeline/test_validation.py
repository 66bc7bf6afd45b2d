"""What is wrong with a job: every rule, told of the right entry, and all mistakes at once."""

from typing import Any

import pytest

from postroad.core.errors import ConfigError, InvalidJobError
from postroad.pipeline.job import Job, RetryPolicy, Task, TaskType, Window, WindowType
from postroad.pipeline.validation import JobIssue, find_problems, require_valid
from tests.support.pipeline.jobs import IN, PARSE, TOTAL, broken, clearing_data, complaints


def test_the_job_that_is_broken_here_is_valid() -> None:
    assert complaints(clearing_data()) == []


# What belongs to the job.


def test_a_job_has_a_name_that_fits_everywhere() -> None:
    for name in ("", "a b", "a/b", "ä", "x" * 65, "a\n"):
        (complaint,) = complaints({**clearing_data(), "name": name})
        assert complaint.startswith(f"job: name {name!r} must be 1 to 64 letters"), name


def test_names_of_jobs() -> None:
    for name in ("a", "Clearing-2.daily_run", "x" * 64):
        assert complaints({**clearing_data(), "name": name}) == [], name


def test_metadata_is_plain_data() -> None:
    for metadata, path in (
        ({"at": {1}}, "metadata.at={1}"),
        ({"a": [0, float("nan")]}, "metadata.a[1]=nan"),
        ({"a": {"b": (1, 2)}}, "metadata.a.b=(1, 2)"),
        ({"a": {3: "x"}}, "a key of metadata.a=3"),
    ):
        (complaint,) = complaints({**clearing_data(), "metadata": metadata})
        assert complaint.startswith(f"job: {path} is not plain data"), (metadata, path)


def test_a_job_is_a_table() -> None:
    assert complaints([]) == ["job: must be a table, not list"]  # type: ignore[arg-type]


def test_what_a_job_lacks() -> None:
    assert complaints({}) == [
        "job: name is missing",
        "job: workflow is missing",
        "job: catalog is missing",
    ]


def test_an_empty_job() -> None:
    assert complaints({"name": "a", "workflow": [], "catalog": []}) == [
        "catalog: has no entries",
        "workflow: has no edges",
    ]


# What cannot be read.


def test_unknown_keys_and_wrong_types_of_several_entries_are_reported_together() -> None:
    data = clearing_data()
    data["flow_condition"] = data.pop("flow_conditions")
    data["catalog"][IN] |= {"batch_size": "many", "retry": {"attemptz": 3, "max_s": []}}
    data["catalog"][PARSE]["kindd"] = "arrow"
    data["catalog"][TOTAL] |= {"group_by": ["account", 3], "fn": 5}
    data["windows"][0]["type"] = "fixd"
    data["triggers"][0] |= {"on": "sometimes", "threshold": True}
    assert complaints(data) == [
        "job: unknown key 'flow_condition'; did you mean 'flow_conditions'?",
        "catalog 'in': batch_size: expected int, got str",
        "catalog 'in': unknown key 'retry.attemptz'; did you mean 'attempts'?",
        "catalog 'in': retry.max_s: expected float, got array",
        "catalog 'parse': unknown key 'kindd'; did you mean 'kind'?",
        "catalog 'total': fn: expected str | null, got int",
        "catalog 'total': group_by: expected str, got int at group_by[1]",
        "window 'daily': unknown type 'fixd'; did you mean 'fixed'?",
        "trigger 1 (of window 'daily'): unknown on 'sometimes'; "
        "known: 'segments', 'timer', 'punctuation', 'watermark', 'drained'",
        "trigger 1 (of window 'daily'): threshold: expected float, got bool",
    ]


def test_a_section_that_is_no_list_is_one_problem() -> None:
    for section in ("workflow", "catalog", "flow_conditions", "windows", "triggers", "lifecycles"):
        data = {**clearing_data(), section: "nothing"}
        assert complaints(data) == [f"job: {section} must be a list, not str"], section


def test_an_entry_that_is_no_table() -> None:
    for section, label in (
        ("catalog", "catalog entry 6"),
        ("flow_conditions", "flow condition 4"),
        ("windows", "window 2"),
        ("triggers", "trigger 2"),
        ("lifecycles", "lifecycle 2"),
    ):
        data = clearing_data()
        data[section].append(None)
        assert complaints(data) == [f"{label}: must be a table, not null"], (section, label)


def test_a_task_that_cannot_be_read_is_known_by_its_name() -> None:
    assert complaints(broken("catalog", PARSE, type="transformer")) == [
        "catalog 'parse': unknown type 'transformer'; known: 'input', 'function', 'output'"
    ]


def test_null_is_no_value() -> None:
    for section, key, expected in (
        ("catalog", "name", "str"),
        ("catalog", "type", "str"),
        ("catalog", "kind", "str"),
        ("windows", "type", "str"),
        ("triggers", "on", "str"),
    ):
        data = clearing_data()
        data[section][0][key] = None
        assert any(
            it.endswith(f": {key}: expected {expected}, got null") for it in complaints(data)
        ), (section, key, expected)


def test_a_misspelt_name_is_still_a_name() -> None:
    data = clearing_data()
    data["catalog"][PARSE]["namee"] = data["catalog"][PARSE].pop("name")
    assert complaints(data) == ["catalog 'parse': unknown key 'namee'; did you mean 'name'?"]


def test_an_entry_without_a_name_has_a_number() -> None:
    assert "catalog entry 2: name is missing" in complaints(broken("catalog", PARSE, name=None))


def test_words_are_found_in_any_case() -> None:
    assert complaints(broken("catalog", IN, type="INPUT")) == [
        "catalog 'in': unknown type 'INPUT'; did you mean 'input'?"
    ]


# Jobs made in Python, whose structures check nothing.


def python_job(**keys: Any) -> Job:
    tasks: list[Any] = [
        Task(name="in", type=TaskType.INPUT, connector="memory", **keys),
        Task(name="out", type=TaskType.OUTPUT, connector="memory"),
    ]
    return Job(name="plain", workflow=[("in", "out")], catalog=tasks)


def test_a_job_made_in_python_is_checked_the_same() -> None:
    assert complaints(python_job()) == []
    assert complaints(python_job(batch_size="5", fn=print, retry=RetryPolicy(attempts=-1))) == [
        "catalog 'in': fn: expected str | null, got builtin_function_or_method",
        "catalog 'in': batch_size: expected int, got str",
        "catalog 'in': retry.attempts=-1 must be a finite number above 0",
    ]


def test_a_valid_job_comes_back_with_everything_as_it_should_be() -> None:
    window: Any = Window(name="w", task="f", type=WindowType.GLOBAL, aggregation="count")
    tasks: list[Any] = [
        {"name": "in", "type": "input", "connector": "memory"},
        {"name": "f", "type": "function", "fn": "a:b", "group_by": ("a", "b")},
        {"name": "out", "type": "output", "connector": "memory"},
    ]
    edges: list[Any] = [["in", "f"], ["f", "out"]]
    job = require_valid(Job(name="plain", workflow=edges, catalog=tasks, windows=[window]))
    assert job.workflow == [("in", "f"), ("f", "out")]
    assert job.catalog[0].type is TaskType.INPUT
    assert job.catalog[1].group_by == ["a", "b"]


# The error.


def test_the_error_tells_every_problem() -> None:
    data = clearing_data() | {"name": "a b", "windowx": []}
    with pytest.raises(InvalidJobError) as caught:
        require_valid(data)
    assert caught.value.problems == find_problems(data)
    assert str(caught.value) == (
        "job 'a b' has 2 problems:\n"
        "  job: unknown key 'windowx'; did you mean 'windows'?\n"
        "  job: name 'a b' must be 1 to 64 letters, digits, dots, dashes or underscores"
    )


def test_one_problem_of_a_job_without_a_name() -> None:
    data = clearing_data()
    del data["name"]
    with pytest.raises(ConfigError) as caught:
        require_valid(data)
    assert str(caught.value) == "the job has 1 problem:\n  job: name is missing"


def test_a_problem_knows_its_entry_and_keys() -> None:
    assert find_problems(broken("catalog", IN, max_pending=99)) == [
        JobIssue(
            "catalog 'in'",
            "max_pending=99 is less than batch_size=100",
            ("max_pending", "batch_size"),
        )
    ]
