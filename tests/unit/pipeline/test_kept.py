"""Open things of a process are shared, kept for a while, and never those of another process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from postroad.pipeline.connectors.stream import EventLoopThread, IdlePool
from tests.support.deadlines import DEADLINE_S

IDLE_S = 0.05


class Thing:
    """Something that is open."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def test_the_same_is_used_again() -> None:
    kept: IdlePool[Thing] = IdlePool()
    with kept.borrow("a", Thing) as first, kept.borrow("a", Thing) as second:
        assert first is second
    with kept.borrow("a", Thing) as third, kept.borrow("b", Thing) as other:
        assert third is first
        assert other is not first
    kept.close("a")
    kept.close("b")
    assert first.closed.is_set()
    assert other.closed.is_set()


def test_what_is_idle_is_closed() -> None:
    kept: IdlePool[Thing] = IdlePool(IDLE_S)
    with kept.borrow("a", Thing) as first:
        assert not first.closed.wait(4 * IDLE_S)
    assert first.closed.wait(DEADLINE_S)
    with kept.borrow("a", Thing) as second:
        assert second is not first
    assert second.closed.wait(DEADLINE_S)


def test_what_is_used_is_not_closed() -> None:
    kept: IdlePool[Thing] = IdlePool()
    with kept.borrow("a", Thing) as thing:
        kept.close("a")
        assert not thing.closed.is_set()
    kept.close("a")
    kept.close("a")
    assert thing.closed.is_set()


def test_a_forked_process_has_its_own() -> None:
    program = (
        "import os\n"
        "from postroad.pipeline.connectors.stream import IdlePool, EventLoopThread\n"
        "kept = IdlePool()\n"
        "with kept.borrow('a', lambda: EventLoopThread('a')) as ours: pass\n"
        "child = os.fork()\n"
        "with kept.borrow('a', lambda: EventLoopThread('a')) as now:\n"
        "    is_same = now is ours\n"
        "if not child: os._exit(is_same)\n"
        "assert is_same\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    subprocess.run(command, check=True, timeout=DEADLINE_S)


def test_a_loop_in_a_thread_is_called_from_elsewhere() -> None:
    thread = EventLoopThread("test")
    try:
        assert thread.call(asyncio.sleep(0, "slept"), DEADLINE_S) == "slept"
        with pytest.raises(ZeroDivisionError):
            thread.call(_divide(0), DEADLINE_S)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            thread.call(asyncio.sleep(DEADLINE_S), 0.01)
        assert time.monotonic() - began < DEADLINE_S / 2
    finally:
        thread.close()


async def _divide(by: int) -> float:
    return 1 / by
