"""A job on a standalone cluster: tasks run in the executors of both workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from postroad.pipeline.spark import SparkSettings, spark_session
from tests.servers.spark import QUICK_JAVA, spark_cluster

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TASKS = 4


def test_job_runs_on_all_workers(tmp_path: Path) -> None:
    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        import pyarrow

        import postroad

        # An executor alone would be done with all tasks before the other has started.
        time.sleep(0.3)
        assert postroad.__version__
        for batch in batches:
            told = [f"{os.environ['MALLOC_TOP_PAD_']} {os.getcwd()}"] * batch.num_rows
            yield pyarrow.RecordBatch.from_pydict({"told": told})

    with spark_cluster(tmp_path) as cluster:
        settings = SparkSettings(
            master=cluster.master,
            driver_memory="512m",
            executor_memory="512m",
            java_options=QUICK_JAVA,
            conf={
                "spark.executor.extraJavaOptions": QUICK_JAVA,
                # The first task waits for both.
                "spark.scheduler.minRegisteredResourcesRatio": "1",
                "spark.cores.max": "2",
            },
        )
        with spark_session(settings) as session:
            frame = session.range(TASKS, numPartitions=TASKS).mapInArrow(tell, "told string")
            told = [row["told"] for row in frame.collect()]

    assert len(told) == TASKS
    memory, places = zip(*(text.split(" ") for text in told), strict=True)
    assert set(memory) == {"67108864"}
    assert {Path(place).relative_to(tmp_path).parts[0] for place in places} == {
        "worker-0",
        "worker-1",
    }
