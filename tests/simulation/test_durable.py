"""Scenario `durable`: it passes with many seeds, and finds bugs that are planted."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from postroad.durable.bridge import Bridge
from postroad.durable.consumption import Consumption
from postroad.durable.dedup import FreshPage
from postroad.durable.exchange import Answer, Refusal, Verdict, Window
from postroad.durable.handling import Handling
from postroad.durable.intake import Acceptance
from postroad.durable.outflow import Outflow
from postroad.durable.shelf import Entry, Shelf
from postroad.durable.store import streams
from postroad.durable.store.database import Database
from postroad.durable.store.ledger import Ledger, News
from postroad.durable.store.outbox import Idempotence, Outbox
from postroad.durable.store.rows import OutPage, Stream
from postroad.durable.store.streams import Streams
from postroad.durable.store.turn import Turn
from postroad.durable.store.units import Unit, Work
from postroad.durable.store.writer import Writer
from postroad.testing import CRASH, CorrectnessFailure, LivenessFailure
from tests.simulation.planting import Plant, check_found, check_passed, runner_of

SEEDS = 100
# A planted bug must show within so many.
PLANTED_SEEDS = 60

run = runner_of("durable")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_seed(seed: int) -> None:
    check_passed(run(seed))


# The simulation finds what it is there for.


def plant_watermark_before_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    take, report = Streams._take, Writer._report
    untaken: dict[Streams, list[tuple[str, FreshPage, int, int]]] = {}

    def take_later(
        self: Streams, sender: str, fresh: FreshPage, ahead_ms: int, now_ms: int
    ) -> list[Refusal]:
        untaken.setdefault(self, []).append((sender, fresh, ahead_ms, now_ms))
        return []

    def take_now(page: tuple[str, FreshPage, int, int], ledger: Ledger) -> None:
        take(ledger.streams, *page)

    def report_and_take(self: Writer, units: Sequence[Unit], news: News) -> None:
        report(self, units, news)
        for page in untaken.pop(self._ledger.streams, []):
            self.submit(Work(partial(take_now, page)))

    monkeypatch.setattr(Streams, "_take", take_later)
    monkeypatch.setattr(Writer, "_report", report_and_take)


def plant_acceptance_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = Acceptance.apply

    def accept_and_tell(self: Acceptance, ledger: Ledger) -> None:
        accept(self, ledger)
        self.done.get_loop().call_soon_threadsafe(self.settle, None)

    monkeypatch.setattr(Acceptance, "apply", accept_and_tell)


def plant_settled_when_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Bridge._send

    async def send_and_settle(self: Bridge, outflow: Outflow, pages: Sequence[OutPage]) -> None:
        await send(self, outflow, pages)
        answer = Answer(Verdict.ACCEPTED, pages[-1].last, pages[-1].chain, 1, [])
        self._settle(outflow._course, answer, pages[0].first - 1)

    monkeypatch.setattr(Bridge, "_send", send_and_settle)


def plant_windows_not_sifted(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_all(watermark: int, chain: bytes, window: Window) -> Iterator[FreshPage]:
        first = window.first
        for page in window.pages:
            yield FreshPage(first, page, True)
            first += page.count

    monkeypatch.setattr(streams, "sift", take_all)


def plant_forgotten_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    remember = Streams._remember

    def forget(self: Streams, stream: Stream, before: int, refusals: Sequence[Refusal]) -> None:
        remember(self, stream, before, ())

    monkeypatch.setattr(Streams, "_remember", forget)


def plant_forgotten_idempotency_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Outbox, name: str, idempotence: Idempotence, id: int, now_ms: int) -> None:
        """Note nothing."""

    monkeypatch.setattr(Outbox, "remember_posted", forget)


def plant_commits_that_fail_unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    def go_on(self: Consumption, unit: Handling, error: Exception) -> None:
        """Take it for done."""

    monkeypatch.setattr(Consumption, "_break", go_on)


def plant_key_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    hold_back = Handling.hold_back

    def let_go(
        self: Handling, entry: Entry, *, due_ms: int, failures: int, error: str | None = None
    ) -> None:
        hold_back(self, entry, due_ms=due_ms, failures=failures, error=error)
        for _, aside in (*self.set_aside, *self.postponed):
            aside.holds_key = False

    monkeypatch.setattr(Handling, "hold_back", let_go)
    monkeypatch.setattr(Shelf, "fail", Shelf.finish)


class Nothing(Unit):
    """Has the statements of a transaction kept, and nothing else done."""

    def apply(self, ledger: Ledger) -> None:
        """Change nothing."""

    def settle(self, error: Exception | None) -> None:
        """Tell nobody."""


def plant_rows_apart_from_message(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Turn.end

    def submit_later(self: Consumption, unit: Handling) -> None:
        asyncio.get_running_loop().call_later(0.01, self.submit, unit)

    def end_without(self: Turn, unit: Unit | None) -> None:
        end(self, Nothing() if isinstance(unit, Handling) else unit)

    monkeypatch.setattr(Consumption, "expect", submit_later)
    monkeypatch.setattr(Turn, "end", end_without)


def plant_statements_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Turn.end

    def end_well(self: Turn, unit: Unit | None) -> None:
        end(self, unit or Nothing())

    monkeypatch.setattr(Turn, "end", end_well)


def plant_every_failed_commit_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(self: Ledger, database: Database) -> bool:
        return False

    monkeypatch.setattr(Ledger, "has_happened", deny)


def plant_batch_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    flush = Outbox.flush

    def flush_one(self: Outbox, now_ms: int) -> None:
        kept = {name: encoded[:1] for name, encoded in self._posted.items()}
        rest = {name: encoded[1:] for name, encoded in self._posted.items() if encoded[1:]}
        self._posted = kept
        flush(self, now_ms)
        self._posted = rest

    monkeypatch.setattr(Outbox, "flush", flush_one)


def plant_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    flush = Consumption._flush_acks

    def fragile(self: Consumption) -> None:
        if len(self._acks) > 1:
            raise IndexError("too many")
        flush(self)

    monkeypatch.setattr(Consumption, "_flush_acks", fragile)


@pytest.mark.parametrize(
    ("plant", "exit_code"),
    [
        (plant_watermark_before_letters, CorrectnessFailure.exit_code),
        (plant_acceptance_before_commit, LivenessFailure.exit_code),
        (plant_settled_when_sent, LivenessFailure.exit_code),
        (plant_windows_not_sifted, CorrectnessFailure.exit_code),
        (plant_forgotten_refusals, CorrectnessFailure.exit_code),
        (plant_forgotten_idempotency_keys, CorrectnessFailure.exit_code),
        (plant_commits_that_fail_unheard, LivenessFailure.exit_code),
        (plant_key_not_held, CorrectnessFailure.exit_code),
        (plant_rows_apart_from_message, CorrectnessFailure.exit_code),
        (plant_statements_not_undone, CorrectnessFailure.exit_code),
        (plant_every_failed_commit_undone, LivenessFailure.exit_code),
        (plant_batch_in_parts, CorrectnessFailure.exit_code),
        (plant_exception, CRASH),
    ],
)
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, exit_code: int
) -> None:
    plant(monkeypatch)
    check_found(run, range(PLANTED_SEEDS), exit_code)
