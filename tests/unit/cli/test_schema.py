"""`postroad schema`: what continuous integration is told of two versions of a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from postroad.cli.main import postroad, run

OLD = """\
import msgspec

from postroad import Queue


class Order(msgspec.Struct):
    item: str
    count: int


class Parcel(msgspec.Struct):
    weight: float


orders, parcels, raw = Queue("orders", Order), Queue("parcels", Parcel), Queue("raw")
"""
NEW = OLD.replace("count: int", "count: int = 1\n    note: str | None = None")
BROKEN = OLD.replace("count: int", "count: str").replace('Queue("parcels"', 'Queue("boxes"')


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(OLD)
    done = CliRunner().invoke(postroad, ["schema", "dump", "app.py"])
    assert done.exit_code == 0, done.output
    (tmp_path / "schemas.json").write_text(done.output)
    return tmp_path


def test_dump_writes_the_schemas_of_all_typed_queues(versions: Path) -> None:
    schemas = json.loads((versions / "schemas.json").read_text())["queues"]
    assert sorted(schemas) == ["orders", "parcels"]
    assert schemas["orders"]["required"] == ["item", "count"]


def test_compatible_version_exits_with_0(
    versions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (versions / "app.py").write_text(NEW)
    assert run(["schema", "check", "schemas.json", "app.py"]) == 0
    assert capsys.readouterr().out == "compatible (backward)\n"


def test_forward_break_exits_with_1(versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (versions / "app.py").write_text(NEW)
    assert run(["schema", "check", "schemas.json", "app.py", "--mode", "full"]) == 1
    assert capsys.readouterr().out == (
        "orders $.count (forward): the old version requires it, the new version may leave it out\n"
        '  for example {"item": ""}\n'
    )


def test_breaks_are_printed_as_json(versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (versions / "app.py").write_text(BROKEN)
    assert run(["schema", "check", "schemas.json", "app.py", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["mode"], report["is_compatible"]) == ("backward", False)
    places = [(each["queue"], each["direction"], each["place"]) for each in report["breaks"]]
    assert places == [("orders", "backward", "$.count"), ("parcels", "backward", "$")]
    assert report["breaks"][0]["example"] == {"item": "", "count": -1}
    assert "example" not in report["breaks"][1]


def test_single_types_are_compared(versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (versions / "later.py").write_text(BROKEN)
    assert run(["schema", "check", "app.py:Order", "later.py:orders"]) == 1
    assert "orders $.count (backward)" in capsys.readouterr().out
    assert run(["schema", "check", "app.py:Parcel", "later.py:Parcel"]) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["gone.json", "app.py"], "gone.json cannot be read: No such file"),
        (["app.py", "bad.json"], "bad.json is no JSON"),
        (["app.py", "list.json"], "list.json has no JSON Schema"),
        (["app.py", "empty.py"], "empty.py has no typed queue"),
        (["app.py:gone", "app.py"], "app.py has no 'gone'"),
        (["app.py:msgspec", "app.py"], "app.py:msgspec is neither a Queue nor a type"),
        (["app.py:Order", "app.py"], "there are 1 and 2"),
    ],
)
def test_what_cannot_be_compared_is_said(
    arguments: list[str], text: str, versions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (versions / "bad.json").write_text("{")
    (versions / "list.json").write_text("[]")
    (versions / "empty.py").write_text("from postroad import Queue\nraw = Queue('raw')\n")
    assert run(["schema", "check", *arguments]) not in (0, 1) or text in capsys.readouterr().err
    assert run(["schema", "check", *arguments]) != 0
    assert text in capsys.readouterr().err
