"""What mypy and pyright accept and reject in programs of users."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[3]
DEADLINE_S = 240
Errors: TypeAlias = dict[str, dict[int, str]]
"""By file and line."""

HEAD = """\
import msgspec

from postroad import INJECTED, Message, Queue, SyncClient, SyncTransaction, Transaction
from postroad import consumer, flow
from postroad.durable import DurableQueues, SendOptions
from postroad.flows import FlowContext, FlowSession, RetryPolicy, StepId, StoreConnection, responder
from postroad.flows import FlowService, SyncFlowContext, SyncFlowSession


class Order(msgspec.Struct):
    item: str
    count: int = 1


orders = Queue("orders", Order)


def pack(item: str, count: int, *, name: str = "") -> str:
    return f"{count} {item} {name}"


async def charge(order: Order, key: StepId = INJECTED, tx: Transaction = INJECTED) -> int:
    await tx.execute("INSERT INTO charges VALUES (?)", (key,))
    return order.count


def weigh(order: Order, *, db: StoreConnection = INJECTED) -> float:
    return float(db.execute("SELECT weight FROM items").fetchone()[0])


async def bare(order: Order, tx: Transaction) -> None: ...


def nothing() -> None: ...


"""

# A line with `# error` is one that both reject; no other is.
PROGRAMS = {
    "steps": """\
@flow
async def deliver(ctx: FlowContext, order: Order) -> str:
    parcel: str = await ctx.step(pack, order.item, order.count, name="gift")
    charged: int = await ctx.step(charge, order)
    kilos: float = await ctx.step(weigh, order)
    patiently = ctx.step.with_options(retry=RetryPolicy(max_attempts=3), timeout=5, name="packing")
    again: str = await patiently(pack, "tea", 2)
    await ctx.step(nothing)
    text: str = await ctx.step(lambda: "text")
    both: list[object] = await ctx.gather(ctx.step(pack, "a", 1), ctx.step(charge, order))
    return f"{parcel} {charged} {kilos} {again} {text} {both}"


async def start(flows: FlowService) -> None:
    handle = await flows.start_flow(deliver, Order("tea"))
    first: str = await handle.result()
    second: str = await flows.run_flow(deliver, order=Order("tea"))
    print(first, second)
""",
    "wrong_steps": """\
@flow
async def deliver(ctx: FlowContext, order: Order) -> None:
    await ctx.step(pack, order.item, "two")  # error
    await ctx.step(pack, order.item)  # error
    await ctx.step(pack, order.item, 2, color="red")  # error
    await ctx.step(pack, order.item, 2, name=3)  # error
    await ctx.step(charge, order.item)  # error
    await ctx.step(charge, order, tx="none")  # error
    await ctx.step(bare, order)  # error
    await ctx.step.with_options(attempts=3)(pack, "tea", 2)  # error
    await ctx.step.with_options(timeout=3)(pack, "tea", None)  # error
    parcel: int = await ctx.step(pack, "tea", 2)  # error
    charged: str = await ctx.step(charge, order)  # error
    order.price  # error
    print(parcel, charged)


@flow
async def weigh_again(ctx: FlowContext, order: Order) -> str:
    return await ctx.step(weigh, order)  # error


async def start(flows: FlowService) -> None:
    await flows.start_flow(deliver, "tea")  # error
    await flows.start_flow(deliver)  # error
    number: int = await flows.run_flow(weigh_again, Order("tea"))  # error
    print(number)
""",
    "sync_flows": """\
from functools import partial


@flow
def weigh_all(ctx: SyncFlowContext, orders: list[Order], *, at_most: float = 1.0) -> list[float]:
    def weigh_one(order: Order) -> float:
        return ctx.step(weigh, order)

    kilos: list[float] = ctx.gather(*[partial(weigh_one, order) for order in orders])
    first: tuple[str, bool | None] = ctx.select(
        stop=partial(ctx.wait_for_signal, "stop", bool), late=partial(ctx.sleep, 5)
    )
    return kilos if first[1] else []


@flow(name="delivery", timeout=60)
def deliver(ctx: SyncFlowContext, order: Order, peer: str) -> str:
    parcel: str = ctx.step(pack, order.item, order.count, name="gift")
    charged: int = ctx.step(charge, order)
    patiently = ctx.step.with_options(retry=RetryPolicy(max_attempts=3), timeout=5, name="packing")
    again: str = patiently(pack, "tea", 2)
    ctx.step(nothing)
    kilos: list[float] = ctx.run_subflow(weigh_all, [order], at_most=2.5)
    session: SyncFlowSession = ctx.open_session(peer)
    session.send(order)
    receipt: str = session.receive(str, timeout=5)
    go: bool = ctx.wait_for_signal("go", bool)
    return f"{parcel} {charged} {again} {kilos} {receipt} {go}"


@responder(deliver)
def answer(ctx: SyncFlowContext, session: SyncFlowSession) -> None:
    session.send(ctx.step(pack, session.receive(Order).item, 1))


