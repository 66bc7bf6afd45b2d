"""Scenario `flows`: it passes with many seeds, and finds bugs that are planted."""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from postroad.core.errors import NotRunningError, Reject
from postroad.durable import Store, Transaction
from postroad.durable.consumption import Consumption
from postroad.durable.posting import Post, append_posts, check_posts
from postroad.durable.shelf import Entry
from postroad.durable.store.database import Database, Row
from postroad.durable.store.ledger import Ledger
from postroad.durable.store.turn import Turn
from postroad.durable.store.units import Unit, Work
from postroad.flows import Flow, Status, tables
from postroad.flows.alarm import Alarm
from postroad.flows.commit import FlowCommit
from postroad.flows.dialogues import Dialogues
from postroad.flows.engine import Engine
from postroad.flows.events import Admitted, Heard, Transition
from postroad.flows.head import Head, Trouble
from postroad.flows.intake import Intake
from postroad.flows.log import Log
from postroad.flows.machine import Machine
from postroad.flows.messages import QUEUE, Letter, Rejection, encode_letter
from postroad.flows.records import Kind, Record
from postroad.flows.resident import Resident
from postroad.flows.schedule import Schedule
from postroad.flows.scheduling import Scheduler, _advance
from postroad.flows.stepping import Stepping
from postroad.flows.writing import OnSettled, Writing
from postroad.testing import CRASH
from tests.simulation.planting import CORRECTNESS, LIVENESS, SEEDS, Bug, Bugs, check_seeds

BUGS = Bugs()


@SEEDS
def test_seeds_pass(seeds: range) -> None:
    check_seeds("flows", seeds)


@BUGS.replace(FlowCommit, "apply", LIVENESS, 1)
def plant_forgotten_receipts(_: Any, self: FlowCommit, ledger: Ledger) -> None:
    self._write(ledger)
    append_posts(ledger, self._posts, check_posts(ledger, self._posts))


@BUGS.plant(CORRECTNESS, 1)
def plant_letters_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(posts: Sequence[Post], ledger: Ledger) -> None:
        append_posts(ledger, posts, check_posts(ledger, posts))

    def submit(store: Store, unit: FlowCommit) -> None:
        try:
            store.submit(unit)
        except NotRunningError as error:
            unit.settle(error)

    def post_and_release(self: Resident, store: Store) -> None:
        if any(it.is_begun for it in self.step_txs):
            return
        for unit in self.take_held():
            if unit._posts:
                work = Work(partial(post, unit._posts))
                work.done.add_done_callback(lambda done: done.exception())
                store.submit(work)
                unit._posts = ()
            asyncio.get_running_loop().call_later(0.01, submit, store, unit)

    monkeypatch.setattr(Resident, "release", post_and_release)


@BUGS.replace(Log, "__init__", CORRECTNESS, 1)
def plant_records_that_are_skipped(init: Any, self: Log, records: Sequence[Record]) -> None:
    is_skipped = bool(records) and records[-1].kind is Kind.STEP
    init(self, records[:-1] if is_skipped else records)


@BUGS.replace(Engine, "admit", CORRECTNESS, 6)
def plant_begun_before_commit(
    admit: Any, self: Engine, head: Head, event: Admitted
) -> asyncio.Future[None]:
    admit(self, head, event).add_done_callback(lambda done: done.exception())
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    told.set_result(None)
    return told


@BUGS.plant(CORRECTNESS, 0)
def plant_result_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    make_unit = Writing.make_unit
    engines: dict[Writing, Engine] = {}
    init = Engine.__init__

    def init_and_remember(self: Engine, *args: Any) -> None:
        init(self, *args)
        engines[self.writing] = self

    def make_and_tell(
        self: Writing,
        resident: Resident,
        machine: Machine,
        transition: Transition,
        tx: Transaction | None,
        on_settled: OnSettled,
    ) -> FlowCommit:
        if transition.is_over:
            engines[self].results.tell(machine.head)
        return make_unit(self, resident, machine, transition, tx, on_settled)

    monkeypatch.setattr(Engine, "__init__", init_and_remember)
    monkeypatch.setattr(Writing, "make_unit", make_and_tell)


class Nothing(Unit):
    """Has the statements of a transaction kept, and nothing else done."""

    def apply(self, ledger: Ledger) -> None:
        """Change nothing."""

    def settle(self, error: Exception | None) -> None:
        """Tell nobody."""


