"""Programs that cannot be loaded are told of in one line; signals end a node in good order."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from postroad.core import Lifecycle
from postroad.core.errors import ConfigError
from postroad.durable import Message, Transaction
from postroad.flows import FlowContext, flow
from postroad.node import App, Node, NodeConfig
from postroad.node.queues.consuming import Consuming
from postroad.node.running import load_program, run_until_told
from postroad.node.settings import NodeSettings, QueuesSettings
from tests.support.cases import each
from tests.support.deadlines import DEADLINE_S

CONFIG = NodeConfig(node=NodeSettings(name="alpha"), queues=QueuesSettings(store="memory"))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda text, name="probe_app.py": (tmp_path / name).write_text(text) and None


def mistake(target: str = "probe_app.py") -> str:
    with pytest.raises(ConfigError) as caught:
        load_program(target)
    return str(caught.value)


def test_program_that_cannot_be_loaded_is_told_in_one_line(write: Callable[..., None]) -> None:
    assert load_program(None).is_empty
    write("x = 1\ndef f(:\n")
    assert mistake() == "probe_app.py:2: SyntaxError: invalid syntax"
    write("import probe_part\n")
    write("import json\n\njson.loads('{')\n", "probe_part.py")
    assert mistake().startswith("probe_part.py:3: JSONDecodeError: Expecting property name")
    write("import probe_broken\n")
    write("def f(:\n", "probe_broken.py")
    assert mistake() == "probe_broken.py:1: SyntaxError: invalid syntax"
    write("import sys\nsys.exit(3)\n")
    assert mistake().startswith("probe_app.py ends the process when it is imported; put what runs")
    write("x = 1\n")
    assert mistake() == (
        "probe_app.py has nothing to run: no Service, no @flow, no @consumer, no Cell"
    )


class Beside(Lifecycle):
    def __init__(self, node: Node, log: list[str]) -> None:
        self._node = node
        self._log = log

    async def start(self) -> None:
        assert self._node.is_running
        self._log.append("beside starts")

    async def stop(self) -> None:
        assert self._node.is_running
        self._log.append("beside stops")


def tell(number: int) -> None:
    os.kill(os.getpid(), number)


@each(signal.SIGTERM, signal.SIGINT)
async def test_signal_ends_a_node_in_good_order(number: int) -> None:
    node = Node(CONFIG, App())
    log: list[str] = []

    def started(beside: Beside | None) -> None:
        assert beside is not None
        log.append("started")
        tell(number)

    await run_until_told(node, lambda it: Beside(it, log), started, drain_s=5)
    assert log == ["beside starts", "started", "beside stops"]
    assert not node.is_running


async def test_operator_ends_a_node_in_good_order() -> None:
    node = Node(CONFIG, App())
    await run_until_told(node, lambda it: None, lambda it: node.ask_to_stop(), drain_s=5)
    assert not node.is_running


async def test_signal_during_the_start_stops_what_was_started() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def lifespan(node: Node) -> AsyncIterator[None]:
        tell(signal.SIGTERM)
        await asyncio.Event().wait()
        yield

    node = Node(CONFIG, App(lifespan=lifespan))
    await run_until_told(node, lambda it: Beside(it, log), lambda it: log.append("no"), drain_s=5)
    assert log == []
    assert not node.is_running
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def take_long() -> None:
    await asyncio.sleep(1000)


@flow
async def wait(ctx: FlowContext) -> None:
    await ctx.step(take_long)


async def test_second_signal_does_not_wait_for_what_runs() -> None:
    node = Node(CONFIG, App(flows=[wait]))
    loop = asyncio.get_running_loop()

    async def begin() -> None:
        await node.flows.start_flow(wait)
        tell(signal.SIGTERM)
        loop.call_later(0.2, tell, signal.SIGINT)

    tasks = []
    async with asyncio.timeout(DEADLINE_S):
        await run_until_told(
            node,
            lambda it: None,
            lambda it: tasks.append(asyncio.create_task(begin())),
            drain_s=1000,
        )
    assert not node.is_running


async def test_second_signal_ends_a_handler_while_its_transaction_is_open() -> None:
    loop = asyncio.get_running_loop()
    were_open: list[bool] = []

    async def handle(message: Message, tx: Transaction) -> None:
        await tx.execute("SELECT 1")
        tell(signal.SIGTERM)
        loop.call_later(0.1, tell, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            # Everybody else would wait for it until its time is over.
            were_open.append(tx.is_open)

    node = Node(CONFIG, App(consumers=[Consuming(queue="orders", handler=handle)]))
    tasks = []
    async with asyncio.timeout(DEADLINE_S):
        await run_until_told(
            node,
            lambda it: None,
            lambda it: tasks.append(
                asyncio.create_task(node.queues.send("orders", b"", to=node.name))
            ),
            drain_s=1000,
        )
    assert were_open == [True]


async def test_steps_that_take_longer_are_begun_again_with_the_next_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    node = Node(CONFIG, App(flows=[wait]))

    async def begin() -> None:
        await node.flows.start_flow(wait)
        tell(signal.SIGTERM)

    tasks = []
    await run_until_told(
        node, lambda it: None, lambda it: tasks.append(asyncio.create_task(begin())), drain_s=0.1
    )
    assert "steps that are begun again with the next start: 1" in caplog.text


async def test_failed_start_is_raised() -> None:
    @asynccontextmanager
    async def lifespan(node: Node) -> AsyncIterator[None]:
        raise ValueError("no")
        yield

    node = Node(CONFIG, App(lifespan=lifespan))
    with pytest.raises(ValueError, match="no"):
        await run_until_told(node, lambda it: None, lambda it: None, drain_s=5)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_another_cancellation_is_not_swallowed() -> None:
    node = Node(CONFIG, App())
    started = asyncio.Event()
    task = asyncio.create_task(
        run_until_told(node, lambda it: None, lambda it: started.set(), drain_s=5)
    )
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not node.is_running
