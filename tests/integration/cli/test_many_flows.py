"""`postroad flow` with many flows at once, chosen by status, name and attributes."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.cli import spellings
from postroad.cli.main import run
from postroad.durable import DurableQueues, StaticPeerDirectory, store_from_url
from postroad.flows import FlowContext, FlowService, FlowView, flow
from postroad.net import MessagingService
from tests.support.cli.nodes import make_app, running_node
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.postgres import fresh_database


def print_check(amount: int) -> None:
    if amount < 0:
        raise ValueError("no paper")


@flow
async def pay(ctx: FlowContext, customer: str, amount: int) -> None:
    ctx.set_attributes(customer=customer, amount=amount)
    await ctx.step(print_check, amount)
    await ctx.wait_for_signal("approved", bool)


@flow
async def note(ctx: FlowContext) -> None:
    pass


Use = Callable[[Callable[[FlowService], Awaitable[Any]]], Any]
Say = Callable[..., tuple[int, str, str]]

PAID = [("ann", 1), ("bob", 2), ("ann", 3), ("bob", -4), ("ann", -5)]


async def fill(flows: FlowService) -> list[str]:
    """Three flows that wait, two that are parked, and one that has ended; returns their ids."""
    handles = [await flows.start_flow(pay, customer, amount) for customer, amount in PAID]
    ended = await flows.start_flow(note)
    await ended.result(timeout=DEADLINE_S)

    async def is_filled() -> bool:
        waiting = [bool(await flows.admin.history(it.id)) for it in handles[:3]]
        return all(waiting) and len(await flows.admin.list("parked")) == 2

    await eventually(is_filled, "three wait and two are parked")
    return [handle.id for handle in [*handles, ended]]


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that no node has open."""
    if request.param == "sqlite":
        yield str(tmp_path / "alpha.db")
        return
    with fresh_database() as dsn:
        yield dsn


@pytest.fixture
def use(location: str) -> Use:
    """Runs a node on the store, and stops it."""

    def use_flows(work: Callable[[FlowService], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with (
                MessagingService("demo", "alpha") as service,
                DurableQueues(
                    service, store_from_url(location), directory=StaticPeerDirectory()
                ) as queues,
                FlowService(queues, [pay, note]) as flows,
            ):
                return await work(flows)

        return asyncio.run(main())

    return use_flows


@pytest.fixture
def say(location: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Runs `postroad flow` on the store, with small pages and nobody at the terminal."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    for name in ("cancel", "kill", "pause", "resume", "retry"):
        spelling = spellings.SPELLINGS[f"flow.{name}"]
        assert spelling.every is not None
        every = msgspec.structs.replace(spelling.every, said={**spelling.every.said, "limit": 2})
        small = msgspec.structs.replace(spelling, every=every)
        monkeypatch.setitem(spellings.SPELLINGS, f"flow.{name}", small)

    def run_there(*words: str) -> tuple[int, str, str]:
        code = run(["flow", *words, "--store", location])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_there


def statuses(say: Say) -> dict[str, int]:
    return dict(Counter(it["status"] for it in json.loads(say("ls", "--json")[1])))


def test_flows_are_chosen_by_status_name_and_attributes(use: Use, say: Say) -> None:
    ids = use(fill)
    said = say("kill", "--where", "customer=ann", "--where", "amount>1", "--dry-run")
    assert said == (
        0,
        f"Nothing is done. A flow that is killed never goes on. It touches 1 flow: {ids[2]}.\n",
        "",
    )
    said = say("cancel", "--name", "pay", "--dry-run", "--json")
    assert json.loads(said[1]) == {
        "operation": "flow.cancel", "touches": 5, "ids": ids[4::-1],
    }  # fmt: skip
    assert say("retry", "--where", "customer=bob") == (
        0, "1 flow will be tried again when the node is started.\n", "",
    )  # fmt: skip
    assert statuses(say) == {"done": 1, "parked": 1, "running": 4}
    positive = ("--where", "amount>0", "--where", "amount<=2")
    assert say("pause", "--name", "pay", *positive)[1] == "2 flows paused.\n"
    assert (
        say("resume", "--where", "amount<2")[1] == "1 flow will go on when the node is started.\n"
    )
    assert say("resume", "--all")[1] == "1 flow will go on when the node is started.\n"
    assert say("kill", "--status", "parked", "--name", "pay", "--yes")[1] == "1 flow killed.\n"
    assert statuses(say) == {"done": 1, "killed": 1, "running": 4}
    assert say("kill", "--name", "nobody")[1] == "0 flows killed.\n"


def test_flows_that_are_chosen_are_asked_about(
    use: Use, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = use(fill)
    for verb, warning in (
        ("cancel", "Flows that are cancelled undo what they have done, and end."),
        ("kill", "A flow that is killed never goes on."),
    ):
        code, out, err = say(verb, "--status", "parked")
        assert (code, out) == (2, "")
        assert err.startswith(f"{warning} It touches 2 flows: {ids[4]}, {ids[3]}.\nGo on? [y/N] ")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert say("kill", "--status", "parked")[1] == "2 flows killed.\n"


def test_failures_are_told_and_the_rest_goes_on(use: Use, say: Say) -> None:
    ids = use(fill)
    code, out, err = say("pause", ids[5], *ids[:2])
    assert (code, out) == (1, "2 flows paused.\n")
    assert err == (
        f"postroad: flow {ids[5]} has ended: it is done\npostroad: 2 of 3 flows done, 1 failed\n"
    )
    code, out, err = say("pause", "--name", "pay", "--json")
    assert code == 1
    assert [it["id"] for it in json.loads(out)] == [ids[4], ids[3], ids[2]]
    assert err.endswith("postroad: 3 of 5 flows done, 2 failed\n")
    assert statuses(say) == {"done": 1, "paused": 5}


def test_a_choice_that_cannot_be_read_touches_nothing(use: Use, say: Say) -> None:
    use(fill)
    code, _, err = say("kill", "--where", "customer", "--yes")
    assert code == 1
    assert "where='customer' must be a name, one of = != < <= > >= and a value, as in" in err
    for words in (("kill",), ("kill", "--all"), ("kill", "x", "--name", "pay")):
        assert say(*words)[0] == 2
    assert "Say which: ID, --status, --name or --where." in say("cancel")[2]
    assert statuses(say) == {"done": 1, "parked": 2, "running": 3}


def test_flows_of_a_running_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = msgspec.structs.replace(make_app(), flows=[pay, note])
    with running_node(tmp_path, app=app) as alpha:
        alpha.do(fill(alpha.node.flows))

        def say_there(*words: str) -> str:
            assert run(["flow", *words, *alpha.place]) == 0
            return capsys.readouterr().out

        async def parked() -> list[FlowView]:
            return await alpha.node.flows.admin.list("parked", where=["customer=bob"])

        assert len(json.loads(say_there("ls", "--where", "customer=ann", "--json"))) == 3
        chosen = ("--where", "customer=ann", "--where", "amount<0")
        assert say_there("cancel", "--name", "pay", "--yes", *chosen) == "1 flow cancelled.\n"
        assert say_there("pause", "--status", "running", "--name", "pay") == "3 flows paused.\n"
        assert say_there("resume", "--where", "amount>1") == "2 flows will go on.\n"
        assert say_there("retry", "--name", "pay") == "1 flow will be tried again.\n"
        alpha.do(eventually(parked, "it is parked again"))
        assert say_there("kill", "--name", "pay", "--yes") == "4 flows killed.\n"
