"""Nodes and what a test does with them."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.testing import (
    LivenessFailure,
    SafetyFailure,
    SimCluster,
    SimNode,
    Simulation,
    require,
)

Program = Callable[[SimNode], Coroutine[Any, Any, None]]


async def wait(node: SimNode) -> None:
    await asyncio.Event().wait()


async def fail(node: SimNode) -> None:
    await asyncio.sleep(1.0)
    raise KeyError("planted")


@pytest.fixture
def sim() -> Iterator[SimCluster]:
    with SimCluster(seed=3) as cluster:
        yield cluster


def test_program_runs_to_its_end(sim: SimCluster) -> None:
    async def count(node: SimNode) -> None:
        for number in range(3):
            sim.log.add(node.name, "counts", str(number))
            await asyncio.sleep(1.0)

    node = sim.add("alpha", count)
    assert not node.is_running
    node.start()
    assert node.is_running
    sim.run_for(2.5)
    assert node.is_running
    sim.run_for(1.0)
    assert not node.is_running
    verbs = [line.split()[2] for line in sim.log.lines]
    assert verbs == ["started", "counts", "counts", "counts", "exited"]


def test_stop_cancels_program_and_its_tasks(sim: SimCluster) -> None:
    happened: list[str] = []

    async def clean_up(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)
            happened.append(name)

    async def serve(node: SimNode) -> None:
        node.left = asyncio.create_task(clean_up("left"))  # type: ignore[attr-defined]  # Held.
        await clean_up("program")

    node = sim.add("alpha", serve)
    node.start()
    sim.run_for(1.0)
    node.stop()
    sim.run_for(0.7)
    assert (happened, node.is_running) == (["program"], True)
    sim.run_for(1.0)
    assert (happened, node.is_running) == (["program", "left"], False)


def test_stop_calls_the_handler_of_the_signal(sim: SimCluster) -> None:
    async def serve(node: SimNode) -> None:
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        await stopping.wait()
        sim.log.add(node.name, "bye")

    node = sim.add("alpha", serve)
    node.start()
    sim.run_for(1.0)
    with pytest.raises(UsageError, match="no handler"):
        node.send_signal(signal.SIGHUP)
    node.stop()
    sim.run_for(1.0)
    assert "bye" in str(sim.log)
    assert "cancelled" not in str(sim.log)
    assert not node.is_running


@pytest.mark.parametrize("end", ["kill", "lose_power"])
def test_nothing_of_a_crashed_node_runs_again(end: str) -> None:
    happened: list[str] = []

    async def linger(node: SimNode) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, happened.append, "timer")
        try:
            while True:
                happened.append(f"{node.starts}")
                await asyncio.sleep(1.0)
        finally:
            happened.append("finally")
            await asyncio.sleep(1.0)
            happened.append("more")

    with SimCluster(seed=1) as sim:
        node = sim.add("alpha", linger)
        node.start()
        sim.run_for(0.5)
        getattr(node, end)()
        assert not node.is_running
        sim.run_for(10.0)
        assert happened == ["1"]
        node.start()
        sim.run_for(0.5)
        assert happened == ["1", "2"]
        getattr(node, end)()
        lines = list(sim.log.lines)
    assert sim.log.lines == lines


def test_sim_cluster_exit_closes_running_tasks_silently(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn(node: SimNode) -> None:
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(5.0))
            except asyncio.CancelledError:
                logging.getLogger("stubborn").error("go away")
            finally:
                asyncio.get_running_loop().create_task(asyncio.sleep(1.0))
                await asyncio.sleep(1.0)

    with SimCluster(seed=1) as sim:
        for name in ("alpha", "beta"):
            sim.add(name, stubborn).start()
        sim.run_for(7.0)
        sim.nodes["alpha"].kill()
    assert caplog.records == []


def test_paused_node_resumes_after_time(sim: SimCluster) -> None:
    ticks: list[float] = []

    async def tick(node: SimNode) -> None:
        while True:
            ticks.append(sim.now)
            await asyncio.sleep(1.0)

    node = sim.add("alpha", tick)
    node.start()
    sim.run_for(1.5)
    node.pause(3.0)
    assert node.is_paused
    sim.run_for(2.0)
    assert ticks == [0.0, 1.0]
    sim.run_for(1.5)
    assert not node.is_paused
    assert ticks == [0.0, 1.0, 4.5]
    node.pause()
    sim.run_for(100.0)
    node.resume()
    node.resume()
    sim.run_for(0.1)
    assert ticks == [0.0, 1.0, 4.5, 105.0]


def test_killed_while_paused_stays_dead(sim: SimCluster) -> None:
    node = sim.add("alpha", wait)
    node.start()
    node.pause(1.0)
    node.kill()
    node.start()
    node.pause(10.0)
    sim.run_for(5.0)
    assert node.is_paused


def test_wrong_calls_are_rejected(sim: SimCluster) -> None:
    node = sim.add("alpha", wait)
    for act in (node.kill, node.stop, node.pause):
        with pytest.raises(UsageError, match="start"):
            act()
    node.start()
    with pytest.raises(UsageError, match="it is running"):
        node.start()
    with pytest.raises(UsageError, match="with SimCluster"):
        SimCluster(seed=1).run_for(1.0)


async def test_another_loop_runs_already() -> None:
    with pytest.raises(UsageError, match="plain functions"), SimCluster(seed=1):
        await asyncio.sleep(0)


def test_nodes_describe_themselves(sim: SimCluster) -> None:
    node = sim.add("alpha", wait)
    assert repr(node) == "<SimNode alpha 10.0.0.1 not running>"
    node.start()
    assert repr(node) == "<SimNode alpha 10.0.0.1 running>"
    assert repr(sim) == "<SimCluster seed 3, 1 nodes, 0.000000 s>"


def test_program_that_raises_fails_the_run(sim: SimCluster) -> None:
    node = sim.add("alpha", fail)
    node.start()
    with pytest.raises(KeyError) as failure:
        sim.run_for(5.0)
    assert node.failure is failure.value
    assert "alpha" in failure.value.__notes__[0]
    assert sim.now == 1.0


def test_program_may_raise_if_the_test_says_so(sim: SimCluster) -> None:
    node = sim.add("alpha", fail)
    node.start(may_fail=True)
    sim.run_for(5.0)
    assert isinstance(node.failure, KeyError)
    assert not node.is_running
    node.start(may_fail=True)
    assert node.failure is None


async def leave(node: SimNode) -> None:
    raise SystemExit(3)


async def plant_failing_callback(node: SimNode) -> None:
    asyncio.get_running_loop().call_later(1.0, [].pop)
    await wait(node)


async def plant_lost_failure(node: SimNode) -> None:
    async def fail_alone() -> None:
        raise KeyError("nobody asked")

    task = asyncio.create_task(fail_alone())
    await asyncio.sleep(0.5)
    del task
    await wait(node)


async def swallow_broken_claim(node: SimNode) -> None:
    try:
        require(False, "one and one is three")
    except Exception:
        await wait(node)


@pytest.mark.parametrize(
    ("program", "error", "text", "logged"),
    [
        (leave, RuntimeError, "alpha", "alpha"),
        (plant_failing_callback, IndexError, "pop from empty list", "alpha     crashed"),
        (plant_lost_failure, KeyError, "nobody asked", "alpha     crashed"),
        (swallow_broken_claim, SafetyFailure, "three", "alpha"),
    ],
)
def test_program_that_exits_or_fails_elsewhere_fails_the_run(
    sim: SimCluster, program: Program, error: type[Exception], text: str, logged: str
) -> None:
    sim.add("alpha", program).start()
    with pytest.raises(error, match=text) as caught:
        sim.run_for(5.0)
    assert logged in str(sim.log)
    if error is IndexError:
        assert "alpha" in caught.value.__notes__[0]


def test_failed_task_is_found_at_the_end_at_the_latest() -> None:
    async def fail_and_hold(node: SimNode) -> None:
        async def fail_alone() -> None:
            raise KeyError("nobody asked")

        task = asyncio.create_task(fail_alone())
        cycle = [task]
        cycle.append(cycle)  # type: ignore[arg-type]  # Only the collector frees it.
        await asyncio.sleep(0.5)

    with pytest.raises(KeyError, match="nobody asked"), SimCluster(seed=1) as sim:
        sim.add("alpha", fail_and_hold).start()
        sim.run_for(1.0)


def test_node_may_handle_its_exceptions_itself(sim: SimCluster) -> None:
    handled: list[str] = []

    async def plant(node: SimNode) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: handled.append(node.name))
        loop.call_later(1.0, [].pop)
        await wait(node)

    sim.add("alpha", plant).start()
    sim.add("beta", wait).start()
    sim.run_for(5.0)
    assert handled == ["alpha"]


def test_checkers_run_beside_the_cluster(sim: SimCluster) -> None:
    times: list[float] = []

    def check() -> None:
        times.append(sim.now)
        require(sim.now < 2.0, "it is early")

    other = sim.call_every(0.1, lambda: times.append(-1.0))
    other.cancel()
    sim.call_every(0.5, check)
    with pytest.raises(SafetyFailure, match="early"):
        sim.run_for(10.0)
    assert times == [0.5, 1.0, 1.5, 2.0]
    assert "test      failed      it is early" in str(sim.log)


def test_run_until(sim: SimCluster) -> None:
    async def flip(node: SimNode) -> None:
        await asyncio.sleep(3.0)
        flags.append(True)

    flags: list[bool] = []
    sim.add("alpha", flip).start()
    took = sim.run_until(lambda: flags, timeout=5.0, description="the flag is up")
    assert 3.0 <= took <= 3.02
    assert "the flag is up" in sim.log.lines[-1]
    with pytest.raises(LivenessFailure, match="not within 2 s: pigs fly"):
        sim.run_until(lambda: False, timeout=2.0, description="pigs fly")
    assert sim.now == pytest.approx(took + 2.0)


def test_test_acts_beside_the_cluster(sim: SimCluster) -> None:
    node = sim.add("alpha", wait)
    sim.call_later(1.0, node.start)
    sim.call_later(2.0, node.kill)
    sim.call_later(3.0, node.start).cancel()
    sim.run_for(1.5)
    assert node.is_running
    sim.run_for(5.0)
    assert not node.is_running


def test_run_returns_the_result(sim: SimCluster) -> None:
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(1.0)
        return a + b

    async def fail_soon() -> None:
        await asyncio.sleep(1.0)
        raise KeyError("planted")

    assert sim.run(add(1, 2)) == 3
    with pytest.raises(KeyError, match="planted"):
        sim.run(fail_soon())
    assert sim.now == 2.0


def test_run_does_not_wait_for_ever(sim: SimCluster) -> None:
    with pytest.raises(LivenessFailure, match="deadlock"):
        sim.run(asyncio.Event().wait())
    sim.call_every(1.0, lambda: None)
    with pytest.raises(LivenessFailure, match=r"not done within 5 s: .*wait"):
        sim.run(asyncio.Event().wait(), timeout=5.0)
    assert sim.now == 5.0


def test_spawned_task_fails_the_run(sim: SimCluster) -> None:
    async def work() -> str:
        await asyncio.sleep(1.0)
        return sim.loop.current_process.name

    async def break_down() -> None:
        await asyncio.sleep(1.0)
        require(False, "planted")

    node = sim.add("alpha", wait)
    node.start()
    own, inside = sim.spawn(work()), sim.spawn(work(), node)
    cancelled = sim.spawn(work())
    cancelled.cancel()
    sim.run_for(2.0)
    assert (own.result(), inside.result()) == ("test", "alpha")
    sim.spawn(break_down(), node)
    with pytest.raises(SafetyFailure, match="planted"):
        sim.run_for(2.0)


def test_sim_cluster_shares_log_and_time_of_simulation() -> None:
    simulation = Simulation(9)
    with SimCluster(simulation) as sim:
        assert (sim.seed, sim.log, sim.rng) == (9, simulation.log, simulation.rng)
        sim.add("alpha", wait).start()
        sim.run_for(2.0)
        assert simulation.now == sim.now == 2.0
        assert simulation.actions == sim.loop.callbacks > 0


def test_log_records_are_attributed() -> None:
    async def warn(node: SimNode) -> None:
        logging.getLogger("app").warning("careful\nplease")
        logging.getLogger("app").info("by the way")
        try:
            raise KeyError("planted")
        except KeyError:
            logging.getLogger("app").exception("oops")

    for level, expects_info in ((logging.WARNING, False), (logging.INFO, True)):
        before = logging.getLogger().level
        with SimCluster(seed=1, log_level=level) as sim:
            sim.add("alpha", warn).start()
            sim.run_for(1.0)
        log = str(sim.log)
        assert "alpha     warning     app: careful | please" in log
        assert "alpha     error       app: oops: KeyError('planted')" in log
        assert ("by the way" in log) is expects_info
        assert logging.getLogger().level == before
