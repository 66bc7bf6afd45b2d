"""The web application of the page, run by a real server, killed and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT, files_of
from tests.support.deadlines import DEADLINE_S
from tests.support.servers.process import free_port


class Client:
    """Asks the application as a browser would."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def send(self, path: str, body: dict[str, Any] | None = None, method: str = "GET") -> Any:
        """The answer to a request, which is made again until the server is there."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
                    return json.load(response)
            except (ConnectionError, urllib.error.URLError) as error:
                is_answer = isinstance(error, urllib.error.HTTPError) and error.code != 404
                if is_answer or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def wait_for(self, path: str, **wanted: Any) -> None:
        """Ask until the answer is this."""
        deadline = time.monotonic() + DEADLINE_S
        while (answer := self.send(path)) != wanted:
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)


@contextmanager
def serving(directory: Path) -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "shop:web", "--port", str(port)]
    process = subprocess.Popen(command, cwd=directory)
    try:
        yield Client(port), process
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def test_application_answers_and_its_flows_survive_a_kill(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(files_of("web.md")["shop.py"])
    order = {"number": 1, "item": "tea", "count": 2}
    with serving(tmp_path) as (client, process):
        for _ in range(2):
            assert client.send("/orders", order, "POST") == {"status_at": "/orders/order-1"}
        client.wait_for("/orders/order-1", status="running", result=None)
        process.kill()
        process.wait(DEADLINE_S)
    with serving(tmp_path) as (client, process):
        client.wait_for("/orders/order-1", status="running", result=None)
        client.send("/orders/order-1/address?address=Bob", method="POST")
        client.wait_for("/orders/order-1", status="done", result="2 tea packed, sent to Bob")
    assert process.returncode in (0, -signal.SIGTERM)


def test_page_shows_what_the_application_answers() -> None:
    text = (ROOT / "docs" / "web.md").read_text(encoding="utf-8")
    assert '{"status_at":"/orders/order-1"}\n' in text
    assert '{"status":"running","result":null}\n' in text
