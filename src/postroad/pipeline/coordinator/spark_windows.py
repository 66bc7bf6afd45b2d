"""Windows whose contents Spark keeps, and what a coordinator does for them.

Methods that take the records of the job run inside the transaction of a commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from postroad.core.errors import ConfigError
from postroad.durable.store import Store
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables.store_tables import StoreTables
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import FailedRoot, InputDelivery
from postroad.pipeline.coordinator.window_deltas import (
    CommittedDelta,
    ResultFile,
    WindowFile,
    remove_files,
)
from postroad.pipeline.coordinator.window_store import WindowStore
from postroad.pipeline.job import RetryPolicy
from postroad.pipeline.windows import decode_pane_window
from postroad.pipeline.windows.compiled import NO_TIME
from postroad.pipeline.windows.partials import PartialWindow

# How often to see whether something was added to a window.
_LOOK_S = 0.05


class SparkWindows:
    """Windows of a job whose contents Spark keeps.

    Args:
        program: the job.
        store: where its account is kept.
        others: keeps all other windows.
    """

    def __init__(self, program: CompiledJob, store: Store, others: WindowStore) -> None:
        self._program = program
        self._store = store
        self._others = others
        self._job = program.job.name
        self.windows: Mapping[str, PartialWindow] = {}
        """By their names."""

    def candidates(self) -> list[str]:
        """The windows that Spark could keep."""
        return [it.name for it in self._program.windows.windows if PartialWindow.fits(it)]

    async def assign(self, run: str, names: Collection[str] = ()) -> list[str]:
        """Decide which windows Spark keeps, in the checkpoint of a run; returns their names.

        Windows stay where their contents are.

        Args:
            run: its name.
            names: those that it may keep.

        Raises:
            ConfigError: Spark keeps one of the others, or one that was changed since.
        """
        await self._store.write(lambda ledger: self._assign(ledger.database, run, names))
        self._others.leave_out(self.windows)
        return list(self.windows)

    def _assign(self, database: StoreConnection, run: str, names: Collection[str]) -> None:
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

    def _has_contents(self, database: StoreConnection, name: str) -> bool:
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

    async def last_number(self, window: str) -> int:
        """The number of the last batch that added something to a window, if that is still here."""
        statement = (
            "SELECT MAX(number) FROM postroad_pipeline_window_deltas WHERE job = ? AND name = ?"
        )
        rows = await self._store.read(lambda it: self._execute(it, statement, window))
        return int(rows[0][0] or 0)

    async def poll(self, window: str, after: int, wait_s: float) -> int:
        """The number of the last batch that added to a window, when it is above the given one or
        when the time is over."""
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while True:
            latest = await self.last_number(window)
            left_s = deadline_s - asyncio.get_running_loop().time()
            if latest > after or left_s <= 0:
                return max(latest, after)
            await asyncio.sleep(min(left_s, _LOOK_S))

    async def list_deltas(self, window: str, after: int, upto: int) -> list[CommittedDelta]:
        """What a range of batches added to a window."""
        return await self._store.read(lambda it: self._deltas(it, window, after, upto))

    def _deltas(
        self, database: StoreConnection, name: str, after: int, upto: int
    ) -> list[CommittedDelta]:
        rows = self._execute(
            database,
            "SELECT delta FROM postroad_pipeline_window_deltas"
            " WHERE job = ? AND name = ? AND number > ? AND number <= ? ORDER BY number",
            name,
            after,
            upto,
        )
        return [msgspec.msgpack.decode(delta, type=CommittedDelta) for (delta,) in rows]

    async def discard(self, window: str, upto: int) -> None:
        """Spark has taken what batches added to a window, for good."""

        def remove(ledger: StoreTables) -> list[str]:
            deltas = self._deltas(ledger.database, window, 0, upto)
            self._execute(
                ledger.database,
                "DELETE FROM postroad_pipeline_window_deltas"
                " WHERE job = ? AND name = ? AND number <= ?",
                window,
                upto,
            )
            return [path for delta in deltas for path in delta.paths]

        await asyncio.to_thread(remove_files, await self._store.write(remove))

    # What windows emit.

    async def is_committed(self, run: str, window: str, batch: int) -> bool:
        """Whether what a window emitted with a batch of its query was taken in."""
        return await self._store.read(lambda it: self._is_emitted(it, run, window, batch))

    def _is_emitted(self, database: StoreConnection, run: str, name: str, batch: int) -> bool:
        rows = self._execute(
            database,
            "SELECT 1 FROM postroad_pipeline_spark_windows"
            " WHERE job = ? AND name = ? AND run = ? AND batch < ?",
            name,
            run,
            batch,
        )
        return not rows

    async def commit_batch(
        self,
        run: str,
        window: str,
        batch: int,
        files: Sequence[ResultFile],
        failed: Sequence[FailedRoot],
    ) -> None:
        """Take in, once, what a window emitted."""
        task = self.windows[window].window.window.task

        def commit(ledger: StoreTables) -> None:
            database = ledger.database
            if self._is_emitted(database, run, window, batch):
                return
            database.execute(
                "UPDATE postroad_pipeline_spark_windows SET batch = ? WHERE job = ? AND name = ?",
                (batch, self._job, window),
            )
            database.execute_many(
                "INSERT INTO postroad_pipeline_window_results (job, task, path, segments)"
                " VALUES (?, ?, ?, ?)",
                [(self._job, task, file.path, file.segments) for file in files],
            )
            pen, now_ms = JobStore(database, self._job), time.time_ns() // 1_000_000
            pen.record_failures(failed, {task: RetryPolicy()}, now_ms, lambda: 0.0)

        await self._store.write(commit)

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

    def has_results(self, database: StoreConnection) -> bool:
        """Whether something that was emitted was not delivered yet."""
        statement = "SELECT 1 FROM postroad_pipeline_window_results WHERE job = ? LIMIT 1"
        return bool(self._execute(database, statement))

    async def needed_files(self) -> set[str]:
        """Files of windows that are still to be read."""

        def find(database: StoreConnection) -> set[str]:
            deltas = self._execute(
                database, "SELECT delta FROM postroad_pipeline_window_deltas WHERE job = ?"
            )
            results = self._execute(
                database, "SELECT path FROM postroad_pipeline_window_results WHERE job = ?"
            )
            delivered = [it.position or {} for it in JobStore(database, self._job).deliveries()]
            decode = msgspec.msgpack.Decoder(CommittedDelta).decode
            return {
                *(path for (delta,) in deltas for path in decode(delta).paths),
                *(path for (path,) in results),
                *(place["path"] for place in delivered if "path" in place),
            }

        return await self._store.read(find)

    def _execute(
        self, database: StoreConnection, statement: str, *parameters: object
    ) -> list[tuple[Any, ...]]:
        return database.execute(statement, (self._job, *parameters))
