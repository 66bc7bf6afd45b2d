"""Postroad's own: `post` to a handler whose commit is done, SQLite synced at both ends."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.durable.job import Numbering, Tally
from benchmarks.durable.nodes import QUEUE, mail_node
from benchmarks.durable.processes import Side
from postroad.durable import DurableQueues, Message, StaticPeerDirectory, Transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from benchmarks.durable.job import Job


@asynccontextmanager
async def receive(job: Job, address: str) -> AsyncIterator[Side]:
    tally = Tally(job)

    async def handle(message: Message, tx: Transaction) -> None:
        tally.add(message.body)

    async with mail_node(job.scratch, "receiver", StaticPeerDirectory()) as mail:
        consumer = await mail.consume(QUEUE, handle)

        async def transfer(count: int) -> None:
            tally.expect(count)
            await tally.wait_complete()
            # Handled is not enough: it must be committed.
            while consumer.dispatcher.uncommitted:
                await consumer.dispatcher.wait()

        yield Side(str(mail.service.address), transfer)


@asynccontextmanager
async def send(job: Job, address: str) -> AsyncIterator[Side]:
    numbering = Numbering(job)

    async def post_each(mail: DurableQueues, payloads: Iterator[bytes]) -> None:
        for payload in payloads:
            await mail.send(QUEUE, payload, to="receiver")

    async with mail_node(job.scratch, "sender", StaticPeerDirectory({"receiver": address})) as mail:

        async def transfer(count: int) -> None:
            payloads = numbering.take(count)
            await asyncio.gather(*(post_each(mail, payloads) for _ in range(job.in_flight)))

        yield Side(address, transfer)
