"""Jobs of a node: those with queues run in it, others beside it, all supervised."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from postroad.admin.operations import NodeOffice
from postroad.admin.serving import AdminServer
from postroad.cli.main import run as run_command
from postroad.core.errors import ConfigError, PostroadError
from postroad.node import App, Node, NodeConfig
from postroad.node import jobs as node_jobs
from postroad.pipeline import JobProgress, Spark, run
from tests.integration.admin.operations.operating import Operator
from tests.support.deadlines import eventually
from tests.support.node.configs import config_of
from tests.support.pipeline.clearing_job import JOB
from tests.support.servers.postgres import fresh_database

QUEUE_JOB = """
name = "relay"
workflow = [["in", "double"], ["double", "out"]]

[[catalog]]
name = "in"
type = "input"
connector = "queue"
options = { queue = "orders", until_empty = UNTIL_EMPTY }
retry = { attempts = 2, first_s = 0.001 }

[[catalog]]
name = "double"
type = "function"
fn = "relay_functions:double"

[[catalog]]
name = "out"
type = "output"
connector = "queue"
options = { peer = "alpha", queue = "doubled" }
"""
FUNCTIONS = """
def double(segment):
    return {"n": 2 * int(segment["n"])}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "relay_functions", raising=False)
    monkeypatch.setattr(node_jobs, "_PAUSE_FIRST_S", 0.01)
    sys.path.insert(0, str(tmp_path))
    write(tmp_path / "relay_functions.py", FUNCTIONS)
    write_job(tmp_path)
    yield tmp_path
    sys.modules.pop("relay_functions", None)


def write(path: Path, text: str) -> None:
    path.write_text(text)


def write_job(place: Path, *, until_empty: bool = True) -> Path:
    path = place / "relay.toml"
    path.write_text(QUEUE_JOB.replace("UNTIL_EMPTY", "true" if until_empty else "false"))
    return path


def make_config(place: Path, **more: Any) -> NodeConfig:
    return config_of(place / "data", admin={"bind": "127.0.0.1:0"}, **more)


def write_config(place: Path, store: str | None = None) -> None:
    mail = "" if store is None else f'[queues]\nstore = "{store}"\n'
    write(
        place / "postroad.toml",
        f'[node]\nname = "alpha"\ndata = "{place / "data"}"\n[admin]\nbind = "127.0.0.1:0"\n{mail}',
    )


@asynccontextmanager
async def served(config: NodeConfig) -> AsyncIterator[Operator]:
    async with Node(config, App()) as node, AdminServer(node):
        yield Operator(NodeOffice(node))


async def post(node: Node, *numbers: object) -> None:
    for n in numbers:
        await node.queues.send("orders", json.dumps({"n": n}).encode(), to=node.name)


async def fill_stopped_node(config: NodeConfig, *numbers: object) -> None:
    async with Node(config, App()) as node:
        await post(node, *numbers)


async def doubled(node: Node) -> list[int]:
    letters = await Operator(NodeOffice(node)).do("queue.peek", queue="doubled", limit=100)
    return sorted(json.loads(it.body)["n"] for it in letters)


async def until_acked(operator: Operator, count: int, job: str = "relay") -> None:
    await operator.until(
        lambda it: it.progress is not None and it.progress.acked >= count, "job.show", job=job
    )


# Without a node at hand.


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    if request.param == "sqlite":
        yield None
        return
    with fresh_database() as dsn:
        yield dsn


async def test_queues_of_a_node_that_rests_are_found_by_its_configuration(
    place: Path, store: str | None
) -> None:
    write_config(place, store)
    config = make_config(place, **({} if store is None else {"queues": {"store": store}}))
    await fill_stopped_node(config, 1, "x", 3)
    result = await run("relay.toml")
    assert (result.acked, result.dead) == (2, 1)
    # Again there is nothing to do.
    assert (await run("relay.toml", config=config)).delivered == 0
    assert (await run("relay.toml", config="postroad.toml")).delivered == 0
    async with Node(config, App()) as node:
        assert await doubled(node) == [2, 6]
        operator = Operator(NodeOffice(node))
        # Its account is in the store of the node, which does not know of it yet.
        with pytest.raises(LookupError):
            await operator.do("job.show", job="relay")


