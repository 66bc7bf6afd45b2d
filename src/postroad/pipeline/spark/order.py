"""What Spark's workers need to know of a job; it goes to them with the job's source and sink."""

from __future__ import annotations

import atexit
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.graph import Graph
from postroad.pipeline.job import Job
from postroad.pipeline.media.medium import Chunk, InputMedium, OutputMedium
from postroad.pipeline.program import Program
from postroad.pipeline.records import Delivery

from .client import DeskClient, desk_client
from .questions import DeskAddress

if TYPE_CHECKING:
    import pyarrow as pa


class Order:
    """A job, where its desk is, and what is at hand everywhere.

    Attributes:
        graph: of the job.
        columns: what the expressions of tasks see, by the names of these; Spark knows.

    Args:
        job: a valid one.
        inputs: those that can be read in any process, by the names of their tasks.
        outputs: by the names of their tasks.
        desk: where it is.
        run: what tells this run's batches from those of others.
        partitions: how many parts a batch has, at most.
        worker_bytes: memory that a worker may take.
        python_path: where else a worker finds functions.
    """

    def __init__(
        self,
        job: Job,
        inputs: Mapping[str, InputMedium],
        outputs: Mapping[str, OutputMedium],
        desk: DeskAddress,
        run: str,
        partitions: int,
        worker_bytes: int,
        python_path: Sequence[str] = (),
    ) -> None:
        self._job = msgspec.json.encode(job)
        self.job_name = job.name
        self.graph = Graph(job)
        self.columns: Mapping[str, pa.DataType] = {}
        self.inputs = inputs
        self.outputs = outputs
        self._desk = desk
        self.run = run
        self.partitions = partitions
        self._worker_bytes = worker_bytes
        self._python_path = python_path

    def columns_at(self, stage: int) -> dict[str, pa.DataType]:
        """What the expressions of a stage's tasks see, by the names of these."""
        stages = self.graph.stages
        computed = stages[stage].computed if stage < len(stages) else ()
        return {name: self.columns[name] for name in computed}

    @property
    def desk(self) -> DeskClient:
        """This process's way to the desk."""
        return desk_client(self._desk)

    def read(self, delivery: Delivery) -> Iterator[Chunk]:
        """What a slice has, from wherever it can be read."""
        medium = self.inputs[delivery.task]
        if delivery.place is not None and medium.is_portable:
            return medium.read(delivery.place)
        return self.desk.read_slice(delivery)

    @property
    def program(self) -> Program:
        """The job in this process, with its lifecycles begun."""
        key = (os.getpid(), self._job)
        program = _programs.get(key)
        if program is None:
            # The environment has these too, but not that of every worker through Spark Connect.
            sys.path += [it for it in self._python_path if it not in sys.path]
            try:
                program = Program(msgspec.json.decode(self._job, type=Job))
            except ConfigError as error:
                self.desk.refuse(f"Spark's workers cannot run the job: {error}")
                raise
            # A function that takes all memory is to fail by itself, and not to be killed with
            # everything beside it.
            resource.setrlimit(resource.RLIMIT_AS, (self._worker_bytes, resource.RLIM_INFINITY))
            program.start()
            atexit.register(program.lifecycles.stop)
            _programs[key] = program
        return program

    def begin(self) -> Program:
        """The same, as it is to be run just now."""
        program = self.program
        program.is_careful = self.desk.is_careful()
        return program


_programs: dict[tuple[int, bytes], Program] = {}
