"""The processes of Postroad: a node that runs flows alone, and two that run them together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.durable.nodes import mail_node
from benchmarks.flows.job import (
    Job,
    add_one,
    expect,
    flows_per_second,
    in_own_scratch,
    take_two,
    treble,
)
from benchmarks.messaging.processes import run
from postroad.durable import StaticDirectory
from postroad.flows import Flow, Flows, Session, flow, responds_to

if TYPE_CHECKING:
    from benchmarks.children import Announce

INITIATOR, RESPONDER = "initiator", "responder"
MEETING = "benchmark.meet"


@flow
async def three_steps(flow: Flow, number: int) -> int:
    """What DBOS is given too."""
    number = await flow.step(add_one, number)
    number = await flow.step(treble, number)
    return await flow.step(take_two, number)


@flow
async def ping(flow: Flow, peer: str) -> str:
    """Ask the other node, and return what it says."""
    return await flow.open(peer).send_and_receive("Ping", str)


@responds_to(ping)
async def pong(flow: Flow, session: Session) -> str:
    """Answer one question."""
    text = await session.receive(str)
    await session.send("Pong")
    return text


def measure_local(job: Job) -> float:
    """Take one sample of flows of three steps, on an empty store."""
    with in_own_scratch(job) as job, running(run_local, job) as child:
        return float(child.receive(job.timeout_s))


def run_local(announce: Announce, job: Job) -> None:
    """Body of the process."""

    async def work() -> None:
        async with (
            mail_node(job.scratch, INITIATOR, StaticDirectory()) as mail,
            Flows(mail, [three_steps]) as flows,
        ):

            async def complete(number: int) -> None:
                result = await flows.run(three_steps, number)
                expect(number, result)

            announce(await flows_per_second(job, complete))

    run(work(), job.loop)


def measure_pair(job: Job) -> float:
    """Take one sample of flows of two nodes, each with an empty store of its own."""
    with in_own_scratch(job) as job, running(run_responder, job) as responder:
        address: str = responder.receive()
        with running(run_initiator, job, address) as initiator:
            return float(initiator.receive(job.timeout_s))


def run_responder(announce: Announce, job: Job) -> None:
    """Body of the process that answers."""

    async def work() -> None:
        directory = StaticDirectory()
        async with mail_node(job.scratch, RESPONDER, directory) as mail, Flows(mail, [pong]):
            mail.service.serve(
                MEETING, lambda message: directory.set(INITIATOR, message.payload.decode())
            )
            announce(str(mail.service.address))
            await asyncio.Event().wait()

    run(work(), job.loop)


def run_initiator(announce: Announce, job: Job, address: str) -> None:
    """Body of the process that asks and measures."""

    async def work() -> None:
        async with (
            mail_node(job.scratch, INITIATOR, StaticDirectory({RESPONDER: address})) as mail,
            Flows(mail, [ping]) as flows,
        ):
            await mail.service.request(address, MEETING, str(mail.service.address).encode())

            async def complete(_number: int) -> None:
                answer = await flows.run(ping, RESPONDER)
                if answer != "Pong":
                    raise ValueError(f"the other node answered {answer!r}")

            announce(await flows_per_second(job, complete))

    run(work(), job.loop)
