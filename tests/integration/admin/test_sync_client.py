"""Programs without an event loop at a node in another process, which is killed and comes back."""

from __future__ import annotations

import asyncio
import datetime
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from postroad import Queue, SyncClient
from postroad.admin.client import Client
from postroad.admin.errors import WrongToken
from postroad.core.errors import (
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    PostroadError,
    UsageError,
)
from postroad.flows import FlowKilledError, FlowNotFoundError, FlowStatus, WrongSignalError
from tests.support.admin.sync_node import (
    Order,
    OutOfStockError,
    count_packed,
    deliver,
    fail,
    orders,
)
from tests.support.deadlines import DEADLINE_S

PROGRAM = "from tests.support.admin.sync_node import main; main()"


class Process:
    """A node that can be killed and started again on the same data."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self._port = "0"
        self._process: subprocess.Popen[str] | None = None

    def start(self, port: str | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.directory), port or self._port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self._port = self.url.rpartition(":")[2]

    def end(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.communicate(timeout=DEADLINE_S)
            self._process = None

    @property
    def token(self) -> str:
        return (self.directory / "alpha.token").read_text().strip()

    def client(self, timeout: float = DEADLINE_S) -> SyncClient:
        return SyncClient(self.url, self.token, timeout=timeout)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path / "data")
    process.start()
    try:
        yield process
    finally:
        process.end()


def test_client_sends_starts_signals_queries_and_waits(node: Process) -> None:
    with SyncClient(data=node.directory) as client:
        first = client.send(orders, Order("tea"), key="ann", headers={"a": "b"})
        assert client.send(orders, Order("rope"), idempotency_key="once") > first
        again = client.send(orders, Order("rope"), idempotency_key="once")
        assert again != first
        while len(found := client.run_flow(count_packed)) < 2:
            time.sleep(0.02)
        assert found == ["tea", "rope"]
        day = datetime.date(2026, 11, 18)
        handle = client.start_flow_with_id("mine", deliver, Order("tea"), b"\0", b"", when=day)
        same = client.start_flow_with_id("mine", deliver, Order("other"))
        assert same.id == handle.id == client.get_handle("mine").id
        assert handle.query("item", Order) == Order("tea")
        assert handle.query("item") == {"item": "tea", "count": 1}
        with pytest.raises(TimeoutError, match=r"has not ended in .* s: it is running"):
            handle.result(timeout=0.05)
        with pytest.raises(WrongSignalError, match="Expected `int`"):
            handle.signal("go", "five")
        handle.signal("go", 5)
        # As it was returned: JSON has no numbers as keys.
        assert handle.result(timeout=DEADLINE_S) == {2: Order("tea 2026-11-18", 5)}
        assert client.get_handle(handle.id, deliver).result() == handle.result()
        assert handle.show().status is FlowStatus.COMPLETED


def test_errors_of_flows_are_raised_by_their_class(node: Process) -> None:
    client = node.client()
    with pytest.raises(OutOfStockError, match="no tea left"):
        client.start_flow(deliver, Order("tea", 0)).result(timeout=DEADLINE_S)
    handle = client.start_flow(deliver, Order("tea"))
    Client(node.url, node.token).call("flow.kill", {"id": handle.id})
    with pytest.raises(FlowKilledError):
        handle.result(timeout=DEADLINE_S)
    with pytest.raises(FlowNotFoundError):
        client.get_handle("nothing")


def test_a_parked_flow_has_not_ended(node: Process) -> None:
    handle = node.client().start_flow(fail, "nowhere")
    deadline = time.monotonic() + DEADLINE_S
    while handle.show().status is not FlowStatus.PARKED and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(TimeoutError, match="it is parked"):
        handle.result(timeout=0.05)


def test_node_that_is_killed_between_start_and_result(node: Process) -> None:
    client = SyncClient(data=node.directory, timeout=DEADLINE_S)
    handle = client.start_flow_with_id("lasting", deliver, Order("tea"))
    results: list[object] = []
    waiting = threading.Thread(target=lambda: results.append(handle.result(DEADLINE_S)))
    waiting.start()
    node.end()
    restart = threading.Timer(0.3, node.start, ["0"])
    restart.start()
    # Somebody who does not know whether it was started says it again, while nobody is there.
    same = client.start_flow_with_id("lasting", deliver, Order("other"))
    assert same.id == handle.id
    same.signal("go", 7)
    waiting.join()
    restart.join()
    assert results == [{0: Order("tea None", 7)}]


def test_sending_through_a_kill_sends_once(node: Process) -> None:
    quiet = Queue("quiet", int)
    client = node.client()
    count = 60
    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(client.send, quiet, number) for number in range(count)]
        sent[10].result()
        node.end()
        node.start()
        ids = [each.result() for each in sent]
    assert len(set(ids)) == count
    assert client._call("queue.show", {"queue": "quiet"})["depth"] == count


def test_node_that_is_away_is_told_within_the_timeout(node: Process) -> None:
    client, local = node.client(0.3), SyncClient(data=node.directory, timeout=0.3)
    handle = client.start_flow(deliver, Order("tea"))
    node.end()
    started = time.monotonic()
    for call in (
        lambda: client.send(orders, Order("tea")),
        lambda: client.start_flow(deliver, Order("tea")),
        lambda: handle.signal("go", 1),
        handle.result,
    ):
        with pytest.raises(ConnectError, match="nobody answers at http://127"):
            call()
    with pytest.raises(ConnectError, match="no node runs on this machine with its files in"):
        local.run_flow(count_packed)
    assert time.monotonic() - started < DEADLINE_S / 2


def test_mistakes_are_told_at_once(node: Process, tmp_path: Path) -> None:
    wrong = SyncClient(node.url, "x" * 24)
    with pytest.raises(WrongToken):
        wrong.send(orders, Order("tea"))
    client = node.client()
    with pytest.raises(UsageError, match="Order"):
        client.send(orders, "tea")  # type: ignore[misc]  # That is the mistake.
    with pytest.raises(UsageError, match="missing a required argument"):
        client.start_flow(deliver)  # type: ignore[call-arg]  # That is the mistake.
    with pytest.raises(PostroadError, match="cannot begin with these arguments"):
        client.start_flow(fail, 3)  # type: ignore[arg-type]  # That is the mistake.
    with pytest.raises(ConfigError, match="not both"):
        SyncClient(node.url, node="alpha")
    with pytest.raises(ConfigError, match="must be above 0"):
        SyncClient(node.url, timeout=0)
    with pytest.raises(ConfigError, match="is no address"):
        SyncClient("ftp://somewhere")


async def test_client_works_where_a_loop_runs(node: Process) -> None:
    # As in a notebook, whose cells run in a loop.
    assert asyncio.get_running_loop().is_running()
    assert node.client().run_flow(count_packed) == []


def test_answer_that_breaks_off_is_not_repeated_where_that_could_do_it_twice() -> None:
    import socketserver

    asked: list[str] = []

    class Cut(socketserver.BaseRequestHandler):
        """Hears what is asked, and hangs up."""

        def handle(self) -> None:
            asked.append(self.request.recv(65_536).decode().split()[1])

    with socketserver.TCPServer(("127.0.0.1", 0), Cut) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.server_address[:2]
        client = SyncClient(f"http://{host!s}:{port}", "x" * 24, timeout=0.5)
        with pytest.raises(ConnectionClosedError):
            client.start_flow(count_packed)
        assert asked == ["/api/v1/flow/begin"]
        with pytest.raises(ConnectionClosedError):
            client.start_flow_with_id("again", count_packed)
        assert len(asked) > 2
        server.shutdown()
