"""The reconciliation of flows, and the databases it is made from."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo.board import FlowsBoard
from examples.demo.books import BankBooks, BankCounts, Entry
from examples.demo.flows_verdict import BankEvidence, flows_checks, flows_items
from examples.demo.mail_verdict import Absence
from examples.demo.tables import flows_row


def entries(account: str, *numbers: int, at_s: float = 0.0) -> list[Entry]:
    """Payments of one teller, one second after the other."""
    return [
        Entry(account, number, number * 100, at_s + index) for index, number in enumerate(numbers)
    ]


ALPHA = BankEvidence(
    name="alpha",
    debits=entries("alpha-1", 1, 2, 3, 4),
    credits=entries("beta-1", 1, 2, 3, at_s=0.4),
    settlements=entries("alpha-1", 1, 2, 4, at_s=1.1),
    refunds=entries("alpha-1", 3, at_s=6.0),
    runs=12,
    flows=7,
    unended=0,
    away=Absence(name="alpha", killed_s=2.5, returned_s=3.5),
)
BETA = BankEvidence(
    name="beta",
    debits=entries("beta-1", 1, 2, 3),
    credits=entries("alpha-1", 1, 2, 4, at_s=0.4),
    settlements=entries("beta-1", 1, 2, 3, at_s=1.1),
    refunds=[],
    runs=9,
    flows=7,
    unended=0,
    away=Absence(name="beta", killed_s=1.5, returned_s=2.25),
)


def test_good_evidence_passes_every_check() -> None:
    found = flows_checks([ALPHA, BETA])
    assert [check.text for check in found if not check.holds] == []
    assert [check.text for check in found] == [
        "payments begun 7 = settled 6 + refused 1: lost 0, duplicates 0",
        "settled by one bank 6 = credited by the other 6: known to one only 0, duplicates 0",
        "taken 16.00 = taken in 13.00 + given back 3.00",
        "steps ran 21 times = 20 rows + 1 cut off by the kills",
        "flows 14 = 2 x 7 payments; at work, paused or parked 0",
        "beta was away for 0.75 s: 2 payments under way went on, 2 begun meanwhile, beta paid on",
        "alpha was away for 1.00 s: 2 payments under way went on, 1 begun meanwhile, alpha paid on",
    ]


def test_steps_without_a_row_were_cut_off() -> None:
    assert [item.amount for item in flows_items([ALPHA, BETA])] == [4, 3, 6, 1, 1]


def alpha_with(table: str, rows: Sequence[Entry]) -> list[BankEvidence]:
    return [replace(ALPHA, **{table: rows}), BETA]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "banks",
    [
        pytest.param(alpha_with("settlements", ALPHA.settlements[:-1]), id="one never ended"),
        pytest.param(alpha_with("credits", ALPHA.credits[:-1]), id="one was not credited"),
        pytest.param(
            alpha_with("settlements", [*ALPHA.settlements, ALPHA.settlements[0]]),
            id="one was settled twice",
        ),
        pytest.param(alpha_with("debits", [*ALPHA.debits, ALPHA.debits[0]]), id="taken twice"),
        pytest.param(
            alpha_with("credits", [*ALPHA.credits, ALPHA.credits[0]]), id="taken in twice"
        ),
        pytest.param(
            alpha_with("refunds", [*ALPHA.refunds, ALPHA.refunds[0]]), id="given back twice"
        ),
        pytest.param(
            alpha_with("refunds", entries("alpha-1", 3, 4, at_s=6.0)),
            id="one was both settled and given back",
        ),
        pytest.param(
            alpha_with("settlements", [*ALPHA.settlements, *entries("alpha-1", 9)]),
            id="settled, never begun",
        ),
        pytest.param(
            alpha_with("credits", [*ALPHA.credits[:-1], Entry("beta-1", 3, 299, 2.4)]),
            id="a cent is missing",
        ),
        pytest.param([replace(ALPHA, runs=10), BETA], id="rows that no step wrote"),
        pytest.param([replace(ALPHA, unended=1), BETA], id="a flow has not ended"),
        pytest.param([replace(ALPHA, flows=8), BETA], id="a flow too many"),
        pytest.param(
            [ALPHA, replace(BETA, away=Absence(name="beta", killed_s=9.0, returned_s=9.5))],
            id="nothing paid after the kill",
        ),
        pytest.param(
            [ALPHA, replace(BETA, away=Absence(name="beta", killed_s=-1.0, returned_s=0.5))],
            id="nothing was under way at the kill",
        ),
        pytest.param(
            [
                replace(it, debits=[], credits=[], settlements=[], refunds=[], runs=0, flows=0)
                for it in (ALPHA, BETA)
            ],
            id="nothing happened at all",
        ),
    ],
)
def test_anything_that_does_not_add_up_fails(banks: list[BankEvidence]) -> None:
    assert not all(check.holds for check in flows_checks(banks))


def test_books_of_both_banks_are_counted_together(tmp_path: Path) -> None:
    paths = [tmp_path / "alpha.db", tmp_path / "beta.db"]
    for number, path in enumerate(paths, 1):
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            for table in ("debits", "credits", "settlements", "refunds"):
                writer.execute(f"CREATE TABLE {table} (account TEXT)")
            for table in ("debits",) * (3 * number) + ("credits", "settlements", "refunds"):
                writer.execute(f"INSERT INTO {table} VALUES ('a')")
    with closing(BankBooks(*paths)) as books:
        counts = books.count()
    assert (counts.begun, counts.credited, counts.settled, counts.refused) == (9, 2, 2, 2)
    assert counts.under_way == 5


def test_the_board_shows_how_far_payments_are() -> None:
    board = FlowsBoard()
    board.add(BankCounts(at_s=10.0))
    board.add(BankCounts(at_s=10.5, begun=40, credited=20, settled=10, refused=5))
    (row,) = board.rows
    assert row.is_eventful
    assert flows_row(row).lines[-1].text.split() == ["1", "s", "80", "40", "20", "10", "25"]
