"""Batches with groups and DataFrames done again after a kill: each effect is there once."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark.spark_jobs import LIMIT_S
from tests.support.pipeline import kinds_kill_job
from tests.support.source_tree import ROOT
from tests.support.tiers import sample


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_each_segment_has_its_effect_once_whenever_driver_or_worker_is_killed(
    tmp_path: Path,
) -> None:
    given: list[dict[str, Any]] = [
        {"n": n, "key": "abc"[n % 3]} for n in range(kinds_kill_job.SEGMENTS)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, given)) + "\n")
    for point in (*sample(kinds_kill_job.POINTS, 1), kinds_kill_job.WORKER):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", kinds_kill_job.__name__, str(tmp_path), point), cwd=ROOT
        )
        status = await asyncio.wait_for(process.wait(), LIMIT_S)
        assert status == (0 if point == kinds_kill_job.WORKER else -signal.SIGKILL), point
    assert not (tmp_path / kinds_kill_job.WORKER).exists(), "a worker was killed"
    expected: Counter[str] = Counter()
    for it in given:
        expected[it["key"]] += it["n"] if it["n"] % 7 else 0
    for name in kinds_kill_job.OUTPUTS:
        added: Counter[str] = Counter()
        for row in written(tmp_path / name):
            added[row["key"]] += row["added"]
        assert added == expected, name
    # The state went on from batch to batch.
    running = written(tmp_path / "running")
    last = {key: max(it["total"] for it in running if it["key"] == key) for key in "abc"}
    assert last == expected


def written(directory: Path) -> list[dict[str, Any]]:
    files = directory.glob("*.jsonl")
    return [json.loads(line) for it in files for line in it.read_text().splitlines()]
