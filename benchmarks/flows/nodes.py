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
from postroad.durable import StaticPeerDirectory
from postroad.flows import FlowContext, FlowService, FlowSession, SyncFlowContext, flow, responder

if TYPE_CHECKING:
    from benchmarks.children import Announce

INITIATOR, RESPONDER = "initiator", "responder"
MEETING = "benchmark.meet"


@flow
async def three_steps(ctx: FlowContext, number: int) -> int:
    """What DBOS is given too."""
    number = await ctx.step(add_one, number)
    number = await ctx.step(treble, number)
    return await ctx.step(take_two, number)


@flow
def plain_steps(ctx: SyncFlowContext, number: int) -> int:
    """The same as a plain function."""
    number = ctx.step(add_one, number)
    number = ctx.step(treble, number)
    return ctx.step(take_two, number)


@flow
async def three_reads(ctx: FlowContext, number: int) -> int:
    """The same without commits of their own."""
    number = await ctx.read(add_one, number)
    number = await ctx.read(treble, number)
    return await ctx.read(take_two, number)


LOCAL_FLOWS = {it.name: it for it in (three_steps, plain_steps, three_reads)}


@flow
async def ping(ctx: FlowContext, peer: str) -> str:
    """Ask the other node, and return what it says."""
    return await ctx.open_session(peer).send_and_receive("Ping", str)


@responder(ping)
async def pong(ctx: FlowContext, session: FlowSession) -> str:
    """Answer one question."""
    text = await session.receive(str)
    await session.send("Pong")
    return text


def measure_local(job: Job, name: str = "three_steps") -> float:
    """Take one sample of flows of three steps, on an empty store."""
    with in_own_scratch(job) as job, running(run_local, job, name) as child:
        return float(child.receive(job.timeout_s))


def run_local(announce: Announce, job: Job, name: str) -> None:
    """Body of the process."""
    definition = LOCAL_FLOWS[name]

    async def work() -> None:
        async with (
            mail_node(job.scratch, INITIATOR, StaticPeerDirectory()) as mail,
            FlowService(mail, [definition]) as flows,
        ):

            async def complete(number: int) -> None:
                result = await flows.run_flow(definition, number)
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
        directory = StaticPeerDirectory()
        async with mail_node(job.scratch, RESPONDER, directory) as mail, FlowService(mail, [pong]):
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
            mail_node(job.scratch, INITIATOR, StaticPeerDirectory({RESPONDER: address})) as mail,
            FlowService(mail, [ping]) as flows,
        ):
            await mail.service.request(address, MEETING, str(mail.service.address).encode())

            async def complete(_number: int) -> None:
                answer = await flows.run_flow(ping, RESPONDER)
                if answer != "Pong":
                    raise ValueError(f"the other node answered {answer!r}")

            announce(await flows_per_second(job, complete))

    run(work(), job.loop)
