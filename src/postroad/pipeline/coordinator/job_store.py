"""The holding pen: what was read from the inputs of a job and is not done with.

A delivery, a split of an input or roots to retry, stays until it is committed; a failed root until
its next attempt, or as a dead letter. Deliveries have no gaps. All runs inside a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from postroad.core.timing import backoff
from postroad.durable.store.backends.backend import StoreConnection
from postroad.pipeline.connectors.connector import Committable, Position, Split
from postroad.pipeline.coordinator.records import (
    FailedRoot,
    InputDelivery,
    RootState,
    SegmentAttempt,
    StoredRoot,
    to_signed,
    to_unsigned,
)
from postroad.pipeline.job import RetryPolicy

_COLUMNS = ("task", "state", "generation", "due_ms", "segment", "history", "published")
_ROOT = ", ".join(("root", *_COLUMNS))
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)
_IS_DUE = (
    "state = 'waiting' AND (due_ms <= ? OR due_ms > ?) AND task = ? ORDER BY due_ms, root LIMIT ?"
)
# Runs without a checkpoint never come back.
_RUNS_KEPT = 100
# A statement has only so many parameters.
_ROOTS_AT_ONCE = 500

_encode = msgspec.msgpack.Encoder().encode


class JobStore:
    """The pen of one job."""

    def __init__(self, database: StoreConnection, job: str) -> None:
        self.database = database
        self.job = job

    def open(self) -> None:
        """Begin to keep account of the job, if nobody did."""
        self._execute(
            "INSERT INTO postroad_pipeline_jobs (job, delivered, settled, panes)"
            " VALUES (?, 0, 0, 0)"
            " ON CONFLICT (job) DO NOTHING"
        )

    # How far things are.

    def position(self, task: str) -> Position | None:
        """Where the next slice of an input begins; None at the very beginning."""
        rows = self._execute(
            "SELECT position FROM postroad_pipeline_inputs WHERE job = ? AND task = ?", task
        )
        return msgspec.json.decode(rows[0][0]) if rows else None

    def input_state(self, task: str) -> dict[str, Any]:
        """What an input has recorded with its splits, by keys."""
        rows = self._execute(
            "SELECT key, value FROM postroad_pipeline_input_state WHERE job = ? AND task = ?", task
        )
        return {key: msgspec.json.decode(value) for key, value in rows}

    def write_input_state(self, task: str, state: Mapping[str, Any]) -> None:
        """Record something for an input."""
        self.database.execute_many(
            "INSERT INTO postroad_pipeline_input_state (job, task, key, value) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (job, task, key) DO UPDATE SET value = excluded.value",
            [
                (self.job, task, key, msgspec.json.encode(value).decode())
                for key, value in state.items()
            ],
        )

    def pending(self, task: str, *, only_retries: bool = False) -> int:
        """Segments that were delivered by an input and are not settled."""
        rows = self._execute(
            "SELECT COALESCE(SUM(segments), 0) FROM postroad_pipeline_deliveries"
            f" WHERE job = ? AND task = ?{' AND place IS NULL' if only_retries else ''}",
            task,
        )
        return int(rows[0][0])

    def counters(self) -> tuple[int, int]:
        """Number of the last delivery, and how many batches were settled."""
        rows = self._execute("SELECT delivered, settled FROM postroad_pipeline_jobs WHERE job = ?")
        return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)

    def count(self, state: RootState) -> int:
        """Roots in a state."""
        rows = self._execute(
            "SELECT COUNT(*) FROM postroad_pipeline_roots WHERE job = ? AND state = ?", state
        )
        return int(rows[0][0])

    def next_due_ms(self) -> int | None:
        """When the first root that waits comes again."""
        rows = self._execute(
            "SELECT MIN(due_ms) FROM postroad_pipeline_roots WHERE job = ? AND state = 'waiting'"
        )
        return None if rows[0][0] is None else int(rows[0][0])

    # Delivering.

    def add_split(self, task: str, split: Split, now_ms: int) -> InputDelivery:
        """Deliver a slice of an input: its clock starts."""
        self._execute_plain(
            "INSERT INTO postroad_pipeline_inputs (job, task, position)"
            " VALUES (?, ?, ?) ON CONFLICT (job, task) DO UPDATE SET position ="
            " excluded.position",
            (self.job, task, msgspec.json.encode(split.next_position).decode()),
        )
        self.write_input_state(task, split.state)
        return self.deliver(task, split.position, split.estimated_segments, 0, now_ms)

    def take_due_retries(
        self, task: str, now_ms: int, limit: int, latest_ms: int = 1 << 62
    ) -> list[InputDelivery]:
        """Deliver roots of a task that are due, at most so many, in one go; see `due_roots`."""
        rows = self._execute(
            f"SELECT root FROM postroad_pipeline_roots WHERE job = ? AND {_IS_DUE}",
            *(now_ms, latest_ms, task, max(limit, 0)),
        )
        if not rows:
            return []
        delivery = self.deliver(task, None, len(rows), 0, now_ms)
        for (root,) in rows:
            self._execute_plain(
                "UPDATE postroad_pipeline_roots SET state = 'pending', delivery = ?"
                " WHERE job = ? AND root = ?",
                (delivery.number, self.job, root),
            )
        return [delivery]

    def due_roots(
        self, task: str, now_ms: int, limit: int, latest_ms: int = 1 << 62
    ) -> list[StoredRoot]:
        """Roots of a task whose turn has come, at most so many.

        What is due after `latest_ms`, when the longest pause is over, is so by another clock: now.
        """
        return self._roots(_IS_DUE, now_ms, latest_ms, task, limit)

    def retire(self, roots: Sequence[int]) -> None:
        """Roots are done with."""
        self.database.execute_many(
            "DELETE FROM postroad_pipeline_roots WHERE job = ? AND root = ?",
            [(self.job, to_signed(root)) for root in roots],
        )

    def deliver(
        self, task: str, place: Position | None, segments: int, generation: int, now_ms: int
    ) -> InputDelivery:
        """Deliver something: a slice, or without a place roots that come again."""
        delivered, settled = self.counters()
        delivery = InputDelivery(delivered + 1, task, place, segments, generation, now_ms, settled)
        self._execute_plain(
            "UPDATE postroad_pipeline_jobs SET delivered = ? WHERE job = ?",
            (delivery.number, self.job),
        )
        text = None if place is None else msgspec.json.encode(place).decode()
        self._execute_plain(
            "INSERT INTO postroad_pipeline_deliveries (job, number, task, place, segments,"
            " generation, admitted_ms, settled_then) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self.job, delivery.number, task, text, segments, generation, now_ms, settled),
        )
        return delivery

    def deliveries(self, after: int = 0, upto: int | None = None) -> list[InputDelivery]:
        """Those that are not settled, in order."""
        rows = self._execute_plain(
            "SELECT number, task, place, segments, generation, admitted_ms, settled_then"
            " FROM postroad_pipeline_deliveries WHERE job = ? AND number > ? AND number <= ?"
            " ORDER BY number",
            (self.job, after, (1 << 62) if upto is None else upto),
        )
        return [
            InputDelivery(number, task, _to_place(place), segments, generation, admitted_ms, then)
            for number, task, place, segments, generation, admitted_ms, then in rows
        ]

    def delivery_roots(
        self, delivery: int, after: int | None = None, limit: int = 1 << 62
    ) -> list[StoredRoot]:
        """The roots that come again with a delivery; `after` is the last one of those before."""
        where, last = ("", ()) if after is None else (" AND root > ?", (to_signed(after),))
        return self._roots(
            f"delivery = ? AND state = 'pending'{where} ORDER BY root LIMIT ?",
            delivery,
            *last,
            limit,
        )

    def redeliver_expired(
        self, task: str, before_ms: int, settled_max: int, now_ms: int
    ) -> list[InputDelivery]:
        """Deliver again what was delivered before some time and never settled.

        Args:
            task: the input.
            before_ms: what was admitted before has had its time.
            settled_max: and since then other batches were settled: that many in all, or fewer, at
                its admission. Where nothing moves at all, to repeat everything would not help.
            now_ms: the time.
        """
        late = [
            it
            for it in self.deliveries()
            if it.task == task
            and it.started_ms < before_ms
            and it.committed_batches_at_start <= settled_max
        ]
        return [self.redeliver(it, now_ms) for it in late]

    def redeliver(self, delivery: InputDelivery, now_ms: int) -> InputDelivery:
        """Deliver something under a new number, as if for the first time but for its generation."""
        self._remove_delivery(delivery.number)
        new = self.deliver(
            delivery.task, delivery.position, delivery.segments, delivery.generation + 1, now_ms
        )
        self._execute_plain(
            "UPDATE postroad_pipeline_roots SET delivery = ?, generation = generation + 1"
            " WHERE job = ? AND delivery = ? AND state = 'pending'",
            (new.number, self.job, delivery.number),
        )
        return new

    # Settling.

    def last_committed_batch(self, run: str) -> int:
        """The last batch of a run that was settled; -1 if none was."""
        rows = self._execute(
            "SELECT batch FROM postroad_pipeline_batches WHERE job = ? AND run = ?", run
        )
        return int(rows[0][0]) if rows else -1

    def record_batch(self, run: str, batch: int) -> None:
        """A batch is settled with this commit."""
        is_new = self.last_committed_batch(run) < 0
        self._execute("UPDATE postroad_pipeline_jobs SET settled = settled + 1 WHERE job = ?")
        _, settled = self.counters()
        self._execute_plain(
            "INSERT INTO postroad_pipeline_batches (job, run, batch, settled) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (job, run) DO UPDATE SET batch = excluded.batch,"
            " settled = excluded.settled",
            (self.job, run, batch, settled),
        )
        if is_new:
            self._execute(
                "DELETE FROM postroad_pipeline_batches WHERE job = ? AND settled < ("
                "SELECT MIN(settled) FROM (SELECT settled FROM postroad_pipeline_batches"
                " WHERE job = ? ORDER BY settled DESC LIMIT ?) AS latest)",
                self.job,
                _RUNS_KEPT,
            )

    def is_current(self, delivery: InputDelivery) -> bool:
        """Whether a delivery is still in the pen, and was not delivered again since."""
        rows = self._execute(
            "SELECT 1 FROM postroad_pipeline_deliveries WHERE job = ? AND number = ?",
            delivery.number,
        )
        return bool(rows)

    def complete_delivery(self, delivery: InputDelivery) -> None:
        """A delivery is done with."""
        self._remove_delivery(delivery.number)
        self._execute(
            "DELETE FROM postroad_pipeline_roots WHERE job = ? AND delivery = ?"
            " AND state = 'pending'",
            delivery.number,
        )

    def _remove_delivery(self, number: int) -> None:
        self._execute(
            "DELETE FROM postroad_pipeline_deliveries WHERE job = ? AND number = ?", number
        )

    def record_failures(
        self,
        failed: Sequence[FailedRoot],
        policies: Mapping[str, RetryPolicy],
        now_ms: int,
        chance: Callable[[], float],
    ) -> list[RootState]:
        """Keep roots that a batch could not finish: for another attempt, or as dead letters.

        Args:
            failed: all of them.
            policies: what decides, by the task that they come in by.
            now_ms: the time.
            chance: for the jitter of their pauses.

        Returns:
            What has become of each.
        """
        known = self._known([it.root for it in failed])
        kept = []
        for it in failed:
            history, published = [it.attempt], it.published
            if (before := known.get(it.root)) is not None:
                history = [*before.history, it.attempt]
                published = sorted({*before.published, *published})
            policy, failures = policies[it.task], len(history)
            state, due_ms = RootState.DEAD, now_ms
            if not it.is_permanent and failures < policy.attempts:
                pause_s = backoff(
                    failures,
                    initial_delay_s=policy.first_s,
                    max_delay_s=policy.max_s,
                    jitter=chance(),
                )
                state, due_ms = RootState.WAITING, now_ms + round(pause_s * 1000)
            kept.append(
                StoredRoot(
                    it.root,
                    it.task,
                    state,
                    it.generation + 1,
                    due_ms,
                    it.segment,
                    history,
                    published,
                )
            )
        self._put(kept)
        return [it.state for it in kept]

    def _known(self, roots: Sequence[int]) -> dict[int, StoredRoot]:
        """Those of some roots that are here."""
        found: dict[int, StoredRoot] = {}
        for start in range(0, len(roots), _ROOTS_AT_ONCE):
            some = [to_signed(root) for root in roots[start : start + _ROOTS_AT_ONCE]]
            marks = ", ".join("?" * len(some))
            found |= {it.root: it for it in self._roots(f"root IN ({marks})", *some)}
        return found

    def insert_root(self, root: int, task: str, segment: bytes, now_ms: int) -> None:
        """Take in a root that no input gave: what a window emitted."""
        self._put([StoredRoot(root, task, RootState.WAITING, 0, now_ms, segment, [], [])])

    def _put(self, roots: Iterable[StoredRoot]) -> None:
        self.database.execute_many(
            f"INSERT INTO postroad_pipeline_roots (job, {_ROOT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
            f" ON CONFLICT (job, root) DO UPDATE SET delivery = NULL, {_REPLACED}",
            (
                (
                    self.job,
                    to_signed(it.root),
                    it.task,
                    it.state.value,
                    it.generation,
                    it.due_ms,
                    it.segment,
                    _encode(it.history),
                    _encode(it.published),
                )
                for it in roots
            ),
        )

    # Outputs.

    def add_pending_commit(self, task: str, staged: Committable) -> int:
        """Note that something was staged, and is to be published for certain; returns its id."""
        rows = self._execute(
            "INSERT INTO postroad_pipeline_publications (job, task, staged) VALUES (?, ?, ?)"
            " RETURNING id",
            task,
            msgspec.msgpack.encode(staged),
        )
        return int(rows[0][0])

    def pending_commits(self) -> list[tuple[int, str, Committable]]:
        """What is to be published: ids, output tasks and what they staged, in order."""
        rows = self._execute(
            "SELECT id, task, staged FROM postroad_pipeline_publications WHERE job = ? ORDER BY id"
        )
        return [(id, task, msgspec.msgpack.decode(staged)) for id, task, staged in rows]

    def remove_pending_commit(self, id: int) -> None:
        """It is published."""
        self._execute("DELETE FROM postroad_pipeline_publications WHERE job = ? AND id = ?", id)

    # Windows.

    def panes(self, limit: int | None = None) -> list[tuple[bytes, bytes]]:
        """Everything that windows hold, or some of it."""
        every = "SELECT pane, content FROM postroad_pipeline_panes WHERE job = ?"
        if limit is None:
            rows = self._execute(every)
        else:
            rows = self._execute(f"{every} ORDER BY pane LIMIT ?", limit)
        return [(bytes(pane), bytes(content)) for pane, content in rows]

    def pane(self, pane: bytes) -> bytes | None:
        """One of the rows."""
        rows = self._execute(
            "SELECT content FROM postroad_pipeline_panes WHERE job = ? AND pane = ?", pane
        )
        return bytes(rows[0][0]) if rows else None

    def panes_version(self) -> int:
        """How often they were changed."""
        rows = self._execute("SELECT panes FROM postroad_pipeline_jobs WHERE job = ?")
        return int(rows[0][0])

    def write_panes(self, changes: Mapping[bytes, bytes | None]) -> int:
        """Store what has changed, None deleting a pane; returns the new version."""
        for pane, content in changes.items():
            self._execute("DELETE FROM postroad_pipeline_panes WHERE job = ? AND pane = ?", pane)
            if content is not None:
                self._execute(
                    "INSERT INTO postroad_pipeline_panes (job, pane, content) VALUES (?, ?, ?)",
                    pane,
                    content,
                )
        rows = self._execute(
            "UPDATE postroad_pipeline_jobs SET panes = panes + 1 WHERE job = ? RETURNING panes"
        )
        return int(rows[0][0])

    def list_waiting(self, limit: int) -> list[StoredRoot]:
        """Roots that come again, the next ones first."""
        return self._roots("state = 'waiting' ORDER BY due_ms, root LIMIT ?", limit)

    # Dead letters.

    def list_dead(self, limit: int, after: int | None = None) -> list[StoredRoot]:
        """Dead letters, some at a time; `after` is the last one of those before."""
        if after is None:
            return self._roots("state = 'dead' ORDER BY root LIMIT ?", limit)
        return self._roots(
            "state = 'dead' AND root > ? ORDER BY root LIMIT ?", to_signed(after), limit
        )

    def find(self, root: int) -> StoredRoot | None:
        """A root that failed, if it is here."""
        found = self._roots("root = ?", to_signed(root))
        return found[0] if found else None

    def retry_dead(self, root: int | None, now_ms: int) -> int:
        """Have a dead letter, or all, come again with a clean record; returns how many."""
        return self._change_dead(
            "UPDATE postroad_pipeline_roots SET state = 'waiting', due_ms = ?, history = ?",
            root,
            (now_ms, msgspec.msgpack.encode([])),
        )

    def drop_dead(self, root: int | None) -> int:
        """Forget a dead letter, or all; returns how many."""
        return self._change_dead("DELETE FROM postroad_pipeline_roots", root, ())

    def _change_dead(self, change: str, root: int | None, parameters: tuple[Any, ...]) -> int:
        where, which = ("", ()) if root is None else (" AND root = ?", (to_signed(root),))
        rows = self._execute_plain(
            f"{change} WHERE job = ? AND state = 'dead'{where} RETURNING root",
            (*parameters, self.job, *which),
        )
        return len(rows)

    # Statements.

    def _roots(self, where: str, *parameters: object) -> list[StoredRoot]:
        rows = self._execute(
            f"SELECT {_ROOT} FROM postroad_pipeline_roots WHERE job = ? AND {where}", *parameters
        )
        return [
            StoredRoot(
                to_unsigned(root),
                task,
                RootState(state),
                generation,
                due_ms,
                bytes(segment),
                msgspec.msgpack.decode(history, type=list[SegmentAttempt]),
                msgspec.msgpack.decode(published, type=list[int]),
            )
            for root, task, state, generation, due_ms, segment, history, published in rows
        ]

    def _execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """A statement whose first parameter is the job."""
        return self._execute_plain(statement, (self.job, *parameters))

    def _execute_plain(self, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        return self.database.execute(statement, parameters)


def _to_place(text: str | None) -> Position | None:
    return None if text is None else msgspec.json.decode(text)