@BUGS.plant(CORRECTNESS, 4)
def plant_rows_apart_from_step(monkeypatch: pytest.MonkeyPatch) -> None:
    end, commit = Turn.end, Engine.commit
    stores: list[Any] = []

    def commit_and_remember(self: Engine, *args: Any) -> None:
        stores.append(self.store)
        try:
            commit(self, *args)
        finally:
            stores.pop()

    def end_apart(self: Turn, unit: Unit | None) -> None:
        if isinstance(unit, FlowCommit):
            end(self, Nothing())
            asyncio.get_running_loop().call_later(0.01, stores[-1].submit, unit)
        else:
            end(self, unit)

    monkeypatch.setattr(Engine, "commit", commit_and_remember)
    monkeypatch.setattr(Turn, "end", end_apart)


@BUGS.replace(FlowCommit, "_write", LIVENESS, 1)
def plant_mail_that_stays(write: Any, self: FlowCommit, ledger: Ledger) -> None:
    self.transition.forgets_mail = False
    write(self, ledger)


def _keep_only(monkeypatch: pytest.MonkeyPatch, is_kept: Callable[[Row], bool]) -> None:
    insert = tables.insert_mail

    def insert_some(database: Database, rows: Sequence[Row]) -> None:
        insert(database, [row for row in rows if is_kept(row)])

    monkeypatch.setattr(tables, "insert_mail", insert_some)


@BUGS.plant(CORRECTNESS, 3)
def plant_signals_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    _keep_only(monkeypatch, lambda row: row[2] is not None)


@BUGS.plant(CORRECTNESS, 1)
def plant_messages_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    _keep_only(monkeypatch, lambda row: row[2] is None)


@BUGS.replace(Alarm, "set", LIVENESS, 1)
def plant_alarm_that_is_not_set(_: Any, self: Alarm, due_ms: int) -> None:
    """Wake nobody."""


@BUGS.replace(Engine, "_on_lost", LIVENESS, 5)
def plant_commits_that_fail_unheard(_: Any, self: Engine, *args: Any, **kwargs: Any) -> None:
    """Take it for done."""


@BUGS.replace(Flow, "random", CORRECTNESS, 0)
def plant_other_random_numbers(_: Any, self: Flow) -> random.Random:
    return random.Random(random.random())


@BUGS.replace(Dialogues, "fail_all", LIVENESS, 1)
def plant_failures_that_nobody_is_told(
    _: Any, self: Dialogues, trouble: Trouble, was: Status, transition: Transition
) -> None:
    """Say nothing."""


@BUGS.replace(Dialogues, "hear", LIVENESS, 0)
def plant_paused_flows_do_not_listen(
    hear: Any, self: Dialogues, event: Heard, transition: Transition
) -> None:
    if self._head.status is Status.PAUSED:
        transition.receipts.append(event.receipt)
    else:
        hear(self, event, transition)


@BUGS.replace(Stepping, "start", LIVENESS, 1)
def plant_steps_that_are_not_resumed(start: Any, self: Stepping, id: int, asks: list[Any]) -> None:
    start(self, id, asks[:1])


@BUGS.replace(Resident, "release", CORRECTNESS, 0)
def plant_commits_overtaken_by_a_step(_: Any, self: Resident, store: Store) -> None:
    for unit in self.take_held():
        store.submit(unit)


@BUGS.replace(Scheduler, "_begin", CORRECTNESS, 102)
async def plant_schedules_apart_from_flows(
    begin: Any, self: Scheduler, schedule: Schedule, moved: Schedule, head: Head
) -> Any:
    await self._store.write(lambda ledger: _advance(ledger, schedule, moved))
    return await begin(self, moved, moved, head)


@BUGS.replace(Intake, "_reject", LIVENESS, 7)
def plant_rejections_apart_from_letters(
    _: Any, self: Intake, consumption: Consumption, entry: Entry, letter: Letter, text: str
) -> None:
    answer = Letter(letter.key, True, [Rejection(text, "planted")])
    peer, engine = entry.home.sender, self._engine

    async def reject() -> None:
        await asyncio.sleep(0.5)
        await engine.mail.post(peer, QUEUE, encode_letter(answer))

    consumption.acknowledge(entry)
    engine.background.spawn(reject(), "rejection")


@BUGS.replace(Intake, "_take", CORRECTNESS, 0)
def plant_garbage_in_silence(
    take: Any, self: Intake, consumption: Consumption, entry: Entry
) -> None:
    try:
        take(self, consumption, entry)
    except Reject:
        consumption.acknowledge(entry)


@BUGS.replace(Machine, "_move_time", CORRECTNESS, 31)
def plant_time_that_goes_back(_: Any, self: Machine, now_ms: int) -> None:
    self.now_ms = now_ms


@BUGS.replace(Engine, "set_timer", CRASH, 2)
def plant_exception(set_timer: Any, self: Engine, resident: Resident, machine: Machine) -> None:
    if machine.head.status is Status.RETRYING:
        raise IndexError("too many")
    set_timer(self, resident, machine)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.check_found_by("flows", monkeypatch)
