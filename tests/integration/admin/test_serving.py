"""The server beside its node: where it listens, its token, and the card it leaves."""

import asyncio
import logging
import os
import signal
import stat
import sys
from datetime import UTC, datetime, timedelta
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.admin.cards import Card, find_cards, leave_card, read_token, token_path
from postroad.admin.certificates import create_root, issue
from postroad.admin.client import find_nodes
from postroad.admin.listening import take_address
from postroad.admin.serving import AdminServer
from postroad.core import Address
from postroad.core.errors import ConfigError, MissingExtraError, UsageError
from postroad.node import Node
from tests.support.admin.nodes import TOKEN, Served, config_of, connect, hang_up, served


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_token_is_made_once_and_kept(tmp_path: Path) -> None:
    async with served(tmp_path, admin={"token": None}) as node:
        token = node.admin.token
        assert len(token) >= 32
        assert read_token(tmp_path, "alpha") == token
        assert mode_of(token_path(tmp_path, "alpha")) == 0o600
        assert await node.call("queue.ls")
    async with served(tmp_path, admin={"token": None}) as node:
        assert node.admin.token == token
    # As a crash leaves it.
    token_path(tmp_path, "alpha").write_text("")
    async with served(tmp_path, admin={"token": None}) as node:
        assert read_token(tmp_path, "alpha") == node.admin.token != token


def signal_handlers() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


async def test_while_it_runs_there_is_a_card_and_no_token_or_signal_handler(tmp_path: Path) -> None:
    before = signal_handlers()
    async with served(tmp_path) as node:
        assert signal_handlers() == before
        # It is in the configuration.
        assert not token_path(tmp_path, "alpha").exists()
        [card] = find_nodes(tmp_path)
        assert (card.name, card.cluster, card.pid) == ("alpha", "postroad", os.getpid())
        assert card.url == node.admin.url
        assert mode_of(tmp_path / "alpha.node.json") == 0o600
    assert not (tmp_path / "alpha.node.json").exists()
    assert signal_handlers() == before


async def test_cards_of_the_dead_are_ignored(tmp_path: Path) -> None:
    gone = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await gone.wait()
    card = Card(name="old", cluster="c", pid=gone.pid, url="http://127.0.0.1:1", version="0")
    leave_card(tmp_path, card)
    (tmp_path / "broken.node.json").write_text("{")
    assert find_cards(tmp_path) == []
    assert find_cards(tmp_path / "missing") == []


async def test_card_of_a_successor_stays(tmp_path: Path) -> None:
    async with served(tmp_path):
        [card] = find_nodes(tmp_path)
        other = msgspec.structs.replace(card, url="http://127.0.0.1:1")
        leave_card(tmp_path, other)
    assert find_nodes(tmp_path) == [other]


async def test_an_address_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        bind = node.admin.url.removeprefix("http://")
        with pytest.raises(ConfigError, match=r"admin\.bind .* cannot be used: .*port 0"):
            async with served(tmp_path, "beta", admin={"bind": bind}):
                pytest.fail("it was started")
        # The first goes on.
        assert await node.call("queue.ls")
    with pytest.raises(ConfigError, match="cannot be used"):
        # A host that is not of this machine.
        async with served(tmp_path, admin={"bind": "192.0.2.1:0"}):
            pytest.fail("it was started")


async def test_disabled_is_nothing(tmp_path: Path) -> None:
    async with served(tmp_path, admin={"enabled": False}) as node:
        assert find_nodes(tmp_path) == []
        with pytest.raises(UsageError, match=r"admin\.enabled"):
            _ = node.admin.url
        with pytest.raises(UsageError, match=r"admin\.enabled"):
            _ = node.admin.token


async def test_stop_does_not_wait_for_clients_that_do_not_read(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        for _ in range(600):
            await node.node.queues.send("large", b"x" * 16_000, to="alpha")
        reader, writer = await connect(node.admin.url)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(
            b"GET /api/v1/queue/peek?queue=large&limit=1000 HTTP/1.1\r\nHost: localhost\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
        )
        await writer.drain()
        assert (await node.ask("/livez")).status == 200
        try:
            # The timeout of requests is much longer.
            async with asyncio.timeout(15.0):
                await node.admin.stop()
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(600 * 16_000)
        finally:
            await hang_up(writer)


async def test_loggers_of_uvicorn_belong_to_the_program(tmp_path: Path) -> None:
    loggers = [logging.getLogger(it) for it in ("uvicorn", "uvicorn.error", "uvicorn.access")]
    handler = MemoryHandler(1_000)
    before = [(it.level, it.propagate, [*it.handlers]) for it in loggers]
    try:
        # As the program has it, whose own application logs its requests there.
        for it in loggers:
            it.addHandler(handler)
        loggers[1].setLevel(logging.NOTSET)
        loggers[2].setLevel(logging.INFO)
        set_up = [(it.level, it.propagate, [*it.handlers]) for it in loggers]
        async with served(tmp_path) as node:
            assert [(it.level, it.propagate, [*it.handlers]) for it in loggers] == set_up
            assert (await node.ask("/livez")).status == 200
            loggers[2].info("a line of the program")
        assert [(it.level, it.propagate, [*it.handlers]) for it in loggers] == set_up
        # What operators ask is not in the access log of the program.
        assert {it.getMessage() for it in handler.buffer} == {"a line of the program"}
    finally:
        for it, (level, propagate, handlers) in zip(loggers, before, strict=True):
            it.setLevel(level)
            it.propagate, it.handlers = propagate, handlers


async def test_stop_twice_and_without_a_start(tmp_path: Path) -> None:
    async with Node(config_of(tmp_path)) as node:
        server = AdminServer(node)
        await server.stop()
        await server.start()
        with pytest.raises(UsageError, match="started already"):
            await server.start()
        await server.stop()
        await server.stop()


async def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async with Node(config_of(tmp_path)) as node:
        # Nothing can be put in the place of a directory.
        (tmp_path / "alpha.node.json").mkdir()
        with take_address(Address("127.0.0.1", 0)) as listener:
            before, address = asyncio.all_tasks(), listener.getsockname()
            with pytest.raises(ConfigError, match="cannot be written"):
                await AdminServer(node, listener).start()
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == before
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address)


async def test_certificates_that_are_over_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    then = datetime.now(UTC) - timedelta(days=30)
    create_root(tmp_path, now=then)
    issued = issue(tmp_path, "alpha", days=7, now=then)
    files = {"certificate": str(issued.certificate), "key": str(issued.key)}
    async with served(tmp_path, admin=files):
        told = [it for it in caplog.messages if "has expired on" in it]
    end = (then + timedelta(days=7)).date()
    assert told == [
        f"admin.certificate {issued.certificate} has expired on {end},"
        " and others refuse it; `postroad certs issue` makes a new one"
    ]


async def test_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "postroad.admin.http.application", None)
    async with Node(config_of(tmp_path)) as node:
        with pytest.raises(MissingExtraError, match=r"pip install '\.\[dashboard\]'"):
            await AdminServer(node).start()


async def test_before_the_node_it_tells_how_far_the_start_is(tmp_path: Path) -> None:
    node = Node(config_of(tmp_path))
    async with AdminServer(node) as server:
        found = Served(node, server)
        reply = await found.ask("/readyz")
        assert (reply.status, reply.body) == (503, b"the node is new\n")
        assert (await found.ask("/livez")).status == 200
        async with node:
            server.answer_members()
            assert (await found.ask("/readyz")).status == 200
