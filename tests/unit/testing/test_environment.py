"""Clocks, chance and names of the outside world come from the simulation, and come back."""

import gc
import os
import random
import secrets
import socket
import time
import uuid
import weakref
from collections.abc import Iterator
from random import Random

import pytest

from postroad.testing import SimCluster, SimNode
from postroad.testing.simulation import environment as surroundings
from postroad.testing.simulation.environment import EPOCH_S

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
