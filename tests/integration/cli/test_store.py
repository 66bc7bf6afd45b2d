"""`postroad queue`, `dlq` and `bridge` on the store of a node that is stopped."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from postroad.cli.main import run
from postroad.durable import DurableQueues, RetryPolicy, SqliteStore, StaticPeerDirectory
from postroad.net import MessagingService


def use_mail(path: Path, work: Callable[[DurableQueues], Awaitable[None]]) -> None:
    """Run a node on a store, and stop it."""

    async def main() -> None:
        async with (
            MessagingService("demo", "alpha") as service,
            DurableQueues(service, SqliteStore(path), directory=StaticPeerDirectory()) as mail,
        ):
            await work(mail)

    asyncio.run(main())


def depth(path: Path, queue: str) -> int:
    found: list[int] = []

    async def look(mail: DurableQueues) -> None:
        found.append((await mail.statistics()).queues[queue].depth)

    use_mail(path, look)
    return found[0]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with three messages for beta, and two dead letters."""
    path = tmp_path / "alpha.db"

    async def fill(mail: DurableQueues) -> None:
        for number in range(3):
            await mail.send("orders", b"%d" % number, to="beta")

        await mail.send("letters", b"one", to="alpha", headers={"lang": "en"})
        await mail.send("letters", b"two", to="alpha")
        once = RetryPolicy(max_attempts=1)
        for message in await mail.pull("letters", limit=2, timeout=10, retry=once):
            message.nack("no paper\nsecond line")

    use_mail(path, fill)
    return path


def rows(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def at(store: Path) -> list[str]:
    return ["--store", str(store)]


def test_mail_is_listed_and_stays(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bridge", "ls", *at(store)]) == 0
    heading, beta = rows(capsys)
    assert heading[:3] == ["PEER", "PHASE", "DEPTH"]
    assert beta[:4] == ["beta", "at", "rest", "3"]
    assert run(["queue", "ls", *at(store)]) == 0
    assert rows(capsys)[1][:2] == ["letters", "0"]
    assert run(["dlq", "count", *at(store)]) == 0
    assert rows(capsys) == [["count:", "2"]]
    for _ in range(2):
        assert run(["bridge", "peek", "beta", "--limit", "2", *at(store)]) == 0
        assert [row[-1] for row in rows(capsys)[1:]] == ["0", "1"]
    assert run(["dlq", "ls", *at(store)]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("  letters  alpha  failed         1        0  NackedError: no paper")
    assert run(["dlq", "ls", "--queue", "orders", *at(store)]) == 0
    assert capsys.readouterr().out == "None.\n"
    number = first.split()[0]
    assert run(["dlq", "show", number, *at(store)]) == 0
    shown = capsys.readouterr().out
    assert "headers: lang=en" in shown
    assert "body: one\nencoding: text\nsize: 3 B\n" in shown
    assert "detail:\nNackedError: no paper\nsecond line\n" in shown
    assert second.split()[0] != number
    assert run(["bridge", "ls", *at(store), "--json"]) == 0
    (beta,) = json.loads(capsys.readouterr().out)
    assert (beta["peer"], beta["depth"]) == ("beta", 3)
    assert run(["dlq", "ls", *at(store), "--json"]) == 0
    numbers = [dead["id"] for dead in json.loads(capsys.readouterr().out)]
    assert run(["dlq", "show", *at(store), numbers[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "failed"


def test_dead_letters_are_tried_again(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dlq", "retry", "1", *at(store)]) == 0
    assert run(["dlq", "retry", "--all", *at(store)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 dead letter will be tried again when the node is started.",
        "1 dead letter will be tried again when the node is started.",
    ]
    assert depth(store, "letters") == 2


def test_dead_letters_are_dropped(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dlq", "drop", "1", "--dry-run", *at(store)]) == 0
    assert "It touches 1 dead letter." in capsys.readouterr().out
    assert run(["dlq", "drop", "--all", "--dry-run", "--json", *at(store)]) == 0
    assert json.loads(capsys.readouterr().out) == {"operation": "dlq.drop", "touches": 2}
    assert run(["dlq", "drop", "1", "--yes", *at(store)]) == 0
    assert run(["dlq", "drop", "--all", "--yes", *at(store)]) == 0
    assert run(["dlq", "ls", *at(store)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 dead letter dropped.",
        "1 dead letter dropped.",
        "None.",
    ]
    assert depth(store, "letters") == 0


def test_wrong_choices_and_unknown_names_are_told(
    store: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["dlq", "retry", *at(store)]) == 2
    assert run(["dlq", "drop", "1", "--all", *at(store)]) == 2
    assert capsys.readouterr().err.count("Say which: ID, --queue, --reason or --all.") == 2
    assert run(["dlq", "show", "77", *at(store)]) == 3
    assert capsys.readouterr().err == (
        "postroad: there is no dead letter 77\nTry: postroad dlq ls\n"
    )
    assert run(["queue", "show", "leters", *at(store)]) == 3
    assert capsys.readouterr().err == (
        "postroad: node alpha has no queue 'leters'; did you mean 'letters'?\n"
        "Try: postroad queue ls\n"
    )
    assert run(["cluster", "ls", *at(store)]) == 1
    assert "this needs a running node" in capsys.readouterr().err
    assert run(["queue", "ls", "--watch", *at(store)]) == 2
    assert "--watch needs a running node" in capsys.readouterr().err
    assert run(["queue", "ls", "--url", "http://127.0.0.1:1", *at(store)]) == 2
    assert "leave out --url" in capsys.readouterr().err
    assert run(["queue", "ls", *at(tmp_path / "none.db")]) == 1
    assert "was never used by a node" in capsys.readouterr().err
    assert list(tmp_path.glob("*.db")) == [store]


def test_new_epoch_keeps_or_removes_what_waits(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bridge", "reset", "beta", "--yes", *at(store)]) == 0
    assert "depth: 3\n" in capsys.readouterr().out
    assert run(["bridge", "show", "beta", *at(store)]) == 0
    assert "epoch: 2\n" in capsys.readouterr().out
    assert run(["bridge", "purge", "beta", "--yes", *at(store)]) == 0
    assert capsys.readouterr().out == "3 messages for beta removed.\n"
