"""A bank with flows, as a process of its own.

`python -m tests.chaos.flow_node NAME STORE PORT OUTSIDE CODE [POINT WHERE COUNT]`

STORE is a path or the address of a database, OUTSIDE the file for what flows do outside of it. CODE
is one of those of `flow_bank`. Prints its address, then does what the lines it reads say, and ends
when its input does. With a fault point, it is killed when that is reached for that time, even while
it starts.

Each line it reads is a list in JSON, and so it answers each but the first three with a line:

peer NAME ADDRESS         says where a peer is; "-" if nobody knows
arm POINT WHERE COUNT     kill this process when the fault point is reached for that time; WHERE
                          says which times count, as `key=value` with `&` between, or "-" for all:
                          `flow` a flow's name, `status` its status, `unit` the kind of a commit,
                          `has` what a flow's transition has, `event` the kind of an event, `step`
                          a step's name
halt POINT WHERE COUNT    like `arm`, but ask this process to end, as SIGTERM does
begin CLIENT FLOW ARGS    begin a flow, unless one was begun as that; its id when it is durable
result CLIENT             wait for what came of it: its value, or kind and text of the error
list                      all flows, the oldest first
operate WHAT ID ARGS      have something done to a flow; whether that was possible
forget CLIENT             let go of a flow that has ended
post PEER QUEUE TEXT      post a message
schedule NAME CRON FLOW ARGS
                          have a flow begun again and again
clock SECONDS             have the clock of this process show another time from now on
disk BYTES                have no file grow beyond that from now on; 0 for as it was
load PEERS PAUSE SEED     pay to peers at random from now on, with a pause after each payment
rest                      stop that; answers when nothing is being begun any more
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from postroad import run
from postroad.core import fault_points as faults
from postroad.core.errors import NotRunningError, PostroadError, StoreUnavailableError
from postroad.durable import DurableQueues, StaticPeerDirectory
from postroad.flows import FlowHandle, FlowsConfig, FlowService
from postroad.flows.machine import events
from postroad.flows.machine.events import FlowTransition
from tests.chaos import flow_bank, flow_bank_code
from tests.support.durable.mail_node import limit_files, make_mail, make_tables

FLOWS = FlowsConfig(retry_initial_delay_s=0.05, retry_max_delay_s=0.2, crash_recoveries_max=1_000)
AT_ONCE = 20
"""Payments of one bank under load that have not ended."""


class FlowExecutioner:
    """Sends this process a signal when a fault point is reached for the n-th time as it should."""

    def __init__(self, flows: FlowService, where: str, count: int, number: int) -> None:
        self._left = count
        self._number = number
        self._flows = flows
        self._where = [] if where == "-" else [it.partition("=")[::2] for it in where.split("&")]
        # What is misspelt would never be reached.
        for key, value in self._where:
            assert key != "has" or hasattr(FlowTransition, value), value
            assert key != "event" or hasattr(events, value), value

    def __call__(self, units: Sequence[Any] = (), **details: Any) -> None:
        if not self._where or (any(map(self._fits, units)) if units else self._suits(details)):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._number)

    def _fits(self, unit: Any) -> bool:
        """Whether a commit is of the kind that is waited for."""
        head = getattr(unit, "state", None)
        found = {"unit": type(unit).__name__, "flow": "", "status": ""}
        if head is not None:
            found |= {"flow": head.name, "status": str(head.status)}
        for key, value in self._where:
            if key == "has":
                if not getattr(getattr(unit, "transition", None), value, None):
                    return False
            elif found[key] != value:
                return False
        return True

    def _suits(self, details: dict[str, Any]) -> bool:
        for key, value in self._where:
            found = details.get(key)
            if key == "flow" and isinstance(found, int):
                found = self._name(found)
            elif key == "event":
                found = type(found).__name__
            if found != value:
                return False
        return True

    def _name(self, id: int) -> str:
        loaded = self._flows.engine.loaded_flows.get(id)
        if loaded is None or loaded.machine is None:
            return ""
        return loaded.machine.state.name


class Bank:
    """What the commands are about."""

    def __init__(
        self, mail: DurableQueues, flows: FlowService, directory: StaticPeerDirectory
    ) -> None:
        self._mail = mail
        self._flows = flows
        self._directory = directory
        self._armed = ExitStack()
        self._load: asyncio.Task[None] | None = None
        self._is_resting = False
        self._chance = random.Random(0)

    async def obey(self, command: str, *words: Any) -> None:
        """Do what a line says."""
        match command, words:
            case "peer", (name, address):
                self._directory.set(name, None if address == "-" else address)
            case "arm", (point, where, count):
                self.arm(point, where, count)
            case "halt", (point, where, count):
                self.arm(point, where, count, signal.SIGTERM)
            case "clock", (seconds,):
                shift_clock(seconds)
                say("shifted")
            case "disk", (size,):
                limit_files(size)
                say("limited")
            case "load", (peers, pause, seed):
                self._chance = random.Random(seed)
                loop = asyncio.get_running_loop()
                self._load = loop.create_task(self._pay_at_random(peers, pause))
                say("loading")
            case "rest", ():
                self._is_resting = True
                if self._load is not None:
                    await self._load
                say("resting")
            case _:
                try:
                    say(await self._answer(command, *words))
                except StoreUnavailableError:
                    say("refused")

    async def close(self) -> None:
        """Begin nothing any more."""
        if self._load is not None:
            self._load.cancel()
            await asyncio.gather(self._load, return_exceptions=True)

    def arm(self, point: str, where: str, count: int | str, number: int = signal.SIGKILL) -> None:
        action = FlowExecutioner(self._flows, where, int(count), number)
        self._armed.enter_context(faults.arm_fault_point(point, action))

    async def _answer(self, command: str, *words: Any) -> Any:
        flows = self._flows
        match command, words:
            case "begin", (client, flow, args):
                return (await flows.start_flow_with_id(client, self._find(flow), *args)).id
            case "order", (subject, address):
                await self._order(subject, address)
            case "result", (client,):
                return await self._result(client)
            case "list", ():
                views = await flows.admin.list(limit=1_000)
                return [msgspec.to_builtins(it) for it in reversed(views)]
            case "operate", (what, id, args):
                return await self._operate(what, id, *args)
            case "forget", (client,):
                await flows.delete(client)
            case "post", (peer, queue, text):
                await self._mail.send(queue, text.encode(), to=peer)
            case "schedule", (name, cron, flow, args):
                await flows.schedules.create(name, cron, self._find(flow), *args)
            case _:
                raise ValueError(f"no such command: {command} {words}")
        return True

    async def _order(self, subject: str, address: str) -> None:
        """Begin a flow and signal it with a row of its own, unless that was done before."""
        async with self._mail.transaction() as tx:
            if await tx.execute(f"SELECT 1 FROM notes WHERE subject = '{subject}'"):
                return
            await flow_bank.note(subject, "ordered", tx=tx)
            tx.start_flow_with_id(subject, flow_bank.ship, subject)
            tx.signal(subject, "address", address)

    def _find(self, name: str) -> Any:
        definition = self._flows.registry.find(name)
        assert definition is not None, f"no flow {name}"
        return definition

    async def _result(self, client: str) -> dict[str, Any]:
        handle = await self._flows.get_by_client_id(client)
        try:
            return {"value": await handle.result()}
        except PostroadError as error:
            return {"error": type(error).__name__, "text": str(error)}

    async def _operate(self, what: str, id: str, *args: Any) -> bool:
        try:
            await getattr(self._flows.admin, what)(id, *args)
        except PostroadError:
            return False
        return True

    async def _pay_at_random(self, peers: list[str], pause_s: float) -> None:
        """Begin payments, some of them twice, and some of them of too much."""
        running = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while not self._is_resting:
                await running.acquire()
                group.create_task(self._pay(peers, running))
                await asyncio.sleep(pause_s)

    async def _pay(self, peers: list[str], running: asyncio.Semaphore) -> None:
        payment = f"{self._mail.service.name}-{time.time_ns()}"
        cents = self._chance.randrange(1, flow_bank.CENTS_MAX * 11 // 10)
        peer, is_shared = self._chance.choice(peers), self._chance.random() < 0.2

        def begin() -> Awaitable[FlowHandle[Any]]:
            begin_as = self._flows.start_flow_with_id
            if is_shared:
                return begin_as(payment, flow_bank.pay_both, peers, payment, cents)
            return begin_as(payment, flow_bank.pay, peer, payment, cents)

        try:
            times = self._chance.choice((1, 1, 2))
            handles = await asyncio.gather(*(begin() for _ in range(times)))
            await handles[0].result()
        except NotRunningError:
            return
        except PostroadError:
            assert cents > flow_bank.CENTS_MAX, f"{payment} of {cents} cents failed"
        finally:
            running.release()


async def serve(name: str, store: str, port: str, outside: str, code: str, *arm: str) -> None:
    flow_bank.Outside.path = Path(outside)
    service, mail, peers = make_mail(name, store, port)
    flows = FlowService(mail, flow_bank_code.CODE[code], FLOWS)
    bank = Bank(mail, flows, peers)
    if arm:
        bank.arm(arm[0], arm[1], arm[2])
    async with service, mail:
        await make_tables(mail, flow_bank.TABLES)
        async with flows:
            say(str(service.address))
            await listen(bank)


async def listen(bank: Bank) -> None:
    """Do what is said, one after the other, until nobody is there any more to say anything."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer
    )
    orders: asyncio.Queue[bytes] = asyncio.Queue()

    async def obey() -> None:
        while True:
            await bank.obey(*json.loads(await orders.get()))

    async with asyncio.TaskGroup() as group:
        obeying = group.create_task(obey())
        # It may wait for something that never comes, and must not outlive whoever waits with it.
        while line := await lines.readline():
            orders.put_nowait(line)
        obeying.cancel()
    pipe.close()
    await bank.close()


def shift_clock(seconds: float) -> None:
    """Have the clock show a time that is so much later; earlier, if that is negative."""
    shown, shown_ns, shift_ns = time.time, time.time_ns, round(seconds * 1e9)
    time.time = lambda: shown() + seconds
    time.time_ns = lambda: shown_ns() + shift_ns


def say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    run(serve(*sys.argv[1:]))


if __name__ == "__main__":
    main()
