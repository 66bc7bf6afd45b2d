"""The server between our node and one of the original system is gone for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from postroad.services.errors import MoleculerError
from tests.interop.services.javascript_node import JavascriptError
from tests.interop.services.pairs import Pair, Wiring
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.mosquitto import mosquitto_server
from tests.support.servers.nats import nats_server
from tests.support.servers.redis import redis_server

pytestmark = pytest.mark.timeout(600)

SERVERS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "MQTT": mosquitto_server,
    "NATS": nats_server,
    "Redis": redis_server,
}
# What is lost with the server must be missed soon.
TIMES: dict[str, Any] = {
    "heartbeat_interval_s": 1,
    "heartbeat_timeout_s": 3,
    "request_timeout_s": 2,
}


async def until_both_answer(pair: Pair) -> None:
    """Try until calls succeed both ways; meanwhile they fail with errors that tell to try again."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                assert await pair.broker.call("js.echo", {"n": 1}) == {"n": 1}
                assert await pair.js.call("py.echo", {"n": 1}, timeout=1_000) == {"n": 1}
                return
            except MoleculerError as error:
                assert error.retryable
            except JavascriptError as error:
                assert error.told["retryable"]
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("transporter", SERVERS)
async def test_both_find_each_other_again(modules: Path, transporter: str) -> None:
    with SERVERS[transporter]() as server:
        pair = Pair(modules, Wiring(transporter), url=server.url, **TIMES)
        try:
            await pair.start()
            server.kill()
            await eventually(lambda: not pair.broker.is_connected, "disconnected", DEADLINE_S)
            with pytest.raises(MoleculerError) as failed:
                await pair.broker.call("js.echo")
            server.start()
            await until_both_answer(pair)
            await pair.broker.emit("js.a.b", "again")
            await pair.js.ask("emit", event="py.a.b", data="again")

            assert failed.value.retryable
            assert [it["data"] for it in await pair.js.heard()] == ["again"]
            assert [it["data"] for it in await pair.hear()] == ["again"]
        finally:
            await pair.close()
