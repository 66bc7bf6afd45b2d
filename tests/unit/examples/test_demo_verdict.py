"""The demo succeeds only if everything adds up."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from examples.demo.records import Totals, Trouble
from examples.demo.screen import Tone
from examples.demo.tables import reconciliation_lines, verdict_line
from examples.demo.tally import Tally
from examples.demo.verdict import Check, Evidence, Item, checks, items

GOOD = Evidence(
    totals=Totals(
        made=100,
        answered=90,
        answered_after_retry=5,
        longest_gap_s=2.0,
        gap_ended_s=12.0,
        troubles=[
            Trouble(error="ConnectionClosed", outcome="unknown", met=6, failed=6),
            Trouble(error="ConnectFailed", outcome="not sent", met=9, failed=4),
        ],
    ),
    handled=93,
    errors_before_kill=0,
    reconnects=1,
    killed_s=10.0,
    returned_s=11.5,
)


def with_totals(**changes: int | float) -> Evidence:
    return replace(GOOD, totals=msgspec.structs.replace(GOOD.totals, **changes))


def test_good_evidence_passes_every_check() -> None:
    assert all(check.holds for check in checks(GOOD))
    lines = reconciliation_lines(items(GOOD.totals), checks(GOOD))
    assert "  ok   made 100 = answered 90 + failed 10" in [line.text for line in lines]


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(with_totals(made=101), id="a request is missing"),
        pytest.param(with_totals(made=99), id="a request ended twice"),
        pytest.param(with_totals(wrong=1), id="a reply was wrong"),
        pytest.param(replace(GOOD, handled=89), id="an answer nobody gave"),
        pytest.param(replace(GOOD, handled=97), id="a request handled twice"),
        pytest.param(replace(GOOD, errors_before_kill=1), id="errors without a reason"),
        pytest.param(replace(GOOD, reconnects=0), id="no reconnect"),
        pytest.param(with_totals(gap_ended_s=9.0), id="no answer after the kill"),
        pytest.param(replace(GOOD, totals=Totals(), handled=0), id="nothing happened"),
    ],
)
def test_anything_that_does_not_add_up_fails(evidence: Evidence) -> None:
    assert not all(check.holds for check in checks(evidence))


def test_every_ending_of_a_request_has_its_item() -> None:
    assert [(item.what, item.amount) for item in items(GOOD.totals)] == [
        ("requests made", 100),
        ("answered at the first try", 85),
        ("answered after a retry", 5),
        ("failed: ConnectionClosed", 6),
        ("failed: ConnectFailed", 4),
    ]


def test_what_does_not_hold_is_marked() -> None:
    lines = reconciliation_lines([Item("made", 7)], [Check("good", True), Check("bad", False)])
    marked = {line.text.strip(): line.tone for line in lines}
    assert marked["ok   good"] is Tone.GOOD
    assert marked["NOT  bad"] is Tone.BAD
    assert (verdict_line(True).text, verdict_line(True).tone) == ("It all adds up.", Tone.GOOD)
    assert verdict_line(False).tone is Tone.BAD


def test_recovery_is_never_negative() -> None:
    assert GOOD.recovery_s == 0.5
    assert replace(GOOD, returned_s=12.5).recovery_s == 0.0


def test_a_tally_survives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "beta.tally"
    Tally.create(path)
    first = Tally(path)
    first.add()
    first.add()
    Tally(path).add()
    assert Tally.read(path) == 3
