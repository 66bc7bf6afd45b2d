"""`postroad flow export` and `postroad flow verify`: changed code is tried before it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from postroad.cli.main import run
from postroad.flows import history_files
from postroad.node.app import load_app
from tests.support.cli.nodes import RunningNode, running_node
from tests.support.deadlines import eventually

PROGRAM = """\
from pathlib import Path

from postroad import FlowContext, flow


def reserve(room: int) -> str:
    with open("calls.txt", "a") as calls:
        calls.write("reserve\\n")
    return f"room {room}"


def charge(cents: int) -> None: ...


def insure(booking: str) -> str:
    return booking


@flow
async def book(ctx: FlowContext, room: int) -> str:
    print("the code runs")
    booking = await ctx.step(reserve, room)
    await ctx.step(charge, 9_900)
    await ctx.wait_for_signal("arrived", bool)
    return booking


@flow
async def count(ctx: FlowContext, times: int) -> int:
    for number in range(times):
        await ctx.step(charge, number)
    return times
"""
STEP = "    booking = await ctx.step(reserve, room)\n"
END = "    return booking\n\n\n@flow\nasync def count"
INSURED = "    booking = await ctx.step(insure, booking)\n"
PATCHED = f'    if ctx.patched("insurance"):\n    {INSURED}'


async def fill(alpha: RunningNode) -> None:
    """Two flows that run, one that has ended, and one of many steps."""
    flows = alpha.node.flows
    book, count = (flows.registry.find(name) for name in ("book", "count"))
    assert book is not None
    assert count is not None
    handles = [await flows.start_flow(book, room) for room in (11, 12, 13)]
    await flows.run_flow(count, 7)
    await flows.signal(handles[0].id, "arrived", True)
    await handles[0].result(10)

    async def are_recorded() -> bool:
        return all([len(await flows.admin.history(each.id)) >= 2 for each in handles])

    await eventually(are_recorded, "all steps are recorded")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # A file that is changed within a second would be taken from the cache.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def exported(program: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Histories of a node that runs, read in pages of few steps."""
    monkeypatch.setattr(history_files, "_PAGE_STEPS", 2)
    with running_node(program.parent / "data", app=load_app("app.py")) as alpha:
        alpha.do(fill(alpha))
        assert run(["flow", "export", "histories.jsonl", *alpha.place]) == 0
        assert run(["flow", "export", "running.jsonl", "--status", "running", *alpha.place]) == 0
        assert run(["flow", "export", "one.jsonl", "--limit", "1", *alpha.place]) == 0
    (program.parent / "calls.txt").unlink()
    return program.parent / "histories.jsonl"


def verify(*more: str) -> int:
    return run(["flow", "verify", "histories.jsonl", "--app", "app.py", *more])


