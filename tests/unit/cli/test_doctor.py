"""`postroad doctor`: what it finds, and what it says to do."""

import asyncio
import json
import os
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


def test_store_is_sound_or_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "alpha.db")
    found = findings(capsys, "--data", str(tmp_path))
    assert found["store alpha.db"]["detail"].startswith("sound, ")
    assert found["running nodes"]["detail"].startswith("none in ")
    assert [name for name, it in found.items() if it["status"] == "failing"] == []
    assert run(["doctor", "--data", str(tmp_path / "none")]) == 0
    assert "is not there yet" in capsys.readouterr().out
    path = tmp_path / "alpha.db"
    make_store(path)
    path.write_bytes(b"this is no store" * 512)
    assert run(["doctor", "--data", str(tmp_path)]) == 4
    out = capsys.readouterr().out
    assert "failing  store alpha.db: file is not a database" in out
    assert "next: " in out


def test_machine_that_cannot_hold_a_node_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://127.0.0.1:8222"
    card = Card(name="alpha", cluster="shop", pid=os.getpid(), url=url, version="1")
    leave_card(tmp_path, card)
    assert doctor.look_at_port(8222, tmp_path).detail == "used by node alpha"
    path = tmp_path / "file"
    path.touch()
    assert doctor.look_at_data(path).status == "failing"
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 4096))
    found = doctor.look_at_files()
    assert (found.status, found.next) == ("warning", "ulimit -n 4096")
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert doctor.look_at_clock().status == "failing"


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
