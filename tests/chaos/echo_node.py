"""A node for chaos tests, as a process of its own: `python -m tests.chaos.echo_node ROLE …`.

server PORT         answers "echo" at once and "slow" after the seconds in its payload,
                    prints its address, then its statistics for each line it reads
client ADDRESS      prints "asking" and sends slow requests until it is killed
"""

from __future__ import annotations

import asyncio
import json
import sys

import msgspec

from postroad import run
from postroad.net import Limits, MessagingService, RawMessage

CLUSTER = "chaos"
LIMITS = Limits(heartbeat_interval_s=0.3, heartbeat_timeout_s=2.5, stop_grace_s=1.0)


async def slow(message: RawMessage) -> bytes:
    await asyncio.sleep(float(message.payload.split()[0]))
    return message.payload


async def serve(port: int) -> None:
    service = MessagingService(CLUSTER, "server", bind=f"127.0.0.1:{port}", limits=LIMITS)
    service.serve("echo", lambda message: message.payload)
    service.serve("slow", slow)
    async with service:
        say(str(service.address))
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            say(json.dumps(msgspec.to_builtins(service.statistics())))


async def ask(address: str) -> None:
    async with MessagingService(CLUSTER, "doomed", limits=LIMITS) as service:
        requests = [service.request(address, "slow", b"60", timeout=90) for _ in range(200)]
        say("asking")
        await asyncio.gather(*requests)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    role, argument = sys.argv[1:]
    run(serve(int(argument)) if role == "server" else ask(argument))