@responder(deliver, name="other")
async def other(ctx: FlowContext, session: FlowSession) -> float:
    return (await ctx.run_subflow(weigh_all, [Order("tea")]))[0]
""",
    "wrong_sync_flows": """\
@flow
def deliver(ctx: SyncFlowContext, order: Order) -> str:
    ctx.step(pack, order.item, "two")  # error
    ctx.step(pack, order.item)  # error
    ctx.step(charge, order.item)  # error
    ctx.step(bare, order)  # error
    ctx.step.with_options(attempts=3)(pack, "tea", 2)  # error
    parcel: int = ctx.step(pack, "tea", 2)  # error
    charged: str = ctx.step(charge, order)  # error
    sizes: list[str] = ctx.gather(lambda: 3)  # error
    ctx.gather(ctx.step(charge, order))  # error
    go: str = ctx.wait_for_signal("go", bool)  # error
    return f"{parcel} {charged} {sizes} {go}"


@flow
def whole(ctx: SyncFlowContext) -> None:
    ctx.run_subflow(deliver, "tea")  # error
    number: int = ctx.run_subflow(deliver, Order("tea"))  # error
    print(number)


@flow  # error
def mixed(ctx: FlowContext) -> None: ...


@responder(deliver)  # error
def answer(ctx: SyncFlowContext, session: FlowSession) -> None: ...
""",
    "queues": """\
@consumer(orders)
async def bill(order: Order, tx: Transaction) -> None:
    await orders.send(order, tx=tx)


@consumer(orders)
def file(message: Message) -> None:
    print(message.id)


@consumer(orders)
def book(order: Order, tx: SyncTransaction) -> None:
    rows: int = len(tx.execute("SELECT 1"))
    number: int = orders.send(order, tx=tx)
    print(rows, number)


@consumer("names")
def take(message: Message, tx: SyncTransaction) -> None:
    tx.send("names", message.body)


async def send(queues: DurableQueues, client: SyncClient) -> None:
    options: SendOptions = {"key": "customer 1", "priority": 2}
    typed: int = await orders.send(Order("tea"), to="beta", delay=2, headers={"h": "1"})
    raw: int = await queues.send("orders", b"", reply_to="replies", **options)
    async with queues.transaction() as tx:
        sent: int = tx.send("orders", b"", ttl=1.5, idempotency_key=None)
    from_outside: int = client.send(orders, Order("tea"), **options)
    print(typed, raw, sent, from_outside)
""",
    "wrong_queues": """\
@consumer(orders)  # error
async def bill(order: int) -> None: ...


@consumer(orders)
def book(order: Order, tx: SyncTransaction) -> None:
    order.price  # error
    number: str = orders.send(order, tx=tx)  # error
    print(number)


async def send(queues: DurableQueues, client: SyncClient) -> None:
    await orders.send("tea")  # error
    await orders.send(Order(3))  # error
    await orders.send(Order("tea"), after=2)  # error
    await orders.send(Order("tea"), delay="soon")  # error
    await queues.send("orders", "text")  # error
    await queues.send("orders", b"", after=2)  # error
    client.send(orders, "tea")  # error
    client.send(orders, Order("tea"), headers={"h": 1})  # error
""",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("programs")
    for name, body in PROGRAMS.items():
        (place / f"{name}.py").write_text(HEAD + body, encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    first = next(it for it in blocks if "@consumer(orders)" in it)
    (place / "readme.py").write_text(first, encoding="utf-8")
    return place


def run_mypy(place: Path, cache: pytest.Cache) -> Errors:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--output=json"]
    done = subprocess.run(
        [*command, f"--cache-dir={cache.mkdir('mypy-programs')}", "--follow-imports=silent", "."],
        cwd=place,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    errors: Errors = {}
    for line in done.stdout.splitlines():
        told = json.loads(line)
        if told["severity"] == "error":
            errors.setdefault(told["file"], {})[told["line"]] = told["message"]
    return errors


def run_pyright(place: Path, _: pytest.Cache) -> Errors:
    if which("node") is None:
        pytest.skip("needs node: apt-get install nodejs")
    config = {
        "extraPaths": [str(ROOT / "src")],
        "typeCheckingMode": "strict",
        "reportUnusedImport": False,
        "pythonVersion": "3.11",
    }
    (place / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, "--project", "."],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    errors: Errors = {}
    for told in json.loads(done.stdout)["generalDiagnostics"]:
        if told["severity"] == "error":
            line = told["range"]["start"]["line"] + 1
            errors.setdefault(Path(told["file"]).name, {})[line] = told["message"]
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("run", [run_mypy, run_pyright])
def test_type_checkers_accept_and_reject_the_same(
    run: Callable[[Path, pytest.Cache], Errors], programs: Path, pytestconfig: pytest.Config
) -> None:
    cache = pytestconfig.cache
    assert cache is not None
    errors = run(programs, cache)
    for file in sorted(programs.glob("*.py")):
        lines = file.read_text("utf-8").splitlines()
        expected = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
        reported = errors.get(file.name, {})
        assert set(reported) == expected, f"{file.name}: {reported}"
