"""`postroad flow` on the store of a node that is stopped, and of one that runs."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from postroad.cli.main import run
from postroad.durable import DurableQueues, SqliteStore, StaticPeerDirectory
from postroad.flows import FlowContext, FlowService, flow
from postroad.net import MessagingService
from tests.support.deadlines import DEADLINE_S, eventually

paid: list[str] = []


@flow
async def approve(ctx: FlowContext, order: str) -> str:
    await ctx.step.with_options(name="register")(order.upper)
    ctx.set_progress(f"order {order} waits for approval")
    ctx.set_attributes(order=order, amount=7)
    return await ctx.wait_for_signal("approved", str)


@flow
async def pay(ctx: FlowContext, order: str) -> None:
    await ctx.step(print_check, order)


def print_check(order: str) -> None:
    if order not in paid:
        raise ValueError("no paper\nin the printer")


def use_flows(path: Path, work: Callable[[FlowService], Awaitable[None]]) -> None:
    """Run a node on a store, and stop it."""

    async def main() -> None:
        async with (
            MessagingService("demo", "alpha") as service,
            DurableQueues(service, SqliteStore(path), directory=StaticPeerDirectory()) as mail,
            FlowService(mail, [approve, pay]) as flows,
        ):
            await work(flows)

    asyncio.run(main())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a flow that waits for approval, and one that is parked."""
    path = tmp_path / "alpha.db"
    paid.clear()

    async def fill(flows: FlowService) -> None:
        waiting = await flows.start_flow_with_id("order-7", approve, "seven")
        await flows.start_flow(pay, "eight")

        async def is_filled() -> bool:
            steps = await flows.admin.history(waiting.id)
            return bool(steps) and len(await flows.admin.list("parked")) == 1

        await eventually(is_filled, "one waits and one is parked")

    use_flows(path, fill)
    return path


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def id_of(path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run(["flow", "ls", "--store", str(path), "--name", name, "--json"]) == 0
    id: str = json.loads(capsys.readouterr().out)[0]["id"]
    return id


def status_of(path: Path, id: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run(["flow", "show", "--store", str(path), id, "--json"]) == 0
    status: str = json.loads(capsys.readouterr().out)["status"]
    return status


def result_of(path: Path, id: str) -> object:
    """What becomes of a flow when the node is started again."""
    results: list[object] = []

    async def wait(flows: FlowService) -> None:
        results.append(await (await flows.get_handle(id)).result(timeout=DEADLINE_S))

    use_flows(path, wait)
    return results[0]


def test_flows_are_listed_and_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flow", "ls", "--store", str(path)]) == 0
    heading, parked, waiting = told(capsys)
    assert heading.split() == [
        "ID",
        "STATUS",
        "NAME",
        "STARTED",
        "CLIENT",
        "ID",
        "PROGRESS",
        "ERROR",
    ]
    assert parked.split()[1:3] == ["parked", "pay"]
    assert parked.endswith("  ValueError: no paper")
    assert waiting.split()[1:3] == ["running", "approve"]
    assert waiting.endswith("  order-7    order seven waits for approval")
    assert run(["flow", "ls", "--store", str(path), "--status", "parked"]) == 0
    assert [line.split()[2] for line in told(capsys)[1:]] == ["pay"]
    newest = id_of(path, "pay", capsys)
    assert run(["flow", "ls", "--store", str(path), "--before", newest]) == 0
    assert [line.split()[2] for line in told(capsys)[1:]] == ["approve"]
    assert run(["flow", "ls", "--store", str(path), "--name", "nobody"]) == 0
    assert told(capsys) == ["None."]
    where = ["--where", "order=seven", "--where"]
    assert run(["flow", "ls", "--store", str(path), *where, "amount>=7"]) == 0
    assert [line.split()[2] for line in told(capsys)[1:]] == ["approve"]
    assert run(["flow", "ls", "--store", str(path), *where, "amount>7"]) == 0
    assert told(capsys) == ["None."]
    assert run(["flow", "ls", "--store", str(path), "--where", "order"]) == 1
    assert "where='order' must be a name, one of = != < <= > >=" in capsys.readouterr().err
    assert run(["flow", "ls", "--store", str(path), "--status", "odd"]) == 2
    assert run(["flow", "ls", "--store", str(path), "--limit", "0"]) == 2
    id = id_of(path, "pay", capsys)
    assert run(["flow", "show", "--store", str(path), id]) == 0
    lines = told(capsys)
    assert lines[:3] == [f"id: {id}", "name: pay", "version: 1"]
    assert "status: parked" in lines
    assert lines[lines.index("error:") + 1] == "ValueError: no paper"
    assert "Traceback (most recent call last):" in lines
    id = id_of(path, "approve", capsys)
    assert run(["flow", "show", "--store", str(path), id]) == 0
    assert "attributes: order=seven, amount=7" in told(capsys)
    assert run(["flow", "history", "--store", str(path), id]) == 0
    heading, step = told(capsys)
    assert heading.split() == ["NUMBER", "PLACE", "KIND", "NAME", "AT", "VALUE", "ERROR"]
    assert step.split()[:4] == ["0", "0", "step", "register"]
    assert step.endswith("  SEVEN")
    assert run(["flow", "history", "--store", str(path), id, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["value"] == "SEVEN"
    assert run(["flow", "history", "--store", str(path), id_of(path, "pay", capsys)]) == 0
    assert told(capsys) == ["None."]


def test_parked_flow_is_tried_again(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    id = id_of(path, "pay", capsys)
    assert run(["flow", "retry", "--store", str(path)]) == 2
    assert run(["flow", "retry", "--store", str(path), id, "--all"]) == 2
    assert "Say which: ID, --status, --name, --where or --all." in capsys.readouterr().err
    assert run(["flow", "retry", "--store", str(path), "--all"]) == 0
    assert told(capsys) == ["1 flow will be tried again when the node is started."]
    assert run(["flow", "retry", "--store", str(path), "--all"]) == 0
    assert told(capsys) == ["0 flows will be tried again when the node is started."]
    assert status_of(path, id, capsys) == "running"
    paid.append("eight")
    assert result_of(path, id) is None


def test_killed_flow_has_ended(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [id_of(path, "pay", capsys), id_of(path, "approve", capsys)]
    why = ["--reason", "paid by hand"]
    assert run(["flow", "kill", "--store", str(path), *ids, *why, "--yes"]) == 0
    assert told(capsys) == ["2 flows killed."]
    assert run(["flow", "show", "--store", str(path), ids[1]]) == 0
    assert "error: FlowKilledError: paid by hand" in told(capsys)
    assert run(["flow", "kill", "--store", str(path), ids[0], "--yes"]) == 1
    assert "has ended: it is killed" in capsys.readouterr().err


def test_killing_is_asked_about(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    id = id_of(path, "pay", capsys)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run(["flow", "kill", "--store", str(path), id]) == 1
    told = capsys.readouterr().err
    assert told.startswith("A flow that is killed never goes on. It touches 1 flow.\nGo on? [y/N]")
    assert told.endswith("Nothing is done.\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run(["flow", "kill", "--store", str(path), id]) == 2
    assert "say --yes" in capsys.readouterr().err
    assert run(["flow", "kill", "--store", str(path), id, "--dry-run"]) == 0
    assert capsys.readouterr().out == (
        "Nothing is done. A flow that is killed never goes on. It touches 1 flow.\n"
    )
    assert status_of(path, id, capsys) == "parked"


def test_paused_flow_waits_to_be_resumed_and_signalled(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    id = id_of(path, "approve", capsys)
    assert run(["flow", "pause", "--store", str(path), id]) == 0
    assert told(capsys) == ["1 flow paused."]
    assert status_of(path, id, capsys) == "paused"
    assert run(["flow", "pause", "--store", str(path), id]) == 1
    assert f"flow {id}: a flow that is paused cannot pause" in capsys.readouterr().err
    assert run(["flow", "resume", "--store", str(path), id]) == 0
    assert told(capsys) == ["1 flow will go on when the node is started."]
    assert status_of(path, id, capsys) == "running"
    id = id_of(path, "approve", capsys)
    assert run(["flow", "signal", "--store", str(path), id, "approved", "yes"]) == 0
    assert f"id: {id}" in told(capsys)
    assert result_of(path, id) == "yes"


def test_fork_is_another_flow(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    id = id_of(path, "approve", capsys)
    assert run(["flow", "fork", "--store", str(path), id, "1", "--json"]) == 0
    copy = json.loads(capsys.readouterr().out)["id"]
    assert copy > id
    assert run(["flow", "signal", "--store", str(path), copy, "approved", '"fork"']) == 0
    assert result_of(path, copy) == "fork"
    assert status_of(path, id, capsys) == "running"
    assert run(["flow", "fork", "--store", str(path), id, "9"]) == 1
    assert "from step 9: it has steps 0 to" in capsys.readouterr().err


def test_running_node_is_looked_at_and_left_alone(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    id = id_of(path, "approve", capsys)

    async def meddle(flows: FlowService) -> None:
        listed = await asyncio.to_thread(run, ["flow", "ls", "--store", str(path)])
        killed = await asyncio.to_thread(run, ["flow", "kill", "--store", str(path), id, "--yes"])
        assert (listed, killed) == (0, 1)
        assert (await flows.admin.show(id)).status == "running"

    use_flows(path, meddle)
    captured = capsys.readouterr()
    assert id in captured.out
    assert "stop that one first, or leave out --store: node alpha does this itself" in captured.err


def test_unknown_flows_stores_and_verbs_are_told(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nobody = "0" * 14 + "77"
    assert run(["flow", "show", "--store", str(path), nobody]) == 3
    assert capsys.readouterr().err == (
        f"postroad: this node has no flow {nobody}\nTry: postroad flow ls\n"
    )
    assert run(["flow", "kill", "--store", str(path), "no id", "--yes"]) == 3
    assert "no flow has the id or client id 'no id'" in capsys.readouterr().err
    store = str(tmp_path / "none.db")
    assert run(["flow", "ls", "--store", store]) == 1
    assert run(["flow", "retry", "--store", store, "--all"]) == 1
    assert capsys.readouterr().err.count("was never used by a node") == 2
    assert list(tmp_path.glob("*.db")) == [path]
    assert run(["flows", "list"]) == 2
    assert "Did you mean 'postroad flow ls'?" in capsys.readouterr().err
    assert run(["flow", "lst"]) == 2
