"""Clocks, chance and names of the outside world come from the simulation, and come back."""

import gc
import os
import random
import secrets
import socket
import subprocess
import sys
import time
import uuid
import weakref
from collections.abc import Iterator
from random import Random

import pytest

from postroad.testing import SimCluster, SimNode
from postroad.testing.simulation import environment as surroundings
from postroad.testing.simulation.environment import EPOCH_S
from tests.support.source_tree import ROOT

CLOCKS = ["time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"]


@pytest.fixture
def thawed_heap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in most programs: a simulation freezes and thaws only where nobody else froze."""
    monkeypatch.setattr(surroundings._Frozen, "by_others", False)
    gc.unfreeze()
    yield
    gc.freeze()


def draw() -> list[object]:
    return [
        random.random(),
        random.randint(0, 10**9),
        os.urandom(8),
        uuid.uuid4(),
        secrets.token_hex(8),
        random.SystemRandom().random(),
        Random().random(),
    ]


def test_random_numbers_follow_from_the_seed() -> None:
    def drawn(seed: int) -> list[object]:
        with SimCluster(seed):
            return draw()

    assert drawn(1) == drawn(1)
    assert all(a != b for a, b in zip(drawn(1), drawn(2), strict=True))


@pytest.mark.usefixtures("thawed_heap")
def test_everything_is_restored() -> None:
    before = [getattr(time, name) for name in CLOCKS]
    others = [os.urandom, random._urandom, Random.seed, socket.gethostname]  # type: ignore[attr-defined]  # What SystemRandom calls.
    random.seed(5)
    expected = random.Random(5).random()
    with SimCluster(1):
        random.random()
        assert time.time is not before[0]
        assert not gc.isenabled()
    assert random.random() == expected
    assert [getattr(time, name) for name in CLOCKS] == before
    assert [os.urandom, random._urandom, Random.seed, socket.gethostname] == others  # type: ignore[attr-defined]  # As above.
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert Random().random() != Random().random()


class Ring:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.ring = self


@pytest.mark.usefixtures("thawed_heap")
def test_garbage_of_one_run_is_gone_in_the_next() -> None:
    ring = weakref.ref(Ring())
    with SimCluster(1):
        assert ring() is None


def test_environment_clocks_are_virtual_and_frozen_objects_stay() -> None:
    with SimCluster(1) as sim:
        sim.run_for(12.5)
        assert time.time() == EPOCH_S + 12.5
        assert time.time_ns() == EPOCH_S * 10**9 + 12_500_000_000
        assert time.monotonic() == time.perf_counter() == sim.now == 12.5
        assert time.monotonic_ns() == time.perf_counter_ns() == 12_500_000_000

    before = gc.get_freeze_count()
    assert before > 0
    with SimCluster(1):
        assert not gc.isenabled()
    assert gc.isenabled()
    # Single objects may have ended meanwhile.
    assert gc.get_freeze_count() > before // 2


def test_each_node_has_a_separate_wall_clock_and_name() -> None:
    seen: dict[str, tuple[float, float, str]] = {}

    async def look(node: SimNode) -> None:
        seen[node.name] = (time.time() - EPOCH_S, time.monotonic(), socket.gethostname())

    with SimCluster(1) as sim:
        one, two = sim.add("one", look), sim.add("two", look)
        one.jump_clock(3600.0)
        one.start()
        two.start()
        sim.run_for(1.0)
    assert seen == {"one": (3600.0, 0.0, "one"), "two": (0.0, 0.0, "two")}


def test_wall_clock_jumps_while_a_node_runs() -> None:
    seen: list[int] = []

    async def look(node: SimNode) -> None:
        started = time.time_ns()
        node.jump_clock(-60.0)
        seen.append(time.time_ns() - started)

    with SimCluster(1) as sim:
        sim.add("one", look).start()
        sim.run_for(1.0)
    assert seen == [-60 * 10**9]


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