async def test_queues_of_a_running_node_are_worked_on_there(place: Path, store: str | None) -> None:
    write_config(place, store)
    config = make_config(place, **({} if store is None else {"queues": {"store": store}}))
    async with served(config) as operator:
        node = operator.office.node
        await post(node, 1, "x", 3)
        seen: list[JobProgress] = []
        result = await run("relay.toml", on_progress=seen.append)
        assert (result.acked, result.dead) == (2, 1)
        assert {it.pid for it in seen} <= {os.getpid()}
        assert await doubled(node) == [2, 6]
        view = await operator.do("job.show", job="relay")
        assert (view.state, view.dead, view.result) == ("finished", 1, result)
        (dead,) = await operator.do("job.dead-letters", job="relay")
        assert "ValueError" in dead.error
        assert (await operator.do("job.drop", job="relay")).count == 1
        # What only the node can be told is refused, and not left out.
        with pytest.raises(ConfigError, match="as its configuration says"):
            await run("relay.toml", on=Spark("local[1]"))
        with pytest.raises(ConfigError, match="give the node itself"):
            await run(read_job(place))
        # With the node itself there is nothing in between.
        await post(node, 4)
        assert (await run(read_job(place), node=node)).acked == 1
        assert await doubled(node) == [2, 6, 8]


def read_job(place: Path) -> Any:
    from postroad.pipeline import load_job

    return load_job(place / "relay.toml")


async def test_cancelled_run_in_a_node_stops_there_too(place: Path) -> None:
    write_config(place)
    write_job(place, until_empty=False)
    async with served(make_config(place)) as operator:
        running = asyncio.create_task(run("relay.toml"))
        await eventually(lambda: is_running(operator.office.node))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await operator.do("job.show", job="relay")).state == "stopped"


def is_running(node: Node) -> bool:
    return any(it.progress is not None for it in node.jobs.jobs.values())


async def test_store_that_another_process_has_is_told(place: Path) -> None:
    write_config(place)
    config = make_config(place)
    # It runs, and serves no API.
    async with Node(config, App()):
        with pytest.raises(ConfigError, match="submit the job to that node, or stop it"):
            await run("relay.toml")


async def in_thread(*words: str) -> int:
    """A command, beside the node of this process."""
    return await asyncio.to_thread(lambda: run_command([*words]))


