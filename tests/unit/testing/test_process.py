"""Processes of one loop: each in order, all interleaved by the seed, paused or killed alone."""

import asyncio
from contextvars import Context

from postroad.testing import SimLoop
from postroad.testing.simulation.network import SimHost
from postroad.testing.simulation.process import SimProcess

COUNT = 20


def make_processes(loop: SimLoop, names: str) -> list[SimProcess]:
    return [SimProcess(name, SimHost(name, "10.0.0.1")) for name in names]


def fill(loop: SimLoop, lanes: list[SimProcess], happened: list[str]) -> None:
    for number in range(COUNT):
        for lane in lanes:
            context = lane.context.copy()
            loop.call_soon(happened.append, f"{lane.name}{number}", context=context)


def interleaving(seed: int) -> list[str]:
    loop = SimLoop(seed)
    happened: list[str] = []
    fill(loop, make_processes(loop, "abc"), happened)
    loop.advance(0.0)
    return happened


def test_the_seed_decides_the_order_between_processes_and_none_within_one() -> None:
    happened = interleaving(1)
    for name in "abc":
        own = [entry for entry in happened if entry.startswith(name)]
        assert own == [f"{name}{number}" for number in range(COUNT)]

    assert interleaving(1) == interleaving(1)
    assert len({tuple(interleaving(seed)) for seed in range(10)}) == 10


def test_timers_of_one_moment_keep_their_order_within_a_process() -> None:
    loop = SimLoop(3)
    happened: list[str] = []
    for number in range(COUNT):
        for lane in make_processes(loop, "ab"):
            text = f"{lane.name}{number}"
            loop.call_at(1.0, happened.append, text, context=lane.context.copy())
    loop.advance(1.0)
    assert len(happened) == 2 * COUNT


def test_paused_process_runs_late() -> None:
    loop = SimLoop()
    paused, other = lanes = make_processes(loop, "ab")
    happened: list[str] = []
    fill(loop, lanes, happened)
    loop.call_later(1.0, happened.append, "timer", context=paused.context.copy())
    loop.pause(paused)
    loop.advance(5.0)
    assert {entry[0] for entry in happened} == {other.name}
    loop.resume(paused)
    loop.advance(5.0)
    assert happened[COUNT:] == [*(f"a{number}" for number in range(COUNT)), "timer"]


def test_a_killed_process_never_runs_again_and_may_kill_itself() -> None:
    loop = SimLoop()
    killed, other = lanes = make_processes(loop, "ab")
    happened: list[str] = []
    fill(loop, lanes, happened)
    loop.call_later(1.0, happened.append, "timer", context=killed.context.copy())
    loop.kill(killed)
    loop.call_soon(happened.append, "soon", context=killed.context.copy())
    loop.call_later(1.0, happened.append, "later", context=killed.context.copy())
    loop.resume(killed)
    loop.advance(5.0)
    assert happened == [f"{other.name}{number}" for number in range(COUNT)]
    assert loop.next_moment() is None

    loop = SimLoop()
    (lane,) = make_processes(loop, "a")
    happened = []
    loop.call_soon(loop.kill, lane, context=lane.context.copy())
    fill(loop, [lane], happened)
    loop.advance(1.0)
    assert happened == []


def test_finished_tasks_are_forgotten() -> None:
    loop = SimLoop()

    async def spawn() -> int:
        for _ in range(100):
            await asyncio.create_task(asyncio.sleep(0))
        await asyncio.sleep(0)
        return len(loop.own.tasks)

    assert loop.run_until_complete(spawn()) == 1


def test_code_without_a_context_stays_in_its_process() -> None:
    loop = SimLoop()
    lane, other = make_processes(loop, "ab")
    happened: list[str] = []

    def plant() -> None:
        loop.call_later(1.0, lambda: happened.append(loop.current_process.name), context=Context())

    loop.call_soon(plant, context=lane.context.copy())
    loop.call_soon(plant, context=other.context.copy())
    loop.advance(0.5)
    loop.kill(lane)
    loop.advance(2.0)
    assert happened == ["b"]
