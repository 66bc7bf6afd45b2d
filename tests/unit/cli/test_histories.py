"""Reports of `postroad flow verify` as JUnit XML, and flows that are read in pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from postroad.admin.errors import NotFound
from postroad.admin.histories import FlowReport, ReplayResult, export_histories, list_ids
from postroad.cli.histories import write_junit
from postroad.core.errors import ConnectError
from postroad.flows import FlowNotFoundError, FlowStatus
from postroad.flows.history_files import FlowRecordView, HistoryStep, read_histories


def test_junit_has_a_test_for_each_flow_and_is_xml_whatever_flows_are_called(
    tmp_path: Path,
) -> None:
    path = tmp_path / "flows.xml"
    odd = 'a "name" <&> \x00\x1b\ud800 é'
    write_junit(
        path,
        [
            FlowReport(ReplayResult.OK, id="1", name="book", file="a.jsonl"),
            FlowReport(ReplayResult.CHANGED, f"{odd}\nmore ]]>", id="2", name=odd, file="a.jsonl"),
            FlowReport(ReplayResult.UNREADABLE, "line 1: foreign", file="b.jsonl"),
        ],
    )
    (suite,) = ElementTree.parse(path).getroot()
    assert {key: suite.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
    }
    ok, changed, unreadable = suite
    assert (ok.get("classname"), [*ok]) == ("book", [])
    (failure,) = changed
    assert failure.get("type") == "changed"
    assert failure.get("message") == 'a "name" <&> \ufffd\ufffd\ufffd é'
    assert str(failure.text).endswith("\nmore ]]>")
    (error,) = unreadable
    assert (unreadable.get("name"), error.text) == ("b.jsonl", "line 1: foreign")


class Runs:
    """A node with one flow, which continues as new after each of some pages."""

    def __init__(self, ends: int) -> None:
        self.ends = ends
        self.run = 1

    def do(self, operation: str, said: Mapping[str, Any]) -> Any:
        if operation == "flow.ls":
            return [{"id": f"{5 - number:016x}"} for number in range(said["limit"])][:2]
        if said["id"].endswith("4"):
            raise FlowNotFoundError("this node has no flow 4")
        steps = [HistoryStep(f"{said['first']} step(pay)", b"")] if said["first"] < 3 else []
        if said["first"] == 2 and self.run < self.ends:
            self.run += 1
        view = FlowRecordView(
            id=said["id"],
            name="pay",
            version=1,
            status=FlowStatus.RUNNING,
            run=self.run,
            state=b"",
            steps=steps,
        )
        return msgspec.to_builtins(view)


def test_flow_that_continues_as_new_is_read_again(tmp_path: Path) -> None:
    node, skipped = Runs(4), list[str]()
    path = tmp_path / "histories.jsonl"
    ids = [f"{number:016x}" for number in (5, 4)]
    assert export_histories(node.do, ids, str(path), skipped.append) == (1, 3)
    assert skipped == ["this node has no flow 4"]
    with path.open("rb") as file:
        (flow,) = read_histories(file)
    assert [step.step for step in flow.steps] == [f"{number} step(pay)" for number in range(3)]
    assert export_histories(Runs(99).do, ids, str(path), skipped.append) == (0, 0)
    assert (
        "flow 0000000000000005 continues as new more often than its history can be read"
        in skipped[1]
    )


def test_file_stays_as_it_was_when_the_export_fails(tmp_path: Path) -> None:
    path = tmp_path / "histories.jsonl"
    path.write_text("older")

    def fail(operation: str, said: Mapping[str, Any]) -> Any:
        raise errors.pop()

    errors: list[Exception] = [ConnectError("the node has stopped"), NotFound("no flow.record")]
    for _ in range(2):
        with pytest.raises((ConnectError, NotFound), match=r"the node has stopped|no flow\.record"):
            export_histories(fail, ["5"], str(path), print)
    assert [it.name for it in tmp_path.iterdir()] == ["histories.jsonl"]
    assert path.read_text() == "older"


def test_lists_end_at_the_limit_or_with_the_last_flow() -> None:
    pages: list[Mapping[str, Any]] = []

    def do(operation: str, said: Mapping[str, Any]) -> Any:
        pages.append(said)
        left = 2_500 - sum(it["limit"] for it in pages[:-1])
        return [{"id": str(left - number)} for number in range(min(said["limit"], left))]

    assert len(list_ids(do, {"name": "pay", "status": "running"}, 2_001)) == 2_001
    assert [it["limit"] for it in pages] == [1_000, 1_000, 1]
    assert pages[1] == {"name": "pay", "status": "running", "before": "1501", "limit": 1_000}
    pages.clear()
    assert len(list_ids(do, {}, 9_000)) == 2_500
