"""Jobs from tables, texts and files, and back."""

import json
from pathlib import Path

import pytest

from postroad.core.errors import ConfigError, InvalidJobError
from postroad.pipeline.job import FlowAction, RetryPolicy, TaskType
from postroad.pipeline.job_files import (
    job_from_data,
    job_from_json,
    job_from_toml,
    job_to_data,
    job_to_json,
    load_job,
)
from tests.support.pipeline.jobs import clearing_data

TOML = """
name = "plain"
workflow = [["in", "parse"], ["parse", "out"]]

[[catalog]]
name = "in"
type = "input"
connector = "files"
options = { path = "payments" }
retry = { attempts = 3, max_s = 10 }

[[catalog]]
name = "parse"
type = "function"
fn = "bank.parsing:parse"

[[catalog]]
name = "out"
type = "output"
connector = "mail"

[[flow_conditions]]
from = "parse"
to = "none"
exceptions = true
short_circuit = true
action = "retry"
"""


def test_a_job_of_a_table() -> None:
    job = job_from_data(clearing_data())
    assert job.name == "clearing"
    assert job.workflow[0] == ("in", "parse")
    assert [task.type for task in job.catalog[:2]] == [TaskType.INPUT, TaskType.FUNCTION]
    assert job.flow_conditions[0].source == "parse"


def test_a_job_of_a_toml_text() -> None:
    job = job_from_toml(TOML)
    assert job.catalog[0].options == {"path": "payments"}
    assert job.catalog[0].retry == RetryPolicy(attempts=3, max_s=10.0)
    assert job.flow_conditions[0].action is FlowAction.RETRY
    assert job_from_toml(TOML.encode()) == job


def test_a_job_is_the_same_whatever_it_is_read_from() -> None:
    job = job_from_toml(TOML)
    assert job_from_json(job_to_json(job)) == job
    assert job_from_json(job_to_json(job).encode()) == job
    assert job_from_data(job_to_data(job)) == job


def test_data_has_nothing_that_need_not_be_said() -> None:
    assert job_to_data(job_from_data(clearing_data())) == clearing_data()


def test_data_is_plain() -> None:
    data = job_to_data(job_from_data(clearing_data()))
    assert type(data["catalog"][0]["type"]) is str
    assert type(data["workflow"][0]) is list
    assert json.loads(json.dumps(data)) == data


def test_the_json_is_for_people() -> None:
    data = {**clearing_data(), "doc": "Größe"}
    text = job_to_json(job_from_data(data))
    assert '  "doc": "Größe"' in text
    assert text.endswith("}\n")


@pytest.mark.parametrize("name", ["job.toml", "job.TOML"])
def test_a_job_of_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(TOML, encoding="utf-8")
    assert load_job(path) == job_from_toml(TOML)
    assert load_job(str(path)) == job_from_toml(TOML)


def test_a_job_of_a_json_file(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(job_to_json(job_from_toml(TOML)), encoding="utf-8")
    assert load_job(path) == job_from_toml(TOML)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.json or \.toml"):
        load_job(tmp_path / "job.yaml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"job\.json: cannot be read: No such file"):
        load_job(tmp_path / "job.json")


def test_problems_of_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(TOML.replace("fn =", "function ="), encoding="utf-8")
    with pytest.raises(InvalidJobError) as caught:
        load_job(path)
    assert str(caught.value).startswith(f"{path}: job 'plain' has 2 problems:\n")
    assert [problem.entry for problem in caught.value.problems] == ["catalog 'parse'"] * 2


def test_what_is_no_json() -> None:
    for text, reason in (
        ("{", "line 1 column 2"),
        ('{"name": "a", "name": "b"}', "the key 'name' is there twice in one table"),
        (b"\xff", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
    ):
        with pytest.raises(InvalidJobError, match=reason) as caught:
            job_from_json(text)
        assert [problem.entry for problem in caught.value.problems] == ["job"], (text, reason)


def test_what_is_no_toml() -> None:
    for text in ("name = ", 'name = "a"\nname = "b"', b"\xff"):
        with pytest.raises(
            InvalidJobError, match="the job cannot be read: job: is not TOML: "
        ) as caught:
            job_from_toml(text)
        assert len(caught.value.problems) == 1, text


def test_json_that_is_no_table() -> None:
    for text in ("null", "[]", '"job"', "3"):
        with pytest.raises(InvalidJobError, match="must be a table"):
            job_from_json(text)


def test_a_number_json_has_no_word_for() -> None:
    data = clearing_data()
    data["catalog"][0]["pending_timeout_s"] = float("nan")
    with pytest.raises(InvalidJobError, match="pending_timeout_s=nan must be a finite number"):
        job_from_json(json.dumps(data))


def test_a_date_of_toml_is_not_plain_data() -> None:
    with pytest.raises(InvalidJobError, match=r"options\.since=.* is not plain data"):
        job_from_toml(TOML.replace('path = "payments"', "since = 2026-01-01"))


def test_keys_of_before_are_read() -> None:
    data = clearing_data()
    data["windows"][0]["keep_s"] = 5
    data["lifecycles"][0]["calls"] = data["lifecycles"][0].pop("hooks")
    job = job_from_data(data)
    assert job.windows[0].allowed_lateness_s == 5
    assert job.lifecycles[0].hooks == "bank.hooks:Log"
    data["windows"][0]["allowed_lateness_s"] = 6
    with pytest.raises(InvalidJobError, match="unknown key 'keep_s'"):
        job_from_data(data)
