"""RabbitMQ through aio-pika: a durable queue, persistent messages, confirms and manual acks.

The numbers below are its best here: acknowledgements one by one cost it a quarter of its rate, and
a quorum queue was a little slower than the classic one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.durable.job import Numbering, Tally
from benchmarks.durable.processes import Side
from benchmarks.durable.servers import await_start, free_ports, is_listening, server_process
from benchmarks.harness import BenchmarkFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aio_pika.abc import AbstractIncomingMessage

    from benchmarks.durable.job import Job

QUEUE = "letters"
PREFETCH = 1_000
ACK_EVERY = 100
# Debian's command on the PATH changes the account and the directories; this one leaves them.
_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


@contextmanager
def serve(directory: Path) -> Iterator[str]:
    port, epmd_port, cluster_port = free_ports(3)
    environment = _environment(directory, port, epmd_port, cluster_port)
    epmd = ["epmd", "-address", "127.0.0.1", "-port", str(epmd_port)]
    binary = _find_server()
    epmd_log, log = directory / "epmd.log", directory / "server.log"
    with server_process(epmd, epmd_log, environment) as names:
        await_start(names, lambda: is_listening(epmd_port), epmd_log)
        with server_process([binary], log, environment) as broker:
            await_start(broker, lambda: is_listening(port), log)
            yield f"amqp://guest:guest@127.0.0.1:{port}/"


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


def _find_server() -> str:
    found = str(_DEBIAN) if _DEBIAN.exists() else shutil.which("rabbitmq-server")
    if found is None:
        raise BenchmarkFailed("no rabbitmq-server: install Debian's package of that name")
    return found


def _environment(directory: Path, port: int, epmd_port: int, cluster_port: int) -> dict[str, str]:
    """Everything below the directory and on the loopback interface; no plugins, no settings."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_CONFIG_FILE": str(directory / "no-config"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "no-environment"),
        "RABBITMQ_DIST_PORT": str(cluster_port),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "no-plugins"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_NODENAME": f"benchmark-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false"
        ),
        # The broker takes the place of its start script, so that its process is the one we know.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
