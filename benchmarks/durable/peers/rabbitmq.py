"""RabbitMQ through aio-pika: a durable queue, persistent messages, confirms and manual acks.

The numbers below are its best here: acknowledgements one by one cost it a quarter of its rate, and
a quorum queue was a little slower than the classic one.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from benchmarks.durable.job import Numbering, Tally
from benchmarks.durable.processes import Side
from benchmarks.harness import BenchmarkFailed
from benchmarks.rabbitmq import epmd_command, find_rabbitmq, rabbitmq_environment, rabbitmq_url
from benchmarks.servers import await_start, free_ports, is_listening, server_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aio_pika.abc import AbstractIncomingMessage

    from benchmarks.durable.job import Job

QUEUE = "letters"
PREFETCH = 1_000
ACK_EVERY = 100


@contextmanager
def serve(directory: Path) -> Iterator[str]:
    binary = find_rabbitmq()
    if binary is None:
        raise BenchmarkFailed("no rabbitmq-server: install Debian's package of that name")
    port, epmd_port, cluster_port = free_ports(3)
    environment = rabbitmq_environment(
        directory, port=port, epmd_port=epmd_port, cluster_port=cluster_port
    )
    epmd_log, log = directory / "epmd.log", directory / "server.log"
    with server_process(epmd_command(epmd_port), epmd_log, environment) as names:
        await_start(names, lambda: is_listening(epmd_port), epmd_log)
        with server_process([binary], log, environment) as broker:
            await_start(broker, lambda: is_listening(port), log)
            yield rabbitmq_url(port)


@asynccontextmanager
async def receive(job: Job, address: str) -> AsyncIterator[Side]:
    import aio_pika

    connection = await aio_pika.connect(address)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=PREFETCH)
    queue = await channel.declare_queue(QUEUE, durable=True)
    tally = Tally(job)
    unacknowledged: list[AbstractIncomingMessage] = []

    async def acknowledge() -> None:
        last = unacknowledged[-1]
        unacknowledged.clear()
        await last.ack(multiple=True)

    async def handle(message: AbstractIncomingMessage) -> None:
        tally.add(message.body)
        unacknowledged.append(message)
        if len(unacknowledged) >= ACK_EVERY:
            await acknowledge()

    async def transfer(count: int) -> None:
        tally.expect(count)
        await tally.wait_complete()
        if unacknowledged:
            await acknowledge()
        # The server answers this one, after the acknowledgements before it.
        await channel.declare_queue(QUEUE, passive=True)

    await queue.consume(handle)
    yield Side(address, transfer)
    await connection.close()


@asynccontextmanager
async def send(job: Job, address: str) -> AsyncIterator[Side]:
    import aio_pika

    connection = await aio_pika.connect(address)
    channel = await connection.channel(publisher_confirms=True)
    exchange = channel.default_exchange
    numbering = Numbering(job)

    async def publish(payloads: Iterator[bytes]) -> None:
        for payload in payloads:
            message = aio_pika.Message(payload, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await exchange.publish(message, QUEUE)

    async def transfer(count: int) -> None:
        payloads = numbering.take(count)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(job.in_flight):
                tasks.create_task(publish(payloads))

    yield Side(address, transfer)
    await connection.close()
