"""What somebody else has left where a node keeps its files: a token, a store, a card, a key."""

import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from postroad.admin import create_root, issue
from postroad.admin.cards import find_cards
from postroad.admin.flows import reading_flows
from postroad.admin.serving import AdminServer
from postroad.cli.main import run
from postroad.core.errors import ConfigError
from postroad.node import Node
from postroad.node.settings import NodeSettings
from tests.support.foreign import give_away
from tests.support.node.configs import config_of


async def check_it_is_refused(server: Node | AdminServer, reason: str = "belongs to") -> None:
    """Have it not start; if it does, it is stopped before the test fails."""
    with pytest.raises(ConfigError, match=reason):
        async with server:
            pass


async def test_files_of_a_node_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    data = tmp_path / "above" / "data"
    try:
        config = config_of(data, admin={"bind": "127.0.0.1:0"})
        async with Node(config) as node, AdminServer(node):
            made = [tmp_path / "above", data, *data.iterdir()]
            modes = {it.name: stat.S_IMODE(it.stat().st_mode) for it in made}
        create_root(tmp_path / "certs")
    finally:
        os.umask(before)
    assert {"alpha.token", "alpha.node.json", "alpha.db"} <= {*modes}
    assert [it for it in modes if modes[it] & 0o077] == [], modes
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", ".node.lock"])
async def test_store_of_somebody_else_is_neither_written_nor_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    async with Node(config_of(tmp_path)) as node:
        await node.queues.send("orders", b"mine", to="alpha")
    path = tmp_path / f"alpha.db{ending}"
    path.touch()
    give_away(monkeypatch, path)
    content = path.read_bytes()
    await check_it_is_refused(Node(config_of(tmp_path)))
    if ending != ".node.lock":
        with pytest.raises(ConfigError, match="belongs to"):
            async with reading_flows(str(tmp_path / "alpha.db")):
                raise AssertionError("it was read")
    assert path.read_bytes() == content


async def test_token_of_somebody_else_is_not_that_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "alpha.token"
    async with Node(config_of(tmp_path, admin={"bind": "127.0.0.1:0"})) as node:
        planted.write_text("known-to-somebody-else\n")
        give_away(monkeypatch, planted)
        await check_it_is_refused(AdminServer(node), r"alpha\.token belongs to")


async def test_directory_of_somebody_else_is_not_that_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "planted"
    data.mkdir(0o777)
    give_away(monkeypatch, data)
    await check_it_is_refused(Node(config_of(data)), "planted belongs to")
    assert [*data.iterdir()] == []


@pytest.mark.parametrize("file", ["alpha.pem", "alpha.key", "ca.pem"])
async def test_certificates_of_somebody_else_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    create_root(tmp_path)
    issue(tmp_path, "alpha")
    files = {
        "certificate": str(tmp_path / "alpha.pem"),
        "key": str(tmp_path / "alpha.key"),
    }
    give_away(monkeypatch, tmp_path / file)
    tls = {**files, "ca": str(tmp_path / "ca.pem")}
    await check_it_is_refused(Node(config_of(tmp_path, tls=tls)))
    admin = {"bind": "127.0.0.1:0", **files, "client_trust": str(tmp_path / "ca.pem")}
    async with Node(config_of(tmp_path / "data", admin=admin)) as node:
        await check_it_is_refused(AdminServer(node))


def test_secret_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text("x" * 32)
    settings = NodeSettings(name="alpha", secret_file=str(path))
    assert settings.read_secrets() == ("x" * 32,)
    give_away(monkeypatch, path)
    with pytest.raises(ConfigError, match="secret belongs to"):
        settings.read_secrets()


@contextmanager
def listening_stranger() -> Iterator[tuple[str, list[str]]]:
    """A server of somebody else; yields its URL, and what it was sent."""
    sent: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(f"{self.path} {self.headers.get('Authorization')}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", sent
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("planted", ["card", "directory", "link"])
def test_no_token_is_sent_to_a_node_that_somebody_else_has_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    planted: str,
) -> None:
    monkeypatch.setenv("POSTROAD_TOKEN", "a-token-of-mine-0123456789")
    data = tmp_path / "data"
    data.mkdir()
    with listening_stranger() as (url, sent):
        card = {"name": "alpha", "cluster": "c", "pid": os.getpid(), "url": url, "version": "1"}
        path = data / "alpha.node.json"
        if planted == "link":
            (tmp_path / "elsewhere").write_text(json.dumps(card))
            path.symlink_to(tmp_path / "elsewhere")
        else:
            path.write_text(json.dumps(card))
        give_away(monkeypatch, data if planted == "directory" else path)
        for words in (["node", "show"], ["check"], ["queue", "purge", "orders", "--yes"]):
            for more in ([], ["--node", "alpha"]):
                assert run([*words, "--data", str(data), *more]) != 0, words
                captured = capsys.readouterr()
                assert "belongs to" in captured.out + captured.err, words
    assert sent == []
    assert find_cards(data) == []
    assert msgspec.json.decode(path.read_bytes())["name"] == "alpha"
