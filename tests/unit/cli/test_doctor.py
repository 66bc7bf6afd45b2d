"""`postroad doctor`: what it finds, and what it says to do."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from postroad.admin import create_root, issue
from postroad.admin.cards import Card, leave_card
from postroad.cli import doctor
from postroad.cli.main import run
from postroad.durable import SqliteStore


def make_store(path: Path) -> None:
    async def work() -> None:
        store = SqliteStore(path)
        await store.open("alpha")
        await store.close()

    asyncio.run(work())


def findings(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, str]]:
    capsys.readouterr()
    run(["doctor", "--json", *words])
    return {it["name"]: it for it in json.loads(capsys.readouterr().out)}


def test_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "alpha.db")
    found = findings(capsys, "--data", str(tmp_path))
    assert found["store alpha.db"]["detail"].startswith("sound, ")
    assert found["running nodes"]["detail"].startswith("none in ")
    assert [name for name, it in found.items() if it["status"] == "failing"] == []
    assert run(["doctor", "--data", str(tmp_path / "none")]) == 0
    assert "is not there yet" in capsys.readouterr().out


def test_a_damaged_store_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "alpha.db"
    make_store(path)
    path.write_bytes(b"this is no store" * 512)
    assert run(["doctor", "--data", str(tmp_path)]) == 4
    out = capsys.readouterr().out
    assert "failing  store alpha.db: file is not a database" in out
    assert "next: " in out


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        found = doctor.look_at_port(other.getsockname()[1], tmp_path)
    assert found.status == "warning"
    assert "--set admin.bind=127.0.0.1:0" in found.next


def test_a_port_that_a_node_of_this_place_uses(tmp_path: Path) -> None:
    url = "http://127.0.0.1:8222"
    card = Card(name="alpha", cluster="shop", pid=os.getpid(), url=url, version="1")
    leave_card(tmp_path, card)
    assert doctor.look_at_port(8222, tmp_path).detail == "used by node alpha"


def test_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs = tmp_path / "certs"
    certs.mkdir()
    assert findings(capsys, "--certs", str(certs))["certificates"]["status"] == "warning"
    create_root(certs)
    issue(certs, "alpha", days=5)
    found = findings(capsys, "--certs", str(certs))
    assert found["certificate ca.pem"]["status"] == "ok"
    assert found["certificate alpha.pem"]["status"] == "warning"
    assert found["certificate alpha.pem"]["next"] == "postroad certs issue alpha --force"
    assert findings(capsys, "--certs", str(tmp_path / "no"))["certificates"]["status"] == "failing"


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert doctor.look_at_data(path).status == "failing"


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 4096))
    found = doctor.look_at_files()
    assert (found.status, found.next) == ("warning", "ulimit -n 4096")


def test_a_clock_that_was_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert doctor.look_at_clock().status == "failing"