def test_flows_follow_the_code_that_they_were_begun_with(
    exported: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert verify() == 0
    told = capfd.readouterr()
    assert told.out == "4 flows verified: 4 ok.\n"
    assert told.err.count("the code runs") == 3
    assert not Path("calls.txt").exists()
    assert exported.stat().st_mode & 0o077 == 0
    assert [path.name for path in Path().glob("*.part")] == []
    assert run(["flow", "verify", "running.jsonl", "one.jsonl", "--app", "app", "--json"]) == 0
    reports = json.loads(capfd.readouterr().out)
    found = [(it["file"], it["name"], it["status"], it["steps"]) for it in reports]
    assert found == [
        ("running.jsonl", "book", "running", 2),
        ("running.jsonl", "book", "running", 2),
        ("one.jsonl", "count", "done", 7),
    ]
    labels = [json.loads(line).get("step") for line in exported.read_text().splitlines()]
    assert labels[2:9] == [f"{number} step(charge)" for number in range(7)]


@pytest.mark.parametrize(
    ("old", "new", "result", "detail"),
    [
        (STEP, STEP + PATCHED, "ok", ""),
        (END, INSURED + END, "ok", ""),
        (STEP, STEP + INSURED, "changed", "the name was 'charge', and is 'insure'"),
        ("reserve", "take", "changed", "the name was 'reserve', and is 'take'"),
        ("9_900", "12_900", "changed", "the arguments differ"),
        (f"{STEP}    await ctx.step(charge, 9_900)\n", STEP, "changed", "1 step(charge)"),
        ("async def book", "async def reserve_room", "no code", "no flow 'book'"),
        (
            "ctx: FlowContext, room: int",
            "ctx: FlowContext, room: str",
            "arguments",
            "Expected `str`",
        ),
    ],
)
def test_changes_are_told(
    exported: Path,
    program: Path,
    capfd: pytest.CaptureFixture[str],
    old: str,
    new: str,
    result: str,
    detail: str,
) -> None:
    assert old in PROGRAM
    program.write_text(PROGRAM.replace(old, new))
    capfd.readouterr()
    assert verify("--json", "--junit", "flows.xml") == int(result != "ok")
    reports = json.loads(capfd.readouterr().out)
    books = [it for it in reports if it["name"] == "book"]
    assert {it["result"] for it in books} == {result}
    assert len(books) == 3
    assert all(detail in it["detail"] for it in books)
    assert [it["result"] for it in reports if it["name"] == "count"] == ["ok"]
    assert not Path("calls.txt").exists()
    (suite,) = ElementTree.parse("flows.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("4", "0" if result == "ok" else "3")
    assert all(it.text is not None and detail in it.text for it in suite.iter("failure"))
    assert verify() == int(result != "ok")
    told = capfd.readouterr().out
    expected = "4 ok" if result == "ok" else f"1 ok, 3 {result}"
    assert told.endswith(f"4 flows verified: {expected}.\n")
    assert told.startswith(f"{result}: book ") == (result != "ok")


def test_store_and_directories_are_used_as_well(
    exported: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = str(exported.parent / "data" / "alpha.db")
    assert run(["flow", "export", "new/histories/", "--name", "book", "--store", store]) == 0
    assert "3 flows with 7 steps exported." in capfd.readouterr().err
    assert len([*Path("new/histories").glob("book-*.jsonl")]) == 3
    assert run(["flow", "export", "new/histories", "--where", "odd=null", "--store", store]) == 0
    assert len([*Path("new/histories").glob("*.jsonl")]) == 4
    assert run(["flow", "verify", "new/histories", "--app", "app.py"]) == 0
    assert run(["flow", "export", "none.jsonl", "--where", "odd=1", "--store", store]) == 0
    assert "0 flows with 0 steps exported." in capfd.readouterr().err
    assert run(["flow", "export", "none.jsonl", "--where", "odd", "--store", store]) == 1
    assert "where='odd' must be a name, one of" in capfd.readouterr().err
    assert run(["flow", "export", "app.py/", "--store", store]) == 1
    assert "app.py/ cannot be made: File exists" in capfd.readouterr().err
    assert run(["flow", "export", "-", "--name", "book", "--store", store]) == 0
    assert capfd.readouterr().out.count('"type":"flow"') == 3
    assert run(["flow", "export", "none.jsonl", "--name", "nobody", "--store", store]) == 0
    assert run(["flow", "verify", "none.jsonl", "--app", "app.py"]) == 0
    assert capfd.readouterr().out == "0 flows verified.\n"


def test_what_cannot_be_read_is_told_with_its_file(
    exported: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("cut.jsonl").write_bytes(exported.read_bytes()[:-30])
    Path("odd.jsonl").write_text('{"some": "thing"}\n')
    files = ["cut.jsonl", "odd.jsonl", "histories.jsonl"]
    capfd.readouterr()
    assert run(["flow", "verify", *files, "--app", "app.py", "--junit", "flows.xml"]) == 1
    told = capfd.readouterr().out
    assert "unreadable: cut.jsonl\n  line " in told
    assert "unreadable: odd.jsonl\n  line 1: this is no file that `postroad flow export`" in told
    assert told.endswith("9 flows verified: 7 ok, 2 unreadable.\n")
    (suite,) = ElementTree.parse("flows.xml").getroot()
    assert (suite.get("errors"), len([*suite.iter("error")])) == ("2", 2)


def test_wrong_usage_is_told(exported: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["flow", "verify", "none.jsonl", "--app", "app.py"]) == 2
    assert run(["flow", "verify", "histories.jsonl"]) == 2
    assert run(["flow", "export", "out.jsonl", "--status", "odd"]) == 2
    Path("empty").mkdir()
    assert run(["flow", "verify", "empty", "--app", "app.py"]) == 1
    assert "directory empty has no files *.jsonl" in capfd.readouterr().err
    assert run(["flow", "verify", "histories.jsonl", "--app", "missing.py"]) == 1
    assert "there is no file missing.py" in capfd.readouterr().err
    assert verify("--junit", "no/such/flows.xml") == 1
    assert "no/such/flows.xml cannot be written" in capfd.readouterr().err
    store = str(exported.parent / "data" / "alpha.db")
    assert run(["flow", "export", "no/such/file.jsonl", "--store", store]) == 1
    assert "no/such/file.jsonl cannot be written: No such file" in capfd.readouterr().err
