"""The home of a Spark whose workers start faster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroad.pipeline.spark import SparkConfig
from postroad.pipeline.spark.home import find_quick_home, make_quick_home


def test_home_has_programs_and_no_sources(tmp_path: Path) -> None:
    installed = tmp_path / "pyspark"
    for part in ("bin", "jars", "python/lib"):
        (installed / part).mkdir(parents=True)
    home = make_quick_home(installed, tmp_path)
    assert sorted(os.listdir(home)) == ["bin", "jars"]
    assert (home / "jars").resolve() == installed / "jars"
    # Whoever comes second finds the same.
    assert make_quick_home(installed, tmp_path) == home


def test_only_workers_of_this_python_on_this_machine_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = find_quick_home(SparkConfig())
    assert home is not None
    assert (home / "bin" / "spark-submit").exists()
    assert not (home / "python").exists()
    assert find_quick_home(SparkConfig(master="spark://127.0.0.1:7077")) is None
    assert find_quick_home(SparkConfig(python="/usr/bin/python3")) is None


def test_without_a_place_for_it_spark_starts_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    assert find_quick_home(SparkConfig()) is None