async def test_commands_on_files_with_queues(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(place)
    config = make_config(place)
    # Signals are the main thread's.
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", lambda *_: None)
    await fill_stopped_node(config, 1, "x")
    assert await in_thread("job", "run", "relay.toml") == 4
    assert capsys.readouterr().out == "1 acknowledged, 1 failures, 1 dead\n".replace("1 f", "2 f")
    assert await in_thread("job", "dead-letters", "relay.toml") == 0
    assert "ValueError" in capsys.readouterr().out
    assert await in_thread("job", "show", "relay.toml") == 0
    assert "1 dead" in capsys.readouterr().out
    write_job(place, until_empty=False)
    async with served(config) as operator:
        assert await in_thread("job", "submit", "relay.toml") == 0
        assert capsys.readouterr().out == "node alpha runs it; it is running\n"
        await eventually(lambda: is_running(operator.office.node))
        assert await in_thread("job", "show", "relay.toml") == 0
        assert capsys.readouterr().out.startswith("node alpha: 0 acknowledged")
        assert await in_thread("job", "submit", "relay.toml") == 1
        assert "runs already in node 'alpha'" in capsys.readouterr().err
        write(place / "relay_functions.py", "def double(segment):\n    return {'n': 0}\n")
        assert await in_thread("job", "stop", "relay.toml", "--yes") == 0
        assert capsys.readouterr().out == "node alpha has stopped it\n"
        assert await in_thread("job", "drop", "relay.toml", "--all", "--yes") == 0
        assert capsys.readouterr().out == "1 segment dropped\n"


# Supervised.


async def test_job_of_the_configuration_runs_with_the_node_and_goes_on_at_the_next_start(
    place: Path,
) -> None:
    path = write_job(place, until_empty=False)
    config = make_config(place, pipeline={"jobs": [str(path)]})
    async with served(config) as operator:
        node = operator.office.node
        await post(node, 1, 2)
        await until_acked(operator, 2)
        view = await operator.do("job.show", job="relay")
        assert (view.state, view.progress.pid, view.restarts) == ("running", os.getpid(), 0)
        await node.drain(5)
        assert (await operator.do("job.show", job="relay")).state == "stopped"
        await post(node, 3)
    async with served(config) as operator:
        await until_acked(operator, 1)
        assert await doubled(operator.office.node) == [2, 4, 6]


async def test_several_jobs_of_a_node_run_at_once_each_with_its_own_account(place: Path) -> None:
    first = write_job(place, until_empty=False)
    text = first.read_text().replace('"relay"', '"again"').replace('"doubled"', '"fourfold"')
    second = place / "again.toml"
    write(second, text.replace('"orders"', '"doubled"'))
    config = make_config(place, pipeline={"jobs": [str(first), str(second)]})
    async with served(config) as operator:
        node = operator.office.node
        await post(node, *range(50), "x")
        # What one job makes is what the other reads, while both go on.
        await until_acked(operator, 50, "again")
        letters = await operator.do("queue.peek", queue="fourfold", limit=100)
        assert sorted(json.loads(it.body)["n"] for it in letters) == [4 * n for n in range(50)]
        await operator.until(lambda it: it.progress.dead == 1, "job.show", job="relay")
        assert (await operator.do("job.show", job="again")).progress.dead == 0


async def test_job_that_fails_is_started_again_until_it_works(place: Path) -> None:
    path = write_job(place, until_empty=False)
    write(place / "relay_functions.py", "raise RuntimeError('broken')\n")
    config = make_config(place, pipeline={"jobs": [str(path)]})
    async with served(config) as operator:
        view = await operator.until(lambda it: it.restarts >= 2, "job.show", job="relay")
        assert "broken" in (view.problem or "")
        overview = await operator.until(lambda it: it.troubles, "node.overview")
        assert "broken" in overview.troubles[0].detail
        await post(operator.office.node, 5)
        write(place / "relay_functions.py", FUNCTIONS)
        await until_acked(operator, 1)
        view = await operator.do("job.show", job="relay")
        assert view.state == "running"
        assert view.restarts >= 2


async def test_function_that_exits_does_not_end_the_node(place: Path) -> None:
    path = write_job(place, until_empty=False)
    write(place / "relay_functions.py", "def double(segment):\n    raise SystemExit(3)\n")
    async with served(make_config(place, pipeline={"jobs": [str(path)]})) as operator:
        await post(operator.office.node, 5)
        view = await operator.until(lambda it: it.restarts >= 1, "job.show", job="relay")
        assert view.problem == "3"
        assert operator.office.node.is_running


async def test_queue_that_a_consumer_has_is_told(place: Path) -> None:
    path = write_job(place)
    async with Node(make_config(place), App()) as node:
        operator = Operator(NodeOffice(node))
        await node.queues.consume("orders", ignore)
        await operator.do("job.submit", job=str(path), restart=False)
        view = await operator.until(lambda it: it.state == "failed", "job.show", job="relay")
        assert "queue 'orders' has" in view.problem


async def ignore(message: Any, tx: Any) -> None:
    """Takes a message."""


async def test_node_reads_no_job_from_anywhere(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret.toml"
    write(elsewhere, "password = 'hush'\n")
    link = place / "link.toml"
    link.symlink_to(elsewhere)
    async with Node(make_config(place), App()) as node:
        operator = Operator(NodeOffice(node))
        for name in (str(elsewhere), f"../{elsewhere.parent.name}/secret.toml", "link.toml"):
            with pytest.raises(PostroadError) as caught:
                await operator.do("job.submit", job=name)
            assert "hush" not in str(caught.value)
            assert "password" not in str(caught.value)
        assert await operator.do("job.ls") == []


async def test_waiting_segments_and_windows_are_shown(place: Path) -> None:
    path = write_job(place, until_empty=False)
    text = path.read_text().replace("first_s = 0.001", "first_s = 600, max_s = 600")
    window = """
[[windows]]
name = "per_minute"
task = "double"
type = "fixed"
aggregation = "sum"
key = "n"
time_key = "at"
range_s = 60
allowed_lateness_s = 1

[[triggers]]
window = "per_minute"
on = "drained"
"""
    write(path, text.replace('double"\n\n[[catalog]]', 'double"\ngroup_by = "shop"\n\n[[catalog]]'))
    write(path, path.read_text() + window)
    write(place / "relay_functions.py", "def double(s):\n    return {**s, 'n': int(s['n'])}\n")
    async with served(make_config(place, pipeline={"jobs": [str(path)]})) as operator:
        node = operator.office.node

        async def send(n: object, at: int) -> None:
            body = json.dumps({"n": n, "at": at, "shop": "a"}).encode()
            await node.queues.send("orders", body, to="alpha")

        await send(1, 0)
        await send(2, 30)
        await send("x", 30)
        await until_acked(operator, 2)
        (waiting,) = await operator.do("job.waiting", job="relay")
        assert (waiting.failed_task, waiting.attempts) == ("double", 1)
        assert "ValueError" in waiting.error
        (view,) = await operator.do("job.windows", job="relay")
        assert (view.name, view.late) == ("per_minute", 0)
        (extent,) = view.extents
        assert (extent.group, extent.lower, extent.upper, extent.value) == ("a", 0, 60, 3)
        # One of long after that lets the first minute go, and then one of it is late.
        await send(7, 6_000)
        await until_acked(operator, 3)
        await send(8, 10)
        view = await operator.until(
            lambda it: it.progress and it.progress.late == {"per_minute": 1},
            "job.show",
            job="relay",
        )
        (window_view,) = await operator.do("job.windows", job="relay")
        assert (window_view.late, [it.value for it in window_view.extents]) == (1, [7])


# Beside the node.


@pytest.fixture
def file_job(place: Path) -> Path:
    write(place / "clearing_functions.py", "def parse(segment):\n    return segment\n")
    (place / "payments").mkdir()
    write(place / "payments" / "a.jsonl", '{"amount": 1}\n')
    path = place / "clearing.toml"
    write(path, JOB)
    return path


async def test_job_without_queues_runs_beside_the_node_to_its_end(
    place: Path, file_job: Path
) -> None:
    async with served(make_config(place, pipeline={"jobs": [str(file_job)]})) as operator:
        await operator.until(lambda it: it.state == "finished", "job.show", job="clearing")
        assert list((place / "cleared").glob("*.jsonl"))
        with pytest.raises(ConfigError, match="does not run"):
            await operator.do("job.stop", job="clearing")


@pytest.mark.slow
async def test_process_of_a_job_ends_with_the_node_even_if_that_is_killed(
    place: Path, file_job: Path
) -> None:
    write(
        place / "clearing_functions.py",
        "import os, pathlib, time\n"
        "def parse(segment):\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "    time.sleep(0.1)\n"
        "    raise ValueError\n",
    )
    write(file_job, JOB.replace("attempts = 2", "attempts = 1_000_000"))
    write_config(place)
    with (place / "postroad.toml").open("a") as file:
        file.write('[pipeline]\njobs = ["clearing.toml"]\n')
    node = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "postroad", "node", "start"), stdout=asyncio.subprocess.DEVNULL
    )
    try:
        pid_file = place / "pid"
        await eventually(lambda: pid_file.exists() and pid_file.read_text())
        pid = int(pid_file.read_text())
    finally:
        node.send_signal(signal.SIGKILL)
        await node.wait()
    await eventually(lambda: not is_alive(pid), "the process of the job is gone")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
