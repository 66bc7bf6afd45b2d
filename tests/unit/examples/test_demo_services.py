"""The demo's accounts of services: what the journals hold, and everything that may not add up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples.demo.board import ServiceCounts, ServicesBoard
from examples.demo.cells_journal import Journal
from examples.demo.javascript import LeftOut, find_tools
from examples.demo.mail_verdict import Absence
from examples.demo.records import MeetingReport, MeetingSide, Totals, Trouble
from examples.demo.services_journal import (
    Emitted,
    Entry,
    Heard,
    Streamed,
    Summed,
    Taken,
    Tried,
    read_services_journal,
)
from examples.demo.services_verdict import (
    ORDER,
    PRICE,
    ServicesEvidence,
    meeting_checks,
    services_checks,
    services_items,
)
from examples.demo.tables import services_row

GOOD = ServicesEvidence(
    totals=Totals(
        made=5,
        answered=4,
        answered_after_retry=1,
        troubles=[Trouble(error="RequestTimeoutError", outcome="unknown", met=2, failed=1)],
    ),
    tried=[
        Tried(ORDER, "a1", "desk", 1.0, 1.2),
        Tried(PRICE, "p1", "quotes-1", 1.1, 1.15),
        # Lost with the node and tried again; the price was told, and nobody heard it.
        Tried(ORDER, "a2", "desk", 9.9, 11.0, "RequestTimeoutError"),
        Tried(PRICE, "p2", "quotes-1", 9.95, 10.95, "RequestTimeoutError"),
        Tried(ORDER, "a3", "desk", 11.0, 11.1),
        Tried(PRICE, "p3", "quotes-2", 11.0, 11.1),
        # Lost and given up.
        Tried(ORDER, "a4", "desk", 10.5, 11.6, "RequestTimeoutError"),
        Tried(PRICE, "p4", "quotes-1", 10.5, 11.5, "RequestTimeoutError"),
        # While it is away, and when it is back.
        Tried(ORDER, "a5", "desk", 12.5, 12.6),
        Tried(PRICE, "p5", "quotes-2", 12.5, 12.6),
        Tried(ORDER, "a6", "desk", 15.0, 15.2),
        Tried(PRICE, "p6", "quotes-1", 15.1, 15.2),
    ],
    taken={
        "desk": [Taken(ORDER, f"a{number}") for number in range(1, 7)],
        "quotes-1": [Taken(PRICE, "p1"), Taken(PRICE, "p2"), Taken(PRICE, "p6")],
        "quotes-2": [Taken(PRICE, "p3"), Taken(PRICE, "p5")],
    },
    # The second is for the node that is killed.
    emitted=[Emitted(1, 1.0), Emitted(2, 9.8), Emitted(3, 15.0)],
    heard={"quotes": [Heard(1), Heard(3)], "audit": [Heard(1), Heard(2), Heard(3)]},
    streams=[
        Streamed(1, 1.0, 2.0, 4_194_304, "aa"),
        Streamed(2, 9.0, 12.0, error="RequestRejectedError"),
        Streamed(3, 15.0, 16.0, 4_194_304, "cc"),
    ],
    summed=[Summed(1, 4_194_304, "aa"), Summed(3, 4_194_304, "cc")],
    killed=Absence(name="quotes-1", killed_s=10.0, returned_s=14.0),
    killed_group="quotes",
    noticed_s=12.0,
)


def failing(**changes: Any) -> list[str]:
    """The checks that do not hold of evidence in which something is different."""
    return [check.text for check in services_checks(replace(GOOD, **changes)) if not check.holds]


def with_taken(name: str, *more: Taken) -> dict[str, Any]:
    return {"taken": {**GOOD.taken, name: [*GOOD.taken[name], *more]}}


def without_taken(name: str, id: str) -> dict[str, Any]:
    return {"taken": {**GOOD.taken, name: [it for it in GOOD.taken[name] if it.id != id]}}


def without_tried(*ids: str) -> list[Tried]:
    return [it for it in GOOD.tried if it.id not in ids]


def test_what_a_node_dies_with_may_fail_or_be_lost() -> None:
    assert [check.text for check in services_checks(GOOD)] == [
        "orders made 5 = filled 4 + failed 1, each with its error; wrong replies 0",
        "desk.buy: calls 6 = came to the desk 6; twice 0",
        "quotes.price: came to both nodes 5 = answered 4 + 1 of 2 that failed; twice 0",
        "events emitted 3 = heard by group quotes 2 + 1 lost with the node; missing 0, twice 0",
        "events emitted 3 = heard by group audit 3; missing 0, twice 0",
        "streams 3 = whole 2 + broken off 1; 8 MiB, SHA-256 differs 0",
        "calls and streams that met an error 5, for another reason than the kill 0",
        "quotes-1 was away for 4.00 s: missed within 2.0 s, 1 orders filled without it, and 1"
        " prices from it when it was back",
    ]
    assert failing() == []


@pytest.mark.parametrize("changes", [{"made": 6}, {"made": 4}, {"wrong": 1}])
def test_every_order_must_end_and_with_its_own_reply(changes: dict[str, int]) -> None:
    (text,) = failing(totals=msgspec.structs.replace(GOOD.totals, **changes))
    assert text.startswith("orders made ")


def test_a_run_without_orders_proves_nothing() -> None:
    assert failing(totals=Totals())


def test_every_call_must_come_to_the_desk_once() -> None:
    (text,) = failing(**without_taken("desk", "a4"))
    assert text == "desk.buy: calls 6 = came to the desk 5; twice 0"
    (text,) = failing(**with_taken("desk", Taken(ORDER, "a1")))
    assert "came to the desk 7; twice 1" in text


def test_no_price_may_be_told_twice_or_unasked() -> None:
    (text,) = failing(**with_taken("quotes-2", Taken(PRICE, "p3")))
    assert text.endswith("; twice 1")
    (text,) = failing(**with_taken("quotes-2", Taken(PRICE, "p9")))
    assert text.endswith("never asked 1")


def test_whoever_answered_must_have_been_asked() -> None:
    (text,) = failing(**without_taken("quotes-2", "p3"))
    assert text.endswith("answered and never taken 1")
    moved = without_taken("quotes-2", "p3")["taken"]
    moved["quotes-1"] = [*moved["quotes-1"], Taken(PRICE, "p3")]
    (text,) = failing(taken=moved)
    assert text.endswith("answered and never taken 1, never asked 1")


@pytest.mark.parametrize("group", ["quotes", "audit"])
def test_every_group_must_hear_each_event_once(group: str) -> None:
    heard = GOOD.heard[group]
    (text,) = failing(heard={**GOOD.heard, group: heard[:-1]})
    assert "missing 1, twice 0" in text
    (text,) = failing(heard={**GOOD.heard, group: [*heard, Heard(3)]})
    assert "missing 0, twice 1" in text
    (text,) = failing(heard={**GOOD.heard, group: [*heard, Heard(4)]})
    assert text.endswith("never emitted 1")


def test_a_group_without_the_killed_node_has_no_excuse() -> None:
    (text,) = failing(heard={**GOOD.heard, "audit": [Heard(1), Heard(3)]})
    assert "group audit 2; missing 1" in text


@pytest.mark.parametrize("at_s", [9.4, 12.1])
def test_an_event_before_or_after_the_kill_must_not_be_lost(at_s: float) -> None:
    (text,) = failing(emitted=[Emitted(1, 1.0), Emitted(2, at_s), Emitted(3, 15.0)])
    assert "+ 0 lost with the node; missing 1" in text


@pytest.mark.parametrize(
    "summed",
    [
        pytest.param([Summed(1, 4_194_304, "aa")], id="no word from the other side"),
        pytest.param([Summed(1, 4_194_304, "aa"), Summed(3, 4_194_304, "dd")], id="other bytes"),
        pytest.param([Summed(1, 4_194_304, "aa"), Summed(3, 4_194_303, "cc")], id="fewer bytes"),
    ],
)
def test_both_ends_of_a_stream_must_have_the_same_bytes(summed: list[Summed]) -> None:
    (text,) = failing(summed=summed)
    assert text.endswith("SHA-256 differs 1")


def test_some_stream_must_be_whole() -> None:
    (text,) = failing(streams=[GOOD.streams[1]])
    assert text.startswith("streams 1 = whole 0 + broken off 1")


@pytest.mark.parametrize(("began_s", "ended_s"), [(8.0, 9.9), (12.1, 13.0)])
def test_nothing_may_fail_before_or_after_the_kill(began_s: float, ended_s: float) -> None:
    failed = Streamed(4, began_s, ended_s, error="RequestTimeoutError")
    (text,) = failing(streams=[*GOOD.streams, failed])
    assert text.endswith("for another reason than the kill 1")


def test_orders_must_be_filled_without_the_node_and_by_it_later() -> None:
    fewer = without_taken("desk", "a5")
    (text,) = failing(tried=without_tried("a5"), **fewer)
    assert "0 orders filled without it" in text
    (text,) = failing(tried=without_tried("p6"), **without_taken("quotes-1", "p6"))
    assert text.endswith("0 prices from it when it was back")


def test_the_table_of_accounts() -> None:
    assert [(item.what, item.amount) for item in services_items(GOOD)] == [
        ("orders made", 5),
        ("filled at first", 3),
        ("filled after a retry", 1),
        ("failed: RequestTimeoutError", 1),
        ("prices told by quotes-1", 3),
        ("prices told by quotes-2", 2),
        ("events emitted", 3),
        ("heard by group quotes", 2),
        ("heard by group audit", 3),
        ("streams", 3),
    ]


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    entries: list[Entry] = [
        *(GOOD.tried[0], GOOD.tried[2], Taken(ORDER, "a1"), Emitted(1, 2.5), Heard(3)),
        *(GOOD.streams[0], GOOD.streams[1], GOOD.summed[0]),
    ]
    journal = Journal(str(path), buffering=0)
    for number, entry in enumerate(entries, start=1):
        journal.write(entry)
        # A process that is killed leaves everything behind.
        assert read_services_journal(path) == entries[:number]
    journal.close()


def test_a_row_tells_of_one_second() -> None:
    board = ServicesBoard()
    board.add(make_counts(at_s=100.0))
    trouble = Trouble(error="RequestTimeoutError", outcome="unknown", met=3)
    board.add(
        make_counts(
            at_s=100.5,
            totals=Totals(made=13, answered=10, troubles=[trouble]),
            priced={"quotes-1": 4, "quotes-2": 6},
            heard=2,
            stream_bytes=4_000_000,
            nodes=3,
        )
    )
    shown = services_row(board.rows[0])
    assert [it.text.split() for it in shown.lines] == [
        ["1", "s", "20", "-", "-", "8", "12", "4", "8.0", "3", "3"]
    ]
    assert [it.text.strip() for it in shown.details] == ["3 RequestTimeoutError (unknown)"]


def make_counts(**changes: Any) -> ServiceCounts:
    counts = ServiceCounts(
        at_s=0.0,
        totals=Totals(),
        latencies={},
        priced={"quotes-1": 0, "quotes-2": 0},
        heard=0,
        stream_bytes=0,
        nodes=4,
    )
    return replace(counts, **changes)


# The meeting with a node of Moleculer.

SIDE = MeetingSide(called=200, answered=200, emitted=20, heard=20)
MET = MeetingReport(ours=SIDE, theirs=SIDE, versions="")


def test_a_meeting_adds_up_if_each_side_got_all() -> None:
    checks = meeting_checks(MET)
    assert all(check.holds for check in checks)
    assert [check.text for check in checks] == [
        "Postroad called Moleculer 200 = right results 200; events emitted 20 = heard 20",
        "Moleculer called Postroad 200 = right results 200; events emitted 20 = heard 20",
    ]


@pytest.mark.parametrize("side", ["ours", "theirs"])
@pytest.mark.parametrize(
    "changes", [{"answered": 199}, {"heard": 19}, {"heard": 21}, {"called": 0, "answered": 0}]
)
def test_a_meeting_with_something_missing_does_not(side: str, changes: dict[str, int]) -> None:
    changed = msgspec.structs.replace(SIDE, **changes)
    checks = meeting_checks(msgspec.structs.replace(MET, **{side: changed}))
    assert [check.holds for check in checks].count(False) == 1


async def test_a_machine_without_node_has_no_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LeftOut, match=r"^there is no node on this machine$"):
        await find_tools()


async def test_nor_has_one_without_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "node", "exit 0")
    make_program(tmp_path / "nats-server", "exit 0")
    make_program(tmp_path / "npm", "echo 'no network' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with pytest.raises(LeftOut, match=r"^npm could not install moleculer and nats: no network$"):
        await find_tools()
    assert not list((tmp_path / "npm-packages").iterdir())


async def test_packages_are_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(tmp_path / "node", "exit 0")
    make_program(tmp_path / "nats-server", "exit 0")
    make_program(tmp_path / "npm", "mkdir node_modules; echo run >> ../../../runs", "/bin:/usr/bin")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    tools = await find_tools()
    assert tools == await find_tools()
    assert [it.name for it in (tmp_path / "npm-packages").glob("*/node*")] == ["node_modules"]
    assert tools.modules.endswith("node_modules")
    assert (tmp_path / "runs").read_text() == "run\n"


def make_program(path: Path, script: str, search: str = "/nowhere") -> None:
    path.write_text(f"#!/bin/sh\nPATH={search}\n{script}\n")
    path.chmod(0o755)
