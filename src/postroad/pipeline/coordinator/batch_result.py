"""What came of a batch, and of committing it."""

from __future__ import annotations

import enum

import msgspec

from postroad.pipeline.connectors.connector import Committable
from postroad.pipeline.coordinator.progress import TaskCounts
from postroad.pipeline.coordinator.records import FailedRoot, InputDelivery
from postroad.pipeline.coordinator.window_deltas import WindowFile
from postroad.pipeline.windows import JobWindowDelta


class BatchResult(msgspec.Struct):
    """What came of a batch."""

    deliveries: list[InputDelivery]
    failed: list[FailedRoot] = []
    staged: list[tuple[str, Committable]] = []
    """What output tasks are to write."""
    delta: JobWindowDelta = msgspec.field(default_factory=JobWindowDelta)
    """What it adds to windows."""
    window_files: list[WindowFile] = []
    """What it adds to windows that Spark keeps."""
    read: int = 0
    """Segments that belong to no delivery: Spark's own readers gave them."""
    made: int = 0
    """New roots that functions made and that were processed in the same batch."""
    tasks: dict[str, TaskCounts] = {}
    """What each task did."""
    emitted: list[tuple[int, str, bytes]] = []
    """New roots that functions of groups made, each with its task and segment."""
    states: list[tuple[str, bytes, bytes | None]] = []
    """States of groups that changed, each with its task and key."""


class PendingWrite(msgspec.Struct, frozen=True):
    """What was settled and is still to be written."""

    id: int
    task: str
    committable: Committable


class CommitResult(enum.Enum):
    """What came of settling a batch."""

    NOW = enum.auto()
    BEFORE = enum.auto()
    """It was settled already."""
    TOO_LATE = enum.auto()
    """Some of it was delivered again since, and will be settled there."""
