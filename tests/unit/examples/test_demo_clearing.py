"""The job that the demo runs on Spark, without Spark; its reconciliation, and what it reads."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from examples.demo.board import ClearingBoard
from examples.demo.books import Cleared, ClearingBooks, ClearingCounts, Posted
from examples.demo.clearing import BAD_EVERY, BANKS, JOB_FILE, Order, check, make_order, parse
from examples.demo.clearing_verdict import ClearingEvidence, clearing_checks, clearing_items
from examples.demo.mail_verdict import Absence
from examples.demo.screen import Line, Tone
from examples.demo.tables import CLEARING_HEADING, clearing_row
from postroad.durable import MemoryStore
from postroad.pipeline import LocalRunner, Pen, SeqInput, SeqOutput, TriggerType, read_job

ORDERS = [make_order(number) for number in range(1, 3 * BAD_EVERY + 1)]
GOOD_ORDERS = [it for it in ORDERS if it.cents is not None]
BAD_ORDERS = [it for it in ORDERS if it.cents is None]
AT_S = {it.number: index / 100 for index, it in enumerate(ORDERS)}


def as_posted(order: Order) -> dict[str, object]:
    return {"number": order.number, "bank": order.bank, "amount": order.amount}


def sums_by_bank(orders: Sequence[Order]) -> dict[str, int]:
    return {bank: sum(it.cents or 0 for it in orders if it.bank == bank) for bank in BANKS}


# The job.


def test_good_orders_are_cleared_with_their_amounts() -> None:
    cleared = [check(parse(as_posted(it))) for it in GOOD_ORDERS]
    assert cleared == [
        {"number": it.number, "bank": it.bank, "cents": it.cents} for it in GOOD_ORDERS
    ]
    assert {it.bank for it in GOOD_ORDERS} == set(BANKS)


@pytest.mark.parametrize(
    ("order", "reason"),
    list(
        zip(BAD_ORDERS, ["a payment of nothing", "no bank-99", "'12.5O' is no amount"], strict=True)
    ),
)
def test_every_kind_of_bad_order_is_refused(order: Order, reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        check(parse(as_posted(order)))


async def test_the_job_clears_what_is_good_and_keeps_what_is_bad() -> None:
    job = read_job(JOB_FILE)
    # A list has an end, and the job would not wait for a timer then.
    at_the_end = [msgspec.structs.replace(it, on=TriggerType.DRAINED) for it in job.triggers]
    store = MemoryStore()
    await store.open("demo")
    cleared, totals = SeqOutput(), SeqOutput()
    runner = LocalRunner(
        msgspec.structs.replace(job, triggers=at_the_end),
        {"payments": SeqInput([as_posted(it) for it in ORDERS])},
        {"cleared": cleared, "totals": totals},
        store,
    )
    await runner.run()
    dead = await store.read(lambda it: Pen(it, "clearing").dead(len(ORDERS)))
    await store.close()
    assert sorted(it["number"] for it in cleared.segments) == [it.number for it in GOOD_ORDERS]
    newest = {it["group"]: it["value"] for it in totals.segments}
    assert newest == sums_by_bank(GOOD_ORDERS)
    numbers = [msgspec.msgpack.decode(it.segment)["number"] for it in dead]
    assert sorted(numbers) == [it.number for it in BAD_ORDERS]
    assert {len(it.history) for it in dead} == {3}


# The reconciliation.

POSTED = [Posted(it.number, it.bank, it.amount, AT_S[it.number]) for it in ORDERS]
CLEARED = [Cleared(it.number, it.bank, it.cents or 0, AT_S[it.number] + 1.0) for it in GOOD_ORDERS]
DEAD = [(it.number, "Refused: a payment of nothing") for it in BAD_ORDERS]
GOOD = ClearingEvidence(
    posted=POSTED,
    cleared=CLEARED,
    totals=sums_by_bank(GOOD_ORDERS),
    dead=DEAD,
    away=Absence(name="beta", killed_s=5.0, returned_s=6.0),
    caught=17,
    resumed_s=8.5,
)
DEARER = CLEARED[0]._replace(cents=CLEARED[0].cents + 1)
CHEAPER = CLEARED[1]._replace(cents=CLEARED[1].cents - 1)


def test_good_evidence_passes_every_check() -> None:
    assert [it.text for it in clearing_checks(GOOD) if not it.holds] == []
    texts = [it.text for it in clearing_checks(GOOD)]
    assert texts[0] == "payments posted 1,500 = cleared 1,497 + dead 3: lost 0, duplicates 0"
    assert texts[-1] == (
        "beta was away for 1.00 s: 99 payments posted meanwhile,"
        " Spark went on 2.5 s after its return"
    )


def test_the_accounts_tell_what_became_of_payments() -> None:
    amounts = {(it.what, it.meaning.partition(":")[0]): it.amount for it in clearing_items(GOOD)}
    assert amounts["dead letters", "Refused"] == 3
    assert amounts["in Spark at the kill", "not acknowledged, so they came again"] == 17
    assert amounts["cleared before the kill", ""] + amounts["cleared after the kill", ""] == 1_497


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(replace(GOOD, cleared=CLEARED[1:]), id="a payment is lost"),
        pytest.param(replace(GOOD, cleared=[*CLEARED, CLEARED[0]]), id="cleared twice"),
        pytest.param(replace(GOOD, dead=[*DEAD, (1, "for nothing")]), id="cleared and dead"),
        pytest.param(
            replace(GOOD, cleared=CLEARED[1:], dead=[*DEAD, (1, "for nothing")]),
            id="a good one died",
        ),
        pytest.param(replace(GOOD, dead=DEAD[1:]), id="a dead letter is lost"),
        pytest.param(replace(GOOD, dead=[(DEAD[0][0], ""), *DEAD[1:]]), id="dead without a reason"),
        pytest.param(
            replace(GOOD, cleared=[*CLEARED, Cleared(9_999, "bank-1", 1, 9.0)]), id="never posted"
        ),
        pytest.param(
            replace(GOOD, cleared=[DEARER, CHEAPER, *CLEARED[2:]]), id="the sum alone is right"
        ),
        pytest.param(replace(GOOD, totals={**GOOD.totals, "bank-1": 5}), id="a total is wrong"),
        pytest.param(replace(GOOD, totals={}), id="there are no totals"),
        pytest.param(replace(GOOD, resumed_s=4.0), id="Spark never went on"),
        pytest.param(replace(GOOD, resumed_s=99.0), id="nothing cleared after the return"),
        pytest.param(
            replace(GOOD, posted=[], cleared=[], dead=[], totals={}), id="nothing happened at all"
        ),
    ],
)
def test_anything_that_does_not_add_up_fails(evidence: ClearingEvidence) -> None:
    assert not all(it.holds for it in clearing_checks(evidence))


# What is seen meanwhile.


def test_rows_of_clearing_are_differences_and_the_newest_state() -> None:
    board = ClearingBoard()
    board.add(ClearingCounts(at_s=100.0))
    board.add(ClearingCounts(at_s=100.5, posted=900, cleared=400, acked=500, pending=300))
    board.note("bang", 100.7)
    board.add(
        ClearingCounts(
            at_s=101.0, posted=2000, cleared=1400, acked=1500, pending=200, replayed=7, dead=5
        )
    )
    (row,) = board.rows
    note, line = clearing_row(row).lines
    assert note == Line("  --- 0.70 s: bang", Tone.NEWS)
    assert line.text.split() == ["1", "s", "2,000", "1,500", "1,400", "595", "200", "7", "5"]
    assert len(line.text) == len(CLEARING_HEADING)


def test_books_of_clearing_are_read_while_others_write(tmp_path: Path) -> None:
    path = tmp_path / "alpha.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE posted (number INTEGER, bank TEXT, amount TEXT, at_s REAL)")
        writer.execute("CREATE TABLE cleared (number INTEGER, bank TEXT, cents INTEGER, at_s REAL)")
        writer.execute("CREATE TABLE totals (bank TEXT, cents INTEGER)")
        with closing(ClearingBooks(path)) as books:
            writer.execute("INSERT INTO posted VALUES (1, 'a', '1.00', 0.5), (2, 'a', '2.00', 0.6)")
            assert books.count() == (2, 0)
            writer.execute("INSERT INTO cleared VALUES (1, 'a', 100, 0.7), (2, 'a', 200, 0.8)")
            writer.execute("INSERT INTO totals VALUES ('a', 100), ('a', 300)")
            assert books.count() == (2, 2)
            assert books.totals() == books.cleared_by_bank() == {"a": 300}
            assert books.posted()[1] == Posted(2, "a", "2.00", 0.6)
            assert books.cleared()[1] == Cleared(2, "a", 200, 0.8)
