"""Windows whose contents Spark keeps: what batches add to them, and what comes back to be done.

A batch leaves files with what it adds; when it is committed they get the batch's number, and a
query of Spark takes them in that order. What it emits comes back in files, too, each of which is
delivered like a split of an input. Everything here runs inside the transaction of a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from postroad.core.errors import ConfigError
from postroad.durable.store.database import Database
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import InputConnector, Position, RawRecords, Split
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import FailedRoot, InputDelivery
from postroad.pipeline.coordinator.schema import has_tables
from postroad.pipeline.job import RetryPolicy
from postroad.pipeline.windows import decode_pane_window
from postroad.pipeline.windows.compiled import NO_TIME
from postroad.pipeline.windows.partials import PartialWindow

# The version of the schema that brought the tables.
_VERSION = 2


class WindowFile(msgspec.Struct, frozen=True):
    """What a part of a batch adds to a window."""

    window: str
    path: str
    latest_s: float
    counts: dict[int, int]
    """Segments of each extent, by the numbers of these."""


class CommittedDelta(msgspec.Struct, frozen=True):
    """What a batch adds to a window."""

    number: int
    paths: list[str]
    closed_before: int | None
    """Extents up to this number had ended: what is for them is too late."""
    closed: int
    """The same with this batch."""


class ResultFile(msgspec.Struct, frozen=True):
    """Segments that a window has emitted."""

    path: str
    segments: int


encode_results = msgspec.msgpack.Encoder().encode
"""The contents of such a file, from places and segments."""
_decode_results = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class ResultsInput(InputConnector):
    """Reads what windows have emitted, wherever that is to be done."""

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        return ()

    def read(self, place: Position) -> Iterator[RawRecords]:
        rows = _decode_results(Path(place["path"]).read_bytes())
        yield RawRecords("", [place for place, _ in rows], [segment for _, segment in rows])

    async def on_committed(self, places: Sequence[Position]) -> None:
        await asyncio.to_thread(remove_files, [place["path"] for place in places])


def remove_files(paths: Iterable[str]) -> None:
    """Remove files that nobody will read; blocks."""
    for path in paths:
        Path(path).unlink(missing_ok=True)


class WindowDeltas:
    """The windows of a job whose contents Spark keeps."""

    def __init__(self, program: CompiledJob) -> None:
        self._program = program
        self._job = program.job.name
        self.windows: Mapping[str, PartialWindow] = {}

    def candidates(self) -> list[str]:
        """The windows that Spark could keep."""
        return [it.name for it in self._program.windows.windows if PartialWindow.fits(it)]

    def assign(self, database: Database, run: str, names: Collection[str]) -> None:
        """Decide which windows Spark keeps, in the checkpoint of a run.

        Windows stay where their contents are.

        Raises:
            ConfigError: Spark keeps one of the others, or one that was changed since.
        """
        rows = self._execute(
            database,
            "SELECT name, run, definition FROM postroad_pipeline_spark_windows WHERE job = ?",
        )
        kept = {name: (its_run, definition) for name, its_run, definition in rows}
        panes = JobStore(database, self._job).panes() if names else []
        elsewhere = {decode_pane_window(key) for key, _ in panes}
        chosen = []
        for window in self._program.windows.windows:
            name, definition = window.name, self._definition(window.name)
            before = kept.get(name)
            if name not in names or (before is None and name in elsewhere):
                if before is not None:
                    raise ConfigError(
                        f"Spark keeps the contents of window {name!r} in the checkpoint of an "
                        "earlier run: run the job on Spark with that checkpoint, with the window "
                        "as it was, or give the window another name"
                    )
                continue
            if before is not None and before[1] != definition:
                raise ConfigError(
                    f"window {name!r} was changed, and Spark keeps contents of it: undo that, or "
                    "give the window another name"
                )
            if before is not None and before[0] != run and self._has_contents(database, name):
                raise ConfigError(
                    f"Spark keeps the contents of window {name!r} in the checkpoint of run "
                    f"{before[0]}, and this is that of run {run}: bring the other back, or, to go "
                    "on without what the window held, give it another name"
                )
            if before is None or before[0] != run:
                database.execute(
                    "INSERT INTO postroad_pipeline_spark_windows"
                    " (job, name, run, definition, batch, dropped) VALUES (?, ?, ?, ?, -1, 0)"
                    " ON CONFLICT (job, name) DO UPDATE SET run = excluded.run,"
                    " batch = excluded.batch",
                    (self._job, name, run, definition),
                )
            chosen.append(window)
        self.windows = {window.name: PartialWindow(window) for window in chosen}

    def _has_contents(self, database: Database, name: str) -> bool:
        """Whether something was ever added to a window."""
        rows = self._execute(
            database,
            "SELECT latest_s FROM postroad_pipeline_spark_windows WHERE job = ? AND name = ?",
            name,
        )
        return rows[0][0] is not None

    def _definition(self, name: str) -> str:
        window = self._program.windows.by_name[name]
        # What becomes of the contents may change.
        triggers = [msgspec.structs.replace(it.trigger, emit=None) for it in window.triggers]
        return msgspec.json.encode([window.window, triggers], order="deterministic").decode()

    # What batches add.

    def add(self, pen: JobStore, files: Iterable[WindowFile]) -> None:
        """A batch is committed: give its files a number, and count what comes too late."""
        database, (_, number) = pen.database, pen.counters()
        by_window: dict[str, list[WindowFile]] = {}
        for file in files:
            by_window.setdefault(file.window, []).append(file)
        for name, those in sorted(by_window.items()):
            window = self.windows[name]
            rows = self._execute(
                database,
                "SELECT latest_s FROM postroad_pipeline_spark_windows WHERE job = ? AND name = ?",
                name,
            )
            before_s = NO_TIME if rows[0][0] is None else float(rows[0][0])
            latest_s = max(before_s, *(it.latest_s for it in those))
            closed_before, closed = window.closed_index(before_s), window.closed_index(latest_s)
            assert closed is not None
            dropped = 0
            if closed_before is not None:
                counts = [count for it in those for count in it.counts.items()]
                dropped = sum(count for index, count in counts if index <= closed_before)
            delta = CommittedDelta(number, [it.path for it in those], closed_before, closed)
            database.execute(
                "UPDATE postroad_pipeline_spark_windows SET latest_s = ?, dropped = dropped + ?"
                " WHERE job = ? AND name = ?",
                (latest_s, dropped, self._job, name),
            )
            database.execute(
                "INSERT INTO postroad_pipeline_window_deltas (job, name, number, delta)"
                " VALUES (?, ?, ?, ?)",
                (self._job, name, number, msgspec.msgpack.encode(delta)),
            )

    def last_number(self, database: Database, name: str) -> int:
        """The number of the last batch that added something to a window, if that is still here."""
        rows = self._execute(
            database,
            "SELECT MAX(number) FROM postroad_pipeline_window_deltas WHERE job = ? AND name = ?",
            name,
        )
        return int(rows[0][0] or 0)

    def deltas(self, database: Database, name: str, after: int, upto: int) -> list[CommittedDelta]:
        """What a range of batches added to a window."""
        rows = self._execute(
            database,
            "SELECT delta FROM postroad_pipeline_window_deltas"
            " WHERE job = ? AND name = ? AND number > ? AND number <= ? ORDER BY number",
            name,
            after,
            upto,
        )
        return [msgspec.msgpack.decode(delta, type=CommittedDelta) for (delta,) in rows]

    def discard(self, database: Database, name: str, upto: int) -> list[str]:
        """Spark has taken what batches added, for good; returns the files, which nobody needs."""
        paths = [path for it in self.deltas(database, name, 0, upto) for path in it.paths]
        self._execute(
            database,
            "DELETE FROM postroad_pipeline_window_deltas"
            " WHERE job = ? AND name = ? AND number <= ?",
            name,
            upto,
        )
        return paths

    # What windows emit.

    def is_emitted(self, database: Database, run: str, name: str, batch: int) -> bool:
        """Whether what a window emitted with a batch of its query was taken in."""
        rows = self._execute(
            database,
            "SELECT 1 FROM postroad_pipeline_spark_windows"
            " WHERE job = ? AND name = ? AND run = ? AND batch < ?",
            name,
            run,
            batch,
        )
        return not rows

    def emit(
        self,
        pen: JobStore,
        name: str,
        batch: int,
        files: Iterable[ResultFile],
        failed: Sequence[FailedRoot],
        now_ms: int,
    ) -> None:
        """Take in what a window has emitted with a batch of its query."""
        task = self.windows[name].window.window.task
        pen.database.execute(
            "UPDATE postroad_pipeline_spark_windows SET batch = ? WHERE job = ? AND name = ?",
            (batch, self._job, name),
        )
        for file in files:
            pen.database.execute(
                "INSERT INTO postroad_pipeline_window_results (job, task, path, segments)"
                " VALUES (?, ?, ?, ?)",
                (self._job, task, file.path, file.segments),
            )
        pen.record_failures(failed, {task: RetryPolicy()}, now_ms, lambda: 0.0)

    def take_results(self, pen: JobStore, task: str, room: int, now_ms: int) -> list[InputDelivery]:
        """Deliver what windows of a task have emitted, about as much as there is room for."""
        rows = self._execute(
            pen.database,
            "SELECT id, path, segments FROM postroad_pipeline_window_results"
            " WHERE job = ? AND task = ? ORDER BY id LIMIT 100",
            task,
        )
        deliveries = []
        for id, path, segments in rows:
            if room <= 0:
                break
            room -= segments
            deliveries.append(pen.deliver(task, {"path": path}, segments, 0, now_ms))
            self._execute(
                pen.database,
                "DELETE FROM postroad_pipeline_window_results WHERE job = ? AND id = ?",
                id,
            )
        return deliveries

    def has_results(self, database: Database) -> bool:
        """Whether something that was emitted was not delivered yet."""
        statement = "SELECT 1 FROM postroad_pipeline_window_results WHERE job = ? LIMIT 1"
        return bool(self._execute(database, statement))

    def needed_files(self, database: Database) -> set[str]:
        """The files that are still to be read."""
        deltas = self._execute(
            database, "SELECT delta FROM postroad_pipeline_window_deltas WHERE job = ?"
        )
        results = self._execute(
            database, "SELECT path FROM postroad_pipeline_window_results WHERE job = ?"
        )
        decode = msgspec.msgpack.Decoder(CommittedDelta).decode
        return {path for (it,) in deltas for path in decode(it).paths} | {it for (it,) in results}

    def _execute(
        self, database: Database, statement: str, *parameters: object
    ) -> list[tuple[Any, ...]]:
        return database.execute(statement, (self._job, *parameters))


def read_dropped(pen: JobStore) -> dict[str, int]:
    """For each window that Spark keeps: how many segments it dropped because they were too late; a
    segment counts for each extent."""
    if not has_tables(pen.database, _VERSION):
        return {}
    rows = pen.database.execute(
        "SELECT name, dropped FROM postroad_pipeline_spark_windows WHERE job = ?", (pen.job,)
    )
    return {name: int(dropped) for name, dropped in rows}
