"""What Spark's workers need to know of a job; it goes to them with the job's source and sink."""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import resource
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import cloudpickle

from postroad.core.errors import ConfigError
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import InputConnector, OutputConnector, RawRecords
from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.coordinator.window_deltas import ResultsInput
from postroad.pipeline.graph import JobGraph
from postroad.pipeline.job import Job, TaskKind, TaskType
from postroad.pipeline.spark.coordinator_client import (
    CoordinatorClient,
    CoordinatorEndpoint,
    desk_client,
)
from postroad.pipeline.spark.heartbeat import BEAT_S, Heartbeat, heartbeat

if TYPE_CHECKING:
    import pyarrow as pa


# A query can be stopped while it waits.
_POLL_S = 5.0
_POLL_BESIDE_SPARK_S = 0.1

# Net allocations of containers between two collections of the youngest: more than a pass makes
# for a piece of segments with a few values each.
_COLLECT_AFTER = 50_000

SPARK = "spark"
"""The connector that stands for Spark's own readers and writers."""


def _on_spark(job: Job, type_: TaskType) -> tuple[str, ...]:
    return tuple(it.name for it in job.catalog if it.type == type_ and it.connector == SPARK)


class WorkerContext:
    """A job, where its desk is, and what is at hand everywhere.

    Attributes:
        graph: of the job.
        columns: what expressions and functions of DataFrames see, by the names of their tasks;
            Spark knows.
        group_tasks: names of tasks of kind `group`.
        dataframe_tasks: names of tasks of kind `dataframe`, each after those that it follows.
        spark_inputs: names of inputs that one of Spark's readers reads.
        spark_outputs: names of outputs that one of Spark's writers writes.
        output_types: the columns of those of them that have a schema; Spark knows.
        is_direct: whether Spark writes what the last pass gives as it is: to files of one format
            with one schema.
        spark_windows: names of windows whose contents Spark keeps.
        window_files: a directory that all workers reach, for what is added to these.
        poll_s: how long to wait for something new.
        shared_file: one that is in the directory where Spark's writers stage, if it is no URL:
            what a machine that does not see it would write there would be lost.
        partitions: how many parts of a batch are worked on at once; changes with the cluster.

    Args:
        job: a valid one.
        inputs: those that can be read in any process, by the names of their tasks.
        outputs: by the names of their tasks.
        desk: where it is.
        run: what tells this run's batches from those of others.
        worker_bytes: memory that a worker may take.
        python_path: where else a worker finds functions.
    """

    def __init__(
        self,
        job: Job,
        inputs: Mapping[str, InputConnector],
        outputs: Mapping[str, OutputConnector],
        desk: CoordinatorEndpoint,
        run: str,
        worker_bytes: int,
        python_path: Sequence[str] = (),
    ) -> None:
        # As Spark sends functions itself: a job may have some that cannot be imported.
        self._job: bytes = cloudpickle.dumps(job)  # type: ignore[no-untyped-call]  # it has no types
        self.job_name = job.name
        self.graph = JobGraph(job)
        self.columns: Mapping[str, pa.DataType] = {}
        self.group_tasks = self._of_kind(TaskKind.GROUP)
        self.dataframe_tasks = self._of_kind(TaskKind.DATAFRAME)
        # What windows emit is read like an input.
        windowed = {window.task for window in job.windows}
        self.inputs = {name: ResultsInput() for name in windowed} | dict(inputs)
        self.outputs = outputs
        self.spark_inputs = _on_spark(job, TaskType.INPUT)
        self.spark_outputs = _on_spark(job, TaskType.OUTPUT)
        self.output_types: Mapping[str, pa.StructType] = {}
        self.is_direct = False
        # Spark asks one source after the other: its own must not wait for ours.
        self.poll_s = _POLL_BESIDE_SPARK_S if self.spark_inputs else _POLL_S
        self.spark_windows: tuple[str, ...] = ()
        self.window_files = Path()
        self.shared_file: str | None = None
        self._desk = desk
        self.run = run
        self.partitions = 1
        self._worker_bytes = worker_bytes
        self._python_path = python_path

    def _of_kind(self, kind: TaskKind) -> tuple[str, ...]:
        return tuple(name for name in self.graph.order if self.graph.tasks[name].kind is kind)

    def columns_of_stage(self, stage: int) -> dict[str, pa.DataType]:
        """What the expressions of a stage's tasks see, by the names of these."""
        stages = self.graph.stages
        computed = stages[stage].computed if stage < len(stages) else ()
        return {name: self.columns[name] for name in computed}

    @property
    def coordinator(self) -> CoordinatorClient:
        """This process's way to the desk."""
        return desk_client(self._desk)

    def read(self, delivery: InputDelivery) -> Iterator[RawRecords]:
        """What a slice has, from wherever it can be read."""
        connector = self.inputs[delivery.task]
        if delivery.position is not None and connector.is_portable:
            return connector.read(delivery.position)
        return self.coordinator.read_split(delivery)

    @property
    def program(self) -> CompiledJob:
        """The job in this process, with its lifecycles begun."""
        key = (os.getpid(), self._job)
        program = _programs.get(key)
        if program is None:
            try:
                self._check_shared_file()
                program = self.compile()
            except ConfigError as error:
                self.coordinator.report_fatal_error(f"Spark's workers cannot run the job: {error}")
                raise
            # A function that takes all memory is to fail by itself, and not to be killed with
            # everything beside it.
            resource.setrlimit(resource.RLIMIT_AS, (self._worker_bytes, resource.RLIM_INFINITY))
            # A pass has thousands of segments at a time, which the collector of cycles would look
            # through again and again: a third of the time of some passes.
            gc.set_threshold(_COLLECT_AFTER, 20, 20)
            program.start()
            atexit.register(program.stop)
            # After each task pyspark has all objects looked through, and most are of modules.
            gc.freeze()
            _programs[key] = program
        return program

    def _check_shared_file(self) -> None:
        if self.shared_file is not None and not os.path.exists(self.shared_file):
            raise ConfigError(
                f"{socket.gethostname()} does not see {self.shared_file}, where Spark's writers "
                "leave what they write; put the checkpoint into a directory that all machines share"
            )

    def compile(self) -> CompiledJob:
        """The job, for somebody who runs nothing of it or little."""
        # The environment has these too, but not that of every worker through Spark Connect.
        sys.path += [it for it in self._python_path if it not in sys.path]
        return CompiledJob(pickle.loads(self._job))

    def prepare(self) -> CompiledJob:
        """The same, as it is to be run just now."""
        program = self.program
        program.column_types = self.columns
        program.read_states = self.coordinator.read_states
        program.isolate_functions = self.coordinator.is_isolated()
        return program

    @property
    def heartbeat(self) -> Heartbeat:
        """The signs of life of this process."""
        inputs = (self.graph.tasks[name].pending_timeout_s for name in self.graph.inputs)
        return heartbeat(self.coordinator.report_progress, max(inputs, default=0.0) + BEAT_S)


_programs: dict[tuple[int, bytes], CompiledJob] = {}
