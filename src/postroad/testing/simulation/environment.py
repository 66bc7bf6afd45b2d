"""The simulated environment: clocks, random sources, host name and load, garbage collection.

While a simulation runs, values of the operating system are derived from the seed. Not replaced are
functions that a module has imported by name (`from time import monotonic`), and clocks that do not
use `time`: `datetime.now()`, `time.localtime()`.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

from postroad.testing.simulation.loop import SimLoop
from postroad.testing.simulation.process import CURRENT_PROCESS

EPOCH_S = 1_767_225_600
"""The wall clock at the start of a simulation: the first second of 2026, UTC."""

_NS = 1_000_000_000
# Young garbage is collected at every sweep of the loop, older garbage less often.
_SWEEPS_PER_GENERATION = 20


@contextmanager
def simulated_environment(loop: SimLoop, rng: Random) -> Iterator[None]:
    """Replace clocks and random sources by simulated ones, and restore them afterwards."""
    with ExitStack() as stack:
        _replace_clocks(stack, loop)
        _replace_random(stack, rng)
        _replace(stack, socket, "gethostname", lambda: loop.current_process.host.name)
        _replace(stack, socket, "getaddrinfo", loop.network.names.getaddrinfo)
        # Simulated processors are infinitely fast.
        _replace(stack, os, "getloadavg", lambda: (0.0, 0.0, 0.0))
        stack.enter_context(_collecting_at_sweeps(loop))
        yield


def _replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _replace_clocks(stack: ExitStack, loop: SimLoop) -> None:
    now = loop.time

    def offset_s() -> float:
        process = CURRENT_PROCESS.get()
        return 0.0 if process is None else process.clock_offset_s

    def wall_clock_ns() -> int:
        # The epoch is added as an integer, so that no digit of the seconds is lost.
        return EPOCH_S * _NS + round((now() + offset_s()) * _NS)

    _replace(stack, time, "time", lambda: EPOCH_S + now() + offset_s())
    _replace(stack, time, "time_ns", wall_clock_ns)
    for name in ("monotonic", "perf_counter"):
        _replace(stack, time, name, now)
        _replace(stack, time, f"{name}_ns", lambda: round(now() * _NS))


def _replace_random(stack: ExitStack, rng: Random) -> None:
    seed_of_system = Random.seed

    def seed(self: Random, a: Any = None, version: int = 2) -> None:
        seed_of_system(self, rng.getrandbits(256) if a is None else a, version)

    stack.callback(random.setstate, random.getstate())
    random.seed(rng.getrandbits(256))
    _replace(stack, os, "urandom", rng.randbytes)
    # The source of `secrets` and SystemRandom.
    _replace(stack, random, "_urandom", rng.randbytes)
    _replace(stack, Random, "seed", seed)


class _Frozen:
    """Whether the program that runs the simulation has frozen objects itself.

    Counting frozen objects is slow, so the result is cached once there are some.
    """

    by_others = False


@contextmanager
def _collecting_at_sweeps(loop: SimLoop) -> Iterator[None]:
    """Collect garbage after a fixed number of callbacks, because finalizers may act."""
    was_enabled = gc.isenabled()
    # Existing objects need not be scanned at every collection.
    _Frozen.by_others = _Frozen.by_others or gc.get_freeze_count() > 0
    does_freeze = not _Frozen.by_others
    sweeps = 0

    def sweep() -> None:
        nonlocal sweeps
        sweeps += 1
        gc.collect(1 if sweeps % _SWEEPS_PER_GENERATION else 2)

    gc.disable()
    if does_freeze:
        # Current garbage would be frozen with the rest.
        gc.collect()
        gc.freeze()
    loop.on_sweep = sweep
    try:
        yield
    finally:
        loop.on_sweep = None
        gc.collect()
        if does_freeze:
            gc.unfreeze()
        if was_enabled:
            gc.enable()
