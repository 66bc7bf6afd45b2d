"""What Spark's workers need to know of a job; it goes to them with the job's source and sink."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping

import msgspec

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Job
from postroad.pipeline.media.medium import InputMedium, OutputMedium
from postroad.pipeline.program import Program

from .client import DeskClient, desk_client
from .questions import DeskAddress


class Order:
    """A job, where its desk is, and what is at hand everywhere.

    Args:
        job: a valid one.
        inputs: those that can be read in any process, by the names of their tasks.
        outputs: by the names of their tasks.
        desk: where it is.
        run: what tells this run's batches from those of others.
        partitions: how many parts a batch has, at most.
    """

    def __init__(
        self,
        job: Job,
        inputs: Mapping[str, InputMedium],
        outputs: Mapping[str, OutputMedium],
        desk: DeskAddress,
        run: str,
        partitions: int,
    ) -> None:
        self._job = msgspec.json.encode(job)
        self.inputs = inputs
        self.outputs = outputs
        self._desk = desk
        self.run = run
        self.partitions = partitions

    @property
    def desk(self) -> DeskClient:
        """This process's way to the desk."""
        return desk_client(self._desk)

    @property
    def program(self) -> Program:
        """The job in this process, with its lifecycles begun."""
        key = (os.getpid(), self._job)
        program = _programs.get(key)
        if program is None:
            try:
                program = Program(msgspec.json.decode(self._job, type=Job))
            except ConfigError as error:
                self.desk.refuse(f"Spark's workers cannot run the job: {error}")
                raise
            program.start()
            atexit.register(program.lifecycles.stop)
            _programs[key] = program
        return program


_programs: dict[tuple[int, bytes], Program] = {}
