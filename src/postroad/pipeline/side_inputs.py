"""Side inputs: tables that functions are given besides their segments, read as a whole."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Segment, SideInput, Task, TaskType
from postroad.pipeline.task_functions import FunctionLoop

logger = logging.getLogger("postroad.pipeline")

# Segments that are asked for at a time.
_SPLIT_SEGMENTS = 100_000


class SideInputs:
    """The side inputs of a task, as keyword arguments of its function."""

    def __init__(self, task: Task, loop: FunctionLoop) -> None:
        self._task = task.name
        self._inputs: Mapping[str, SideInput] = task.side_inputs
        self._loop = loop
        self._due_s: dict[str, float] = {}
        self.values: dict[str, Any] = {}

    def load(self) -> None:
        """Read all of them."""
        for name in self._inputs:
            self._load(name)

    def refresh(self) -> bool:
        """Read those again whose time has come; returns whether there are any."""
        now_s = time.monotonic()
        due = [name for name, due_s in self._due_s.items() if due_s <= now_s]
        for name in due:
            try:
                self._load(name)
            except Exception as error:
                self._plan(name)
                logger.warning(
                    "side input %r of task %r cannot be read again; the old one is used: %s",
                    name,
                    self._task,
                    error,
                )
        return bool(due)

    def _load(self, name: str) -> None:
        segments: list[Segment] = []
        self._loop.run(self._read(name, segments))
        key = self._inputs[name].key
        if key is None:
            self.values[name] = segments
        else:
            # Of several with one key the last one counts, as in every table that is appended to.
            self.values[name] = {segment.get(key): segment for segment in segments}
        self._plan(name)

    def _plan(self, name: str) -> None:
        refresh_s = self._inputs[name].refresh_s
        if refresh_s is not None:
            self._due_s[name] = time.monotonic() + refresh_s

    async def _read(self, name: str, segments: list[Segment]) -> None:
        # Connectors know durable stores, and those know much that a light import should not.
        from postroad.pipeline.connectors.registry import make_input

        side = self._inputs[name]
        connector = make_input(
            Task(
                name=f"{self._task}.{name}",
                type=TaskType.INPUT,
                connector=side.connector,
                options=side.options,
            )
        )
        if not connector.is_bounded:
            raise ConfigError(
                f"side input {name!r} of task {self._task!r} has no end;"
                " choose a bounded connector: side inputs are read as a whole"
            )
        await connector.open([])
        try:
            after = None
            while splits := await connector.plan_splits(after, _SPLIT_SEGMENTS):
                for split in splits:
                    for chunk in connector.read(split.position):
                        segments += map(connector.decode, chunk.raws)
                after = splits[-1].next_position
        finally:
            await connector.close()
