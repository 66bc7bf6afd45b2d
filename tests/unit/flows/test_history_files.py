"""Files with histories: what is written is what is read, and nothing else passes for it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest

from postroad.core.errors import UsageError
from postroad.flows import history_files
from postroad.flows.history_files import (
    ExportedFlow,
    FlowHeader,
    HistoryStep,
    HistoryWriter,
    read_histories,
)
from tests.support.cases import each


def make_flow(id: str = "1a1e418e8a800001", steps: int = 2) -> ExportedFlow:
    header = FlowHeader(
        id=id, name="book", version=1, status="running", steps=steps, state=b"\x00state"
    )
    return ExportedFlow(
        header, [HistoryStep(f"{number} step(pay)", b"\xff") for number in range(steps)]
    )


def write(*flows: ExportedFlow) -> list[str]:
    """The lines of a file."""
    file = io.BytesIO()
    writer = HistoryWriter(file)
    for flow in flows:
        writer.add(flow)
    writer.close()
    return file.getvalue().decode().splitlines(keepends=True)


def read(lines: list[str]) -> list[ExportedFlow]:
    return [*read_histories(io.BytesIO("".join(lines).encode("utf-8", "surrogateescape")))]


def test_flows_are_read_as_they_were_written() -> None:
    flows = [make_flow(), make_flow("1a1e418e8a800002", steps=0)]
    assert read(write(*flows)) == flows
    assert read(write()) == []


def test_people_can_read_it() -> None:
    header, flow, first, _, end = (json.loads(line) for line in write(make_flow()))
    assert (header["type"], header["format"]) == ("postroad-flow-histories", 1)
    assert flow["name"] == "book"
    assert flow["steps"] == 2
    assert first["step"] == "0 step(pay)"
    assert end == {"type": "end", "flows": 1}


def without_end(lines: list[str]) -> list[str]:
    return lines[:-1]


def with_half_a_line(lines: list[str]) -> list[str]:
    return [*lines[:2], lines[2][:9]]


def without_a_step(lines: list[str]) -> list[str]:
    return lines[:2] + lines[3:]


def twice(lines: list[str]) -> list[str]:
    return [*lines[:-1], *lines[1:]]


def with_another_step(lines: list[str]) -> list[str]:
    return [*lines[:3], *lines[2:]]


def with_another_file(lines: list[str]) -> list[str]:
    return lines + lines


def with_a_wrong_number(lines: list[str]) -> list[str]:
    return [*lines[:-1], '{"type":"end","flows":7}\n']


def with_garbage(lines: list[str]) -> list[str]:
    return [*lines[:2], '{"type":"step","step":"0 step(pay)","entry":"?"}\n']


def deep(lines: list[str]) -> list[str]:
    return [lines[0], "[" * 100_000 + "\n"]


def no_text(lines: list[str]) -> list[str]:
    return [lines[0], "\udcff\udcfe\n"]


@each(
    (without_end, "line 5: the file ends too early"),
    (with_half_a_line, "line 3: the file ends too early"),
    (without_a_step, "line 4: flow 1a1e418e8a800001 has 1 of 2 steps"),
    (twice, "line 5: flow 1a1e418e8a800001 is there twice"),
    (with_another_step, "line 5: a step or an end is there in place of flow 2"),
    (with_another_file, "line 5: something follows the end"),
    (with_a_wrong_number, "line 5: a step or an end is there in place of flow 2"),
    (with_garbage, "line 3: the line is damaged: Invalid base64"),
    (deep, "line 2: the line is damaged"),
    (no_text, "line 2: the line is damaged"),
)
def test_damage_is_found_and_told(damage: Callable[[list[str]], list[str]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(damage(write(make_flow())))


@each(
    ("", "line 1: the file ends too early"),
    ("{}\n", "line 1: this is no file that `postroad flow export` wrote"),
    ("\x80\x04\x95 a pickle\n", "line 1: this is no file that"),
    ('{"queues":{}}\n', "line 1: this is no file that"),
    (
        '{"type":"postroad-flow-histories","format":2,"postroad":"9.0.0"}\n',
        "format 2, written by Postroad 9.0.0; .* reads format 1",
    ),
)
def test_foreign_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read([text])


def test_lines_and_flows_have_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = write(make_flow(steps=30))
    monkeypatch.setattr(history_files, "FLOW_BYTES_MAX", 600)
    with pytest.raises(UsageError, match="flow 1a1e418e8a800001 has more than 600 bytes"):
        read(lines)
    monkeypatch.setattr(history_files, "LINE_BYTES_MAX", 300)
    with pytest.raises(UsageError, match="line 2: the line has more than 300 bytes"):
        read([lines[0], "x" * 10_000])
