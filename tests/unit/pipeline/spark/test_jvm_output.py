"""What Spark's JVM writes on every run is dropped; everything else is shown."""

from __future__ import annotations

import os

import pytest

from postroad.pipeline.spark.jvm_output import JvmOutput, drop_noise

HUNG_UP = b"""\
Traceback (most recent call last):
  File "pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
BrokenPipeError: [Errno 32] Broken pipe
"""
FAILED = HUNG_UP.replace(b"BrokenPipeError: [Errno 32] Broken pipe", b"ValueError: no")
WARNING = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
FLUSH = b"PySpark daemon failed to flush the output to the worker process:\n" + HUNG_UP + b"\n"


def kept(text: bytes) -> bytes:
    return b"".join(drop_noise(text.splitlines(keepends=True)))


def test_what_comes_on_every_run_is_dropped() -> None:
    assert kept(WARNING + b"one\n" + HUNG_UP + HUNG_UP + b"two\n" + FLUSH + b"three\n") == (
        b"one\ntwo\nthree\n"
    )


def test_everything_else_is_kept_as_it_is() -> None:
    text = b"one\n\n" + FAILED + b"\n  indented\n\ntwo, without an end"
    assert kept(text) == text
    assert kept(HUNG_UP + FAILED + FAILED) == FAILED + FAILED


def test_tracebacks_of_two_processes_may_be_mixed() -> None:
    lines = HUNG_UP.splitlines(keepends=True)
    mixed = [line for line in lines for _ in range(2)]
    assert kept(b"".join(mixed) + b"end\n") == b"end\n"
    with_failure = b"".join([lines[0], FAILED, *lines[1:]])
    assert kept(with_failure + b"end\n") == with_failure + b"end\n"


def test_traceback_that_is_cut_off_is_shown_unless_it_is_of_spark_alone() -> None:
    begun = b"".join(HUNG_UP.splitlines(keepends=True)[:3])
    assert kept(begun) == kept(begun[:35]) == b""
    other = begun.replace(b"pyspark/daemon.py", b"shop.py")
    assert kept(other) == other
    endless = other + b"  more\n" * 1000
    assert kept(endless) == endless


def test_output_of_a_process_goes_on_to_the_standard_error_stream(
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = JvmOutput()
    os.write(output.descriptor, HUNG_UP + b"seen\n")
    output.close()
    output.join(10)
    assert capfd.readouterr().err == "seen\n"
