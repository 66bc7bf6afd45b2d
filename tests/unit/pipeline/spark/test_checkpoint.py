"""Whose checkpoint it is, and of which store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.schema import create_tables
from postroad.pipeline.spark.checkpoint import Checkpoint, claim_inputs


def begin(place: Path, store: str = "11") -> str:
    """Open it, and have Spark note something there."""
    run = Checkpoint(place).open("clearing", store)
    (place / "spark").mkdir(exist_ok=True)
    return run


def test_checkpoint_with_the_same_store_goes_on_with_its_run(tmp_path: Path) -> None:
    run = begin(tmp_path)
    assert begin(tmp_path) == run


def test_checkpoint_with_another_store_is_refused_with_both_ids(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(ConfigError, match=r"another store .*id 11, now 22.*delete the checkpoint"):
        begin(tmp_path, "22")


def test_checkpoint_without_files_of_spark_takes_any_store(tmp_path: Path) -> None:
    run = Checkpoint(tmp_path).open("clearing", "11")
    other = begin(tmp_path, "22")
    assert other != run
    assert begin(tmp_path, "22") == other


def test_checkpoint_of_an_older_version_is_that_of_the_store_it_is_next_used_with(
    tmp_path: Path,
) -> None:
    begin(tmp_path)
    (tmp_path / "postroad.json").write_text(json.dumps({"job": "clearing", "run": "old"}))
    assert begin(tmp_path, "22") == "old"
    with pytest.raises(ConfigError, match="another store"):
        begin(tmp_path, "33")


async def test_inputs_that_spark_has_read_belong_to_the_run_that_read_them() -> None:
    store = MemoryStore(MemoryDisk())
    await store.open("clearing")
    try:
        await store.write(lambda ledger: create_tables(store.column_types, ledger.database))
        await store.write(lambda ledger: JobStore(ledger.database, "clearing").open())
        await claim_inputs(store, "clearing", "first", ["in"])
        # It has read nothing.
        await claim_inputs(store, "clearing", "second", ["in"])
        await store.write(lambda it: JobStore(it.database, "clearing").record_batch("second", 4))
        await claim_inputs(store, "clearing", "second", ["in"])
        with pytest.raises(ConfigError, match=r"'in' .* run second, up to its batch 4, .* third"):
            await claim_inputs(store, "clearing", "third", ["in"])
    finally:
        await store.close()
