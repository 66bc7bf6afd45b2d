"""The accounts of the demo's load: every request begins once and ends once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.demo.traffic import Latencies, Ledger, make_payload, mirror
from postroad import errors

CLOSED = errors.ConnectionClosed("lost")
REFUSED = errors.ConnectFailed("refused")


def test_a_new_ledger_is_empty() -> None:
    totals = Ledger().totals()
    assert (totals.made, totals.answered, totals.failed, totals.in_flight) == (0, 0, 0, 0)


def test_requests_are_numbered_and_in_flight_until_they_end() -> None:
    ledger = Ledger()
    assert [ledger.begin() for _ in range(3)] == [1, 2, 3]
    assert ledger.totals().in_flight == 3
    ledger.answer(began_s=0, now_s=1, is_right=True)
    ledger.fail(CLOSED)
    totals = ledger.totals()
    assert (totals.made, totals.answered, totals.failed, totals.in_flight) == (3, 1, 1, 1)


def test_an_error_that_is_retried_ends_nothing() -> None:
    ledger = Ledger()
    ledger.begin()
    ledger.meet(REFUSED)
    assert (ledger.totals().met, ledger.totals().failed, ledger.totals().in_flight) == (1, 0, 1)
    ledger.answer(began_s=0, now_s=1, is_right=True, was_retried=True)
    assert (ledger.totals().answered, ledger.totals().answered_after_retry) == (1, 1)


def test_errors_are_told_apart_by_type_and_outcome() -> None:
    ledger = Ledger()
    ledger.fail(CLOSED)
    ledger.fail(errors.ConnectionClosed("early", outcome=errors.Outcome.NOT_SENT))
    ledger.fail(REFUSED)
    ledger.meet(REFUSED)
    assert [(it.reason, it.met, it.failed) for it in ledger.totals().troubles] == [
        ("ConnectionClosed (unknown)", 1, 1),
        ("ConnectionClosed (not sent)", 1, 1),
        ("ConnectFailed (not sent)", 2, 1),
    ]
    assert ledger.totals().unknown == 1


def test_wrong_replies_are_counted_among_the_answers() -> None:
    ledger = Ledger()
    ledger.answer(began_s=0, now_s=1, is_right=False)
    assert (ledger.totals().answered, ledger.totals().wrong) == (1, 1)


def test_the_longest_gap_with_an_error_in_it_is_the_outage() -> None:
    ledger = Ledger()
    ledger.fail(REFUSED)
    for now_s, is_troubled in ((100, False), (109, True), (110, True), (113, False), (114, False)):
        ledger.answer(began_s=now_s, now_s=now_s, is_right=True)
        if is_troubled:
            ledger.meet(REFUSED)
    assert (ledger.totals().longest_gap_s, ledger.totals().gap_ended_s) == (3, 113)


def test_totals_are_a_copy() -> None:
    ledger = Ledger()
    ledger.fail(CLOSED)
    before = ledger.totals()
    ledger.begin()
    ledger.fail(CLOSED)
    assert (before.made, before.failed) == (0, 1)


def test_latencies_are_taken_once() -> None:
    ledger = Ledger()
    ledger.answer(began_s=0, now_s=0.001, is_right=True)
    assert sum(ledger.take_latencies().values()) == 1
    assert ledger.take_latencies() == {}


def test_no_latencies_have_no_quantile() -> None:
    assert Latencies().quantile(0.5) is None


@given(st.lists(st.floats(1e-6, 100.0), min_size=1), st.floats(0.01, 1.0))
def test_quantiles_are_right_to_a_bucket(values: list[float], share: float) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    exact = next(v for i, v in enumerate(sorted(values), 1) if i >= share * len(values))
    assert latencies.quantile(share) == pytest.approx(exact, rel=0.06)


def test_merged_histograms_count_both() -> None:
    fast, slow = Latencies(), Latencies()
    for _ in range(99):
        fast.add(0.001)
    slow.add(1.0)
    fast.merge(slow.buckets)
    assert fast.quantile(0.5) == pytest.approx(0.001, rel=0.05)
    assert fast.quantile(1.0) == pytest.approx(1.0, rel=0.05)


def test_clocks_without_progress_do_no_harm() -> None:
    latencies = Latencies()
    latencies.add(0.0)
    assert latencies.quantile(0.5) == pytest.approx(1e-6, rel=0.05)


def test_payloads_differ_and_their_mirror_is_another() -> None:
    assert len({make_payload(number, 100) for number in range(1, 1_000)}) == 999
    payload = make_payload(7, 100)
    assert len(payload) == 100
    assert mirror(payload) != payload
    assert mirror(mirror(payload)) == payload
