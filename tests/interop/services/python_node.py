"""Our node in a process of its own, so that it can be killed.

    python -m tests.interop.services.python_node '{"node_id": "py", "place": "nats://..."}'

It says so on its output when it is started, and ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import Any

from postroad.services.broker import Broker
from postroad.services.transporters import Transporter, make_transporter
from postroad.services.transporters.tcp import TcpTransporter
from tests.interop.services.python_services import services_of
from tests.support.source_tree import ROOT

START_S = 90.0


def transporter_at(place: str | dict[str, str]) -> Transporter:
    """For the URL of a server, or for the addresses of nodes."""
    if isinstance(place, str):
        return make_transporter(place)
    return TcpTransporter(place, host="127.0.0.1", gossip_period_s=0.5)


async def start_child(said: Mapping[str, Any]) -> Process:
    """Start the process; returns when its broker is started."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.interop.services.python_node",
        json.dumps(said),
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(START_S):
        assert await process.stdout.readline() == b"started\n"
    return process


async def run(node_id: str, place: str | dict[str, str], **settings: Any) -> None:
    broker = Broker(node_id, transporter=transporter_at(place), **settings)
    broker.add(*services_of([]))
    async with broker:
        sys.stdout.write("started\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(run(**json.loads(sys.argv[1])))
