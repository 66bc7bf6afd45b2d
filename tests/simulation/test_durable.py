"""Scenario `durable`: it passes with many seeds, and finds bugs that are planted."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from postroad.durable.bridges.bridge import Bridge
from postroad.durable.bridges.protocol import (
    MessageRejection,
    NewBatch,
    StreamAck,
    StreamWindow,
    WindowStatus,
)
from postroad.durable.bridges.receiver import WindowMutation
from postroad.durable.bridges.send_window import BridgeSendWindow
from postroad.durable.consumers.dispatch_order import PrefetchBuffer, QueuedMessage
from postroad.durable.consumers.dispatcher import QueueDispatcher
from postroad.durable.consumers.disposition import DispositionMutation
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.mutations import FunctionMutation, Mutation
from postroad.durable.store.savepoints import SavepointTransaction
from postroad.durable.store.tables import streams
from postroad.durable.store.tables.outbox import IdempotencyRecord, OutboxTable
from postroad.durable.store.tables.rows import OutboxBatch, SenderStream
from postroad.durable.store.tables.store_tables import CommitEvent, StoreTables
from postroad.durable.store.tables.streams import StreamTable
from postroad.durable.store.writer import GroupCommitWriter
from postroad.testing import CRASH_EXIT_CODE
from tests.simulation.planting import CORRECTNESS, LIVENESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("durable", seeds)


@BUGS.plant(CORRECTNESS, 1)
def plant_watermark_before_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    take, report = StreamTable._store_batch, GroupCommitWriter._report
    untaken: dict[StreamTable, list[tuple[str, NewBatch, int, int]]] = {}

    def take_later(
        self: StreamTable, sender: str, fresh: NewBatch, ahead_ms: int, now_ms: int
    ) -> list[MessageRejection]:
        untaken.setdefault(self, []).append((sender, fresh, ahead_ms, now_ms))
        return []

    def take_now(page: tuple[str, NewBatch, int, int], ledger: StoreTables) -> None:
        take(ledger.streams, *page)

    def report_and_take(
        self: GroupCommitWriter, units: Sequence[Mutation], news: CommitEvent
    ) -> None:
        report(self, units, news)
        for page in untaken.pop(self._tables.streams, []):
            self.submit(FunctionMutation(partial(take_now, page)))

    monkeypatch.setattr(StreamTable, "_store_batch", take_later)
    monkeypatch.setattr(GroupCommitWriter, "_report", report_and_take)


@BUGS.replace(WindowMutation, "apply", LIVENESS, 8)
def plant_acceptance_before_commit(accept: Any, self: WindowMutation, ledger: StoreTables) -> None:
    accept(self, ledger)
    self.done.get_loop().call_soon_threadsafe(self.on_complete, None)


@BUGS.replace(Bridge, "_send", LIVENESS, 0)
async def plant_settled_when_sent(
    send: Any, self: Bridge, outflow: BridgeSendWindow, pages: Sequence[OutboxBatch]
) -> None:
    await send(self, outflow, pages)
    answer = StreamAck(WindowStatus.ACCEPTED, pages[-1].last, pages[-1].chain, 1, [])
    self._submit_ack(outflow._stream, answer, pages[0].first - 1)


@BUGS.replace(streams, "new_batches", CORRECTNESS, 7)
def plant_windows_not_sifted(
    _: Any, watermark: int, chain: bytes, window: StreamWindow
) -> Iterator[NewBatch]:
    first = window.first
    for page in window.batches:
        yield NewBatch(first, page, True)
        first += page.count


@BUGS.replace(StreamTable, "_record_progress", CORRECTNESS, 1)
def plant_forgotten_refusals(
    remember: Any,
    self: StreamTable,
    stream: SenderStream,
    before: int,
    refusals: Sequence[MessageRejection],
) -> None:
    remember(self, stream, before, ())


@BUGS.replace(OutboxTable, "record_sent", CORRECTNESS, 1)
def plant_forgotten_idempotency_keys(
    _: Any, self: OutboxTable, name: str, idempotence: IdempotencyRecord, id: int, now_ms: int
) -> None:
    """Note nothing."""


@BUGS.replace(QueueDispatcher, "_on_failed", LIVENESS, 4)
def plant_commits_that_fail_unheard(
    _: Any, self: QueueDispatcher, unit: DispositionMutation, error: Exception
) -> None:
    """Take it for done."""
    self.uncommitted -= len(unit.entries())


@BUGS.replace(DispositionMutation, "abort_successors", CORRECTNESS, 33)
def plant_nothing_stops_those_behind(_: Any, self: DispositionMutation) -> None:
    """Have the next ones of the key committed all the same."""


@BUGS.replace(PrefetchBuffer, "adopt", CORRECTNESS, 2)
def plant_messages_in_hand_that_are_read_again(
    adopt: Any, self: PrefetchBuffer, entry: QueuedMessage
) -> None:
    adopt(self, entry)
    self._claimed.clear()


@BUGS.plant(CORRECTNESS, 0)
def plant_key_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    defer = DispositionMutation.defer

    def let_go(
        self: DispositionMutation,
        entry: QueuedMessage,
        *,
        due_ms: int,
        failures: int,
        error: str | None = None,
    ) -> None:
        defer(self, entry, due_ms=due_ms, failures=failures, error=error)
        for _, aside in (*self.deferred, *self.rescheduled):
            aside.blocks_key = False

    monkeypatch.setattr(DispositionMutation, "defer", let_go)
    monkeypatch.setattr(PrefetchBuffer, "block_key", PrefetchBuffer.finish)


class Nothing(Mutation):
    """Has the statements of a transaction kept, and nothing else done."""

    def apply(self, ledger: StoreTables) -> None:
        """Change nothing."""

    def on_complete(self, error: Exception | None) -> None:
        """Tell nobody."""


@BUGS.plant(CORRECTNESS, 0)
def plant_rows_apart_from_message(monkeypatch: pytest.MonkeyPatch) -> None:
    end = SavepointTransaction.finish

    def submit_later(self: QueueDispatcher, unit: DispositionMutation) -> None:
        asyncio.get_running_loop().call_later(0.01, self.submit, unit)

    def end_without(self: SavepointTransaction, unit: Mutation | None) -> None:
        end(self, Nothing() if isinstance(unit, DispositionMutation) else unit)

    monkeypatch.setattr(QueueDispatcher, "track", submit_later)
    monkeypatch.setattr(SavepointTransaction, "finish", end_without)


@BUGS.replace(SavepointTransaction, "finish", CORRECTNESS, 1)
def plant_statements_not_undone(
    end: Any, self: SavepointTransaction, unit: Mutation | None
) -> None:
    end(self, unit or Nothing())


@BUGS.replace(StoreTables, "is_last_commit_durable", LIVENESS, 2)
def plant_every_failed_commit_undone(_: Any, self: StoreTables, database: StoreConnection) -> bool:
    return False


@BUGS.replace(OutboxTable, "flush", CORRECTNESS, 17)
def plant_batch_in_parts(flush: Any, self: OutboxTable, now_ms: int) -> None:
    first_batches = {name: encoded[:1] for name, encoded in self._queued.items()}
    rest = {name: encoded[1:] for name, encoded in self._queued.items() if encoded[1:]}
    self._queued = first_batches
    flush(self, now_ms)
    self._queued = rest


@BUGS.replace(QueueDispatcher, "_flush_acks", CRASH_EXIT_CODE, 6)
def plant_exception(flush: Any, self: QueueDispatcher) -> None:
    if len(self._acks) > 1:
        raise IndexError("too many")
    flush(self)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("durable", monkeypatch)
