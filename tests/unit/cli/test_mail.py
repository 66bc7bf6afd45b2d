"""`postroad mail` on the store of a node that is stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from postroad import MessagingService
from postroad.cli.main import run
from postroad.durable import Mail, Retry, SqliteStore, StaticDirectory


def use_mail(path: Path, work: Callable[[Mail], Awaitable[None]]) -> None:
    """Run a node on a store, and stop it."""

    async def main() -> None:
        async with (
            MessagingService("demo", "alpha") as service,
            Mail(service, SqliteStore(path), directory=StaticDirectory()) as mail,
        ):
            await work(mail)

    asyncio.run(main())


def depth(path: Path, queue: str) -> int:
    found: list[int] = []

    async def look(mail: Mail) -> None:
        found.append((await mail.statistics()).queues[queue].depth)

    use_mail(path, look)
    return found[0]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with three messages for beta, and two dead letters."""
    path = tmp_path / "alpha.db"

    async def fill(mail: Mail) -> None:
        for number in range(3):
            await mail.post("beta", "orders", b"%d" % number)

        await mail.post("alpha", "letters", b"one", headers={"lang": "en"})
        await mail.post("alpha", "letters", b"two")
        once = Retry(attempts=1)
        for message in await mail.pull("letters", limit=2, timeout=10, retry=once):
            message.nack("no paper\nsecond line")

    use_mail(path, fill)
    return path


def test_statistics_show_what_waits(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mail", "stat", "--store", str(store)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2][:3] == ["peer", "beta", "3"]
    assert lines[1][:3] == ["queue", "letters", "0"]
    assert lines[-1] == ["dead", "letters:", "2"]


def test_dead_letters_are_listed_and_shown(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mail", "dead", "--store", str(store)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("from alpha, queue letters: failed (Nacked: no paper)")
    assert run(["mail", "dead", "--store", str(store), "--queue", "orders"]) == 0
    assert capsys.readouterr().out == "No dead letters.\n"

    number = first.split()[0]
    assert run(["mail", "show", "--store", str(store), number]) == 0
    shown = capsys.readouterr().out
    assert "header lang: en" in shown
    assert "body (3 bytes): b'one'" in shown
    assert second.split()[0] != number


def test_json_is_for_programs(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mail", "stat", "--store", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peers"]["beta"]["depth"] == 3
    assert run(["mail", "dead", "--store", str(store), "--json"]) == 0
    numbers = [dead["id"] for dead in json.loads(capsys.readouterr().out)]
    assert run(["mail", "show", "--store", str(store), str(numbers[0]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "failed"


def test_dead_letters_are_tried_again(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mail", "retry", "--store", str(store), "1"]) == 0
    assert run(["mail", "retry", "--store", str(store), "--all"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 dead letters will be tried again.",
        "1 dead letters will be tried again.",
    ]
    assert depth(store, "letters") == 2


def test_dead_letters_are_dropped(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mail", "drop", "--store", str(store), "1", "--yes"]) == 0
    assert run(["mail", "drop", "--store", str(store), "--all", "--yes"]) == 0
    assert run(["mail", "dead", "--store", str(store)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "No dead letters."
    assert depth(store, "letters") == 0


def test_a_choice_is_demanded(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mail", "retry", "--store", str(store)]) == 2
    assert run(["mail", "drop", "--store", str(store), "1", "--all"]) == 2
    assert "either numbers" in capsys.readouterr().err


def test_a_number_nobody_has(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mail", "show", "--store", str(store), "77"]) == 1
    assert capsys.readouterr().err == "postroad: there is no dead letter 77\n"


def test_a_new_epoch_keeps_or_removes_what_waits(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["mail", "epoch", "--store", str(store), "beta", "--yes"]) == 0
    assert "3 numbers wait" in capsys.readouterr().out
    assert run(["mail", "stat", "--store", str(store)]) == 0
    assert "epoch 2" in capsys.readouterr().out
    assert run(["mail", "epoch", "--store", str(store), "beta", "--purge", "--yes"]) == 0


def test_a_store_that_never_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mail", "stat", "--store", str(tmp_path / "none.db")]) == 1
    assert "was never used by a node" in capsys.readouterr().err
    assert list(tmp_path.glob("*.db")) == []
