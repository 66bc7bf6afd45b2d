"""A node of services over NATS, and one of Moleculer beside it: each calls the other.

It starts the NATS server and the other node itself. Both end with the input that they get from it,
so they never outlive it, however it ended.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from postroad import MessagingService
from postroad.services import Broker, Context, Service, action, event

from .pipe import Orders, tell
from .processes import DemoFailed
from .records import Command, Meeting, MeetingReport, MeetingSide, Ready, Resting

CALLS, EVENTS = 200, 20
PATIENCE_S = 20.0
LOOK_EVERY_S = 0.02
_SCRIPT = Path(__file__).with_name("moleculer_node.js")
# Runs a program until the input ends.
_TIED = '"$@" & program=$!; cat > /dev/null; kill $program; wait $program'


class Teller(Service):
    """What the node of Moleculer calls, and hears."""

    name = "teller"

    async def started(self) -> None:
        self.heard = 0
        self.has_heard_all = asyncio.Event()

    @action
    async def total(self, ctx: Context, cents: int, count: int) -> dict[str, int | str]:
        """What so many cost."""
        return {"cents": cents * count, "customer": ctx.meta["customer"]}

    @event("moleculer.asked")
    async def on_asked(self, ctx: Context) -> None:
        """Counts what the other node emits."""
        self.heard += 1
        if self.heard == EVENTS:
            self.has_heard_all.set()


async def meet(service: MessagingService, task: Meeting, orders: Orders) -> None:
    """Meet the other node, tell how it went, and wait to be told to stop."""
    tell(Ready(address=str(service.address)))
    async with _nats_server(task) as url:
        teller = Teller()
        broker = Broker(service.name, transporter=url)
        broker.add(teller)
        async with broker, _javascript(task, url) as process:
            await broker.wait_for_services("rates", timeout_s=PATIENCE_S)
            tell(await _talk(broker, teller, process))
            tell(Resting())
            await orders.wait_for(Command.STOP)


async def _talk(broker: Broker, teller: Teller, process: Process) -> MeetingReport:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"begin\n")
    answered = 0
    for number in range(1, CALLS + 1):
        customer = f"customer-{number}"
        reply = await broker.call("rates.convert", {"cents": number}, meta={"customer": customer})
        answered += reply == {"cents": 2 * number, "customer": customer}
    for number in range(1, EVENTS + 1):
        await broker.emit("teller.asked", {"number": number})
    async with asyncio.timeout(PATIENCE_S):
        told: dict[str, Any] = msgspec.json.decode(await process.stdout.readline())
        await teller.has_heard_all.wait()
    versions = told.pop("versions")
    ours = MeetingSide(called=CALLS, answered=answered, emitted=EVENTS, heard=teller.heard)
    return MeetingReport(ours=ours, theirs=MeetingSide(**told), versions=versions)


@asynccontextmanager
async def _nats_server(task: Meeting) -> AsyncIterator[str]:
    """A server at a port of its choice; gives its URL."""
    options = ("--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", task.place)
    async with _child("sh", "-c", _TIED, "sh", task.nats_server, *options, stdout=DEVNULL):
        async with asyncio.timeout(PATIENCE_S):
            url = await _wait_for_url(Path(task.place))
        yield url


async def _wait_for_url(place: Path) -> str:
    while (url := _read_url(place)) is None:  # noqa: ASYNC110 - a file is no event
        await asyncio.sleep(LOOK_EVERY_S)
    return url


def _read_url(place: Path) -> str | None:
    """Where the server listens; it writes a file when it does."""
    for path in place.glob("nats-server_*.ports"):
        try:
            return str(msgspec.json.decode(path.read_bytes())["nats"][0])
        except msgspec.DecodeError:
            return None  # It is about to.
    return None


@asynccontextmanager
async def _javascript(task: Meeting, url: str) -> AsyncIterator[Process]:
    command = (task.javascript, str(_SCRIPT), url, str(CALLS), str(EVENTS))
    environment = {**os.environ, "NODE_PATH": task.modules}
    async with _child(*command, stdout=PIPE, environment=environment) as process:
        yield process


@asynccontextmanager
async def _child(
    *command: str, stdout: int, environment: dict[str, str] | None = None
) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=stdout, stderr=DEVNULL, env=environment
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            raise DemoFailed(f"{command[0]} did not end in {PATIENCE_S:g} s") from None
