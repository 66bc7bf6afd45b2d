"""The demo's accounts of cells: what the journals hold, and everything that may not add up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.demo.board import CellCounts, CellsBoard
from examples.demo.cells_journal import (
    Attempted,
    Copied,
    Entry,
    Handled,
    Journal,
    Published,
    read_journal,
)
from examples.demo.cells_verdict import CellsEvidence, cells_checks, cells_items
from examples.demo.mail_verdict import Absence
from examples.demo.records import Totals, Trouble
from examples.demo.tables import cells_row

pytestmark = pytest.mark.integration

LOST = Attempted(2, 1, 9.9, 11.4, outcome="unknown")
AGAIN = Attempted(2, 2, 11.4, 11.5, handler="sat-2")
GIVEN_UP = Attempted(3, 1, 10.05, 11.55, outcome="unknown")
GOOD = CellsEvidence(
    totals=Totals(
        made=5,
        answered=4,
        answered_after_retry=1,
        troubles=[Trouble(error="RequestTimeout", outcome="unknown", met=2, failed=1)],
    ),
    attempts=[
        Attempted(1, 1, 1.0, 1.1, handler="sat-1"),
        LOST,
        AGAIN,
        GIVEN_UP,
        Attempted(4, 1, 11.0, 11.2, handler="sat-1"),
        Attempted(5, 1, 19.9, 20.1, handler="sat-2"),
    ],
    # The second is published when the core is killed, the last while the other is restarted.
    published=[Published(1, 1.0), Published(2, 9.8), Published(3, 20.5)],
    # Call 3 was handled, and its answer was lost.
    handled={
        "sat-1": [Handled(1, 1), Handled(3, 1), Handled(4, 1)],
        "sat-2": [Handled(2, 2), Handled(5, 1)],
    },
    copies={
        "sat-1": [Copied(1), Copied(3)],
        "sat-2": [Copied(1), Copied(2), Copied(3)],
        "sat-3": [Copied(1), Copied(2), Copied(3)],
    },
    killed=Absence(name="core-1", killed_s=10.0, returned_s=12.0),
    noticed_s=10.1,
    restarted=Absence(name="core-2", killed_s=20.0, returned_s=21.0),
)


def failing(**changes: Any) -> list[str]:
    """The checks that do not hold of evidence in which something is different."""
    return [check.text for check in cells_checks(replace(GOOD, **changes)) if not check.holds]


def test_what_a_core_dies_with_may_be_lost() -> None:
    assert [check.text for check in cells_checks(GOOD)] == [
        "calls made 5 = answered 4 + failed 1; wrong replies 0",
        "handled 5 = answered 4 + 1 of 2 attempts with unknown outcome; twice 0",
        "published 3 x 3 subscribers = copies 8 + 1 lost with the core; missing 0, twice 0",
        "attempts that met an error 2, for another reason than the kill 0",
        "core-1 was away for 2.00 s: noticed within 100 ms, 2 calls answered meanwhile",
        "core-2 was away for 1.00 s in good order: 1 calls meanwhile, failed 0",
    ]
    assert failing() == []


def test_every_call_must_end_and_with_its_own_reply() -> None:
    unfinished = Totals(made=6, answered=4, troubles=GOOD.totals.troubles)
    (text,) = failing(totals=unfinished)
    assert text.startswith("calls made 6 = answered 4 + failed 1")
    wrong = Totals(made=5, answered=4, wrong=1, troubles=GOOD.totals.troubles)
    (text,) = failing(totals=wrong)
    assert text.endswith("wrong replies 1")


@pytest.mark.parametrize("name", ["sat-1", "sat-2"])
def test_no_attempt_may_be_handled_twice(name: str) -> None:
    handled = {**GOOD.handled, name: [*GOOD.handled[name], Handled(5, 1)]}
    (text,) = failing(handled=handled)
    assert "; twice 1" in text


def test_what_was_answered_must_have_been_handled_by_whoever_answered() -> None:
    (text,) = failing(handled={**GOOD.handled, "sat-2": [Handled(2, 2)]})
    assert text.endswith("answered and never handled 1")
    (text,) = failing(handled={"sat-1": [*GOOD.handled["sat-1"], Handled(9, 1)], "sat-2": []})
    assert text.endswith("answered and never handled 2, handled and known to have failed 1")


@pytest.mark.parametrize("name", ["sat-1", "sat-2", "sat-3"])
def test_every_subscriber_must_have_each_publication_once(name: str) -> None:
    missing = {**GOOD.copies, name: [Copied(1), Copied(2)]}
    (text,) = failing(copies=missing)
    assert "missing 1, twice 0" in text
    twice = {**GOOD.copies, name: [*GOOD.copies[name], Copied(3)]}
    (text,) = failing(copies=twice)
    assert "missing 0, twice 1" in text
    stray = {**GOOD.copies, name: [*GOOD.copies[name], Copied(4)]}
    (text,) = failing(copies=stray)
    assert text.endswith("never published 1")


def test_a_publication_long_before_the_kill_must_not_be_lost() -> None:
    published = [Published(1, 1.0), Published(2, 9.4), Published(3, 20.5)]
    (text,) = failing(published=published)
    assert "+ 0 lost with the core; missing 1" in text


@pytest.mark.parametrize(
    "failed",
    [
        Attempted(6, 1, 8.0, 9.9, outcome="unknown"),
        Attempted(6, 1, 10.2, 11.7, outcome="unknown"),
    ],
)
def test_nothing_may_fail_before_or_after_the_kill(failed: Attempted) -> None:
    (text,) = failing(attempts=[*GOOD.attempts, failed])
    assert text == "attempts that met an error 3, for another reason than the kill 1"


def test_nothing_may_fail_in_a_restart() -> None:
    failed = Attempted(6, 1, 19.0, 20.2, outcome="known")
    assert failing(attempts=[*GOOD.attempts, failed])[-1].endswith("2 calls meanwhile, failed 1")


def test_traffic_must_go_on_without_a_core() -> None:
    def without(*calls: int) -> list[Attempted]:
        return [it for it in GOOD.attempts if it.call not in calls]

    handled = {"sat-1": [Handled(1, 1), Handled(3, 1)], "sat-2": [Handled(5, 1)]}
    (text,) = failing(attempts=without(2, 4), handled=handled)
    assert text.endswith("0 calls answered meanwhile")
    handled = {"sat-1": [*GOOD.handled["sat-1"]], "sat-2": [Handled(2, 2)]}
    (text,) = failing(attempts=without(5), handled=handled)
    assert text.endswith("0 calls meanwhile, failed 0")


def test_the_table_of_accounts() -> None:
    assert [(item.what, item.amount) for item in cells_items(GOOD)] == [
        ("calls made", 5),
        ("answered at first", 3),
        ("answered after a retry", 1),
        ("failed: RequestTimeout", 1),
        ("handled by sat-1", 3),
        ("handled by sat-2", 2),
        ("published", 3),
        ("copies at sat-1", 2),
        ("copies at sat-2", 3),
        ("copies at sat-3", 3),
    ]


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    entries: list[Entry] = [Handled(1, 2), Copied(3), Published(4, 5.5), LOST, AGAIN]
    journal = Journal(str(path))
    for entry in entries[:3]:
        journal.write(entry)
    journal.flush()
    assert read_journal(path) == entries[:3]
    for entry in entries[3:]:
        journal.write(entry)
    journal.close()
    assert read_journal(path) == entries


def test_a_row_tells_of_one_second() -> None:
    board = CellsBoard()
    board.add(make_counts(at_s=100.0))
    trouble = Trouble(error="RequestTimeout", outcome="unknown", met=3)
    board.add(
        make_counts(
            at_s=100.5,
            totals=Totals(made=13, answered=10, troubles=[trouble]),
            handled={"sat-1": 4, "sat-2": 6},
            published=50,
            copies=150,
            routes=3,
        )
    )
    shown = cells_row(board.rows[0])
    assert [it.text.split() for it in shown.lines] == [
        ["1", "s", "20", "-", "-", "8", "12", "100", "300", "3", "3"]
    ]
    assert [it.text.strip() for it in shown.details] == ["3 RequestTimeout (unknown)"]


def make_counts(**changes: Any) -> CellCounts:
    counts = CellCounts(
        at_s=0.0,
        totals=Totals(),
        latencies={},
        handled={"sat-1": 0, "sat-2": 0},
        published=0,
        copies=0,
        routes=6,
    )
    return replace(counts, **changes)
