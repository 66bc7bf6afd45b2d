"""What is told of a failure on Spark."""

from __future__ import annotations

import pytest

from postroad.pipeline.spark.watching import find_missing_module, summarize_failure

IN_A_TASK = """An error occurred while calling o99.toArrow.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 8 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in read_command
{error}

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJob(DAGScheduler.scala:1)
"""
AT_THE_START = """org.apache.spark.SparkException:
Error from python worker:
  /usr/bin/python3: Error while finding module specification for 'postroad.pipeline.spark.daemon' \
(ModuleNotFoundError: No module named 'postroad')
PYTHONPATH was:
  /spark-core.jar
"""


@pytest.mark.parametrize(
    ("text", "module"),
    [
        (IN_A_TASK.format(error="ModuleNotFoundError: No module named 'bank.rates'"), "bank.rates"),
        (AT_THE_START, "postroad"),
        (IN_A_TASK.format(error="ValueError: nobody can do this"), None),
        ("", None),
    ],
)
def test_module_that_workers_do_not_have_is_named(text: str, module: str | None) -> None:
    assert find_missing_module(text) == module
    # What a batch failed with comes out of Spark in these words alone.
    assert find_missing_module(summarize_failure(RuntimeError(text))) == module


def test_what_python_said_is_what_is_told() -> None:
    told = summarize_failure(RuntimeError(IN_A_TASK.format(error="ValueError: nobody can do this")))
    assert told == "ValueError: nobody can do this"
    from_a_batch = IN_A_TASK.format(error=f"postroad.pipeline.spark.batches.BatchFailed: {told}")
    assert summarize_failure(RuntimeError(from_a_batch)) == told
    in_few_words = from_a_batch.replace(told, "the store is away")
    assert summarize_failure(RuntimeError(in_few_words)) == "the store is away"
    assert summarize_failure(RuntimeError("first\nsecond")) == "first"
    assert summarize_failure(RuntimeError()) == "RuntimeError()"
