"""A run depends on nothing but its seed: not on hashing, not on memory, not on the machine."""

import os
import subprocess
import sys

import pytest

from tests.support.source_tree import ROOT

PROGRAM = """
import asyncio, hashlib, random, uuid
from postroad.net import MessagingService, DatagramService
from postroad.core.errors import MessagingError
from postroad.testing import SimCluster

NAMES = ["alpha", "beta", "gamma", "delta"]

def tell(node, verb, details):
    sim.log.add(node.name, verb, details)

async def serve(node):
    me = ("c", node.name, f"{node.host}:7000")
    async with MessagingService(*me) as service, DatagramService(*me) as unicast:
        service.serve("echo", lambda message: message.payload)
        unicast.subscribe("tick", lambda message: tell(node, "tick", message.payload.hex()))
        children = {asyncio.create_task(talk(node, service, unicast)) for _ in range(5)}
        await asyncio.wait(children)

async def talk(node, service, unicast):
    while True:
        other = random.choice([name for name in NAMES if name != node.name])
        await unicast.send(f"{other}:7000", "tick", uuid.uuid4().bytes)
        try:
            data = random.randbytes(50)
            reply = await service.request(f"{other}:7000", "echo", data, timeout=1.0)
            tell(node, "reply", reply.hex())
        except MessagingError as error:
            tell(node, "error", str(error))
        await asyncio.sleep(random.random() / 10)

for seed in range(3):
    with SimCluster(seed) as sim:
        nodes = [sim.add(name, serve) for name in NAMES]
        for node in nodes:
            node.start()
        sim.network.set_conditions(loss=0.1, duplicate=0.1, reorder=0.1, delay_s=(0.001, 0.05))
        for step in range(12):
            sim.run_for(sim.rng.random())
            victim = sim.rng.choice(nodes)
            if not victim.is_running:
                victim.start()
            elif step % 4 == 0:
                victim.kill()
            elif step % 4 == 1:
                sim.network.partition(victim.name, set(NAMES) - {victim.name})
            elif step % 4 == 2:
                victim.lose_power()
            else:
                sim.network.heal()
                victim.pause(0.3)
    print(sim.log.total, sim.loop.callbacks, hashlib.sha256(str(sim.log).encode()).hexdigest())
"""


def results(hash_seed: str, *options: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, *options, "-c", PROGRAM],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_whole_nodes_do_the_same_in_every_process() -> None:
    first = results("1")
    assert first == results("2", "-X", "tracemalloc")
    assert len(set(first)) == len(first) == 3
    assert all(int(line.split()[0]) > 300 for line in first)
