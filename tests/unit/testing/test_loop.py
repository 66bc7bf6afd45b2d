"""The simulated loop: what asyncio promises holds, time is virtual, standing still is a failure."""

import asyncio
import contextvars
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.testing import LivenessFailure, SimLoop

Case = Callable[[], Coroutine[Any, Any, Any]]


def run(coroutine: Coroutine[Any, Any, Any], seed: int = 0) -> Any:
    with asyncio.Runner(loop_factory=lambda: SimLoop(seed)) as runner:
        return runner.run(coroutine)


async def order_of_callbacks() -> list[str]:
    loop = asyncio.get_running_loop()
    happened: list[str] = []
    loop.call_soon(happened.append, "first")
    loop.call_soon(happened.append, "second")
    loop.call_soon(happened.append, "never").cancel()
    loop.call_later(0.02, happened.append, "late")
    loop.call_later(0.01, happened.append, "earlier")
    loop.call_later(0.01, happened.append, "never").cancel()
    loop.call_at(loop.time() - 5, happened.append, "past")
    loop.call_soon_threadsafe(happened.append, "third")
    await asyncio.sleep(0.03)
    return happened


async def tasks_take_turns() -> list[str]:
    happened: list[str] = []

    async def walk(name: str) -> None:
        for step in range(3):
            happened.append(f"{name}{step}")
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(walk("a"), name="a")
        group.create_task(walk("b"))
    return happened


async def cancellation_and_timeouts() -> list[str]:
    happened: list[str] = []
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        happened.append("timeout")
    task = asyncio.create_task(asyncio.sleep(10, "never"))
    await asyncio.sleep(0)
    task.cancel("enough")
    try:
        await task
    except asyncio.CancelledError as error:
        happened.append(str(error))
    done, pending = await asyncio.wait(
        [asyncio.ensure_future(asyncio.sleep(0.001)), asyncio.ensure_future(asyncio.sleep(0.05))],
        return_when=asyncio.FIRST_COMPLETED,
    )
    happened.append(f"{len(done)} of {len(done) + len(pending)}")
    return happened


async def queues_and_locks() -> list[int]:
    queue: asyncio.Queue[int] = asyncio.Queue(2)
    lock = asyncio.Lock()

    async def produce() -> None:
        for number in range(6):
            async with lock:
                await queue.put(number)

    producer = asyncio.create_task(produce())
    taken = [await queue.get() for _ in range(6)]
    await producer
    return taken


async def context_of_callbacks() -> list[str]:
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []
    variable.set("own")
    asyncio.get_running_loop().call_soon(lambda: seen.append(variable.get()))
    variable.set("later")
    empty = contextvars.Context()

    async def look() -> None:
        seen.append(variable.get())

    await asyncio.create_task(look())
    await asyncio.create_task(look(), context=empty)
    return seen


async def functions_in_threads() -> list[object]:
    def fail() -> None:
        raise KeyError("planted")

    results = await asyncio.gather(
        asyncio.to_thread(lambda: 42),
        asyncio.get_running_loop().run_in_executor(None, divmod, 7, 2),
        asyncio.to_thread(fail),
        return_exceptions=True,
    )
    return [repr(result) for result in results]


async def threads_have_no_loop() -> list[str]:
    def look() -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError as error:
            return str(error)
        return "there is one"

    result = await asyncio.to_thread(look)
    asyncio.get_running_loop()
    return [result]


async def generators_are_closed() -> list[str]:
    happened: list[str] = []

    async def count() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            happened.append("closed")

    generator = count()
    happened.append(str(await anext(generator)))
    await asyncio.get_running_loop().shutdown_asyncgens()
    return happened


async def failures_are_reported() -> list[str]:
    loop = asyncio.get_running_loop()
    reported: list[str] = []
    loop.set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))
    assert loop.get_exception_handler() is not None

    def fail() -> None:
        raise KeyError("in a callback")

    async def fail_alone() -> None:
        raise KeyError("in a task")

    loop.call_soon(fail)
    task = asyncio.create_task(fail_alone())
    await asyncio.sleep(0.001)
    del task
    return reported


CASES: list[Case] = [
    *(order_of_callbacks, tasks_take_turns, cancellation_and_timeouts, queues_and_locks),
    *(context_of_callbacks, functions_in_threads, threads_have_no_loop),
    *(generators_are_closed, failures_are_reported),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_same_as_on_the_loop_of_asyncio(case: Case) -> None:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        expected = runner.run(case())
    assert run(case()) == expected
    assert expected


def test_years_pass_in_no_time() -> None:
    async def sleep() -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await asyncio.sleep(1e8)
        return loop.time() - started

    assert run(sleep()) == 1e8


def test_time_stands_still_while_anything_is_ready() -> None:
    async def work() -> set[float]:
        loop = asyncio.get_running_loop()
        times = set()
        loop.call_later(1e-9, lambda: None)
        for _ in range(1_000):
            times.add(loop.time())
            await asyncio.sleep(0)
        return times

    assert len(run(work())) == 1


def test_advance_runs_only_due_callbacks() -> None:
    loop = SimLoop()
    times: list[float] = []
    for when in (1.0, 2.0, 3.0):
        loop.call_at(when, lambda: times.append(loop.time()))
    loop.advance(2.0)
    assert (times, loop.time()) == ([1.0, 2.0], 2.0)
    loop.advance(2.5)
    assert (times, loop.time()) == ([1.0, 2.0], 2.5)
    loop.advance(9.0)
    assert (times, loop.time()) == ([1.0, 2.0, 3.0], 9.0)
    assert loop.next_moment() is None

    loop = SimLoop()
    calls: list[int] = []
    loop.call_later(5.0, calls.append, 1)
    for _ in range(10_000):
        loop.call_later(100.0, calls.append, 2).cancel()
    assert len(loop._timers) < 1_000
    loop.advance(200.0)
    assert calls == [1]


def test_a_deadlock_or_an_endless_moment_is_a_failure() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(LivenessFailure, match="deadlock"):
        run(wait())

    async def spin() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    loop = SimLoop(callbacks_per_moment_max=1_000)
    task = loop.create_task(spin())
    with pytest.raises(LivenessFailure, match="without progress of virtual time"):
        loop.run_forever()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)

    async def walk() -> None:
        for _ in range(5_000):
            await asyncio.sleep(0.001)

    loop = SimLoop(callbacks_per_moment_max=100)
    loop.run_until_complete(walk())
    assert loop.callbacks > 5_000


def test_loop_stop_runs_ready_callbacks_first() -> None:
    loop = SimLoop()
    happened: list[str] = []

    def stop() -> None:
        loop.stop()
        loop.call_soon(happened.append, "with the rest")

    loop.call_soon(stop)
    loop.call_soon(happened.append, "ready")
    loop.call_later(1, happened.append, "later")
    loop.run_forever()
    assert happened == ["ready", "with the rest"]
    loop.stop()
    loop.run_forever()
    assert "later" not in happened
    loop.advance(1)
    assert happened[-1] == "later"


def test_a_stopped_or_closed_loop_takes_nothing() -> None:
    loop = SimLoop()
    future = loop.create_future()
    loop.call_soon(loop.stop)
    with pytest.raises(RuntimeError, match="stopped before"):
        loop.run_until_complete(future)

    loop = SimLoop()
    assert not loop.is_closed()
    loop.close()
    assert loop.is_closed()
    for act in (lambda: loop.call_soon(print), lambda: loop.call_later(1, print), loop.run_forever):
        with pytest.raises(RuntimeError, match="closed"):
            act()

    loop = SimLoop()
    loop.add_signal_handler(15, print, "stop")
    assert loop.own.signal_handlers[15] == (print, ("stop",))
    assert loop.remove_signal_handler(15)
    assert not loop.remove_signal_handler(15)


def test_loop_knows_that_it_runs() -> None:
    loop = SimLoop()

    async def look() -> tuple[bool, bool]:
        with pytest.raises(RuntimeError, match="already running"):
            loop.run_forever()
        with pytest.raises(RuntimeError, match="running"):
            loop.close()
        return loop.is_running(), asyncio.get_running_loop() is loop

    assert loop.run_until_complete(look()) == (True, True)
    assert not loop.is_running()


async def test_another_loop_runs_already() -> None:
    with pytest.raises(UsageError, match="plain functions"):
        SimLoop().run_forever()


def test_first_failure_ends_the_run() -> None:
    loop = SimLoop()
    happened: list[str] = []

    def fail_twice() -> None:
        loop.fail(KeyError("planted"))
        loop.fail(KeyError("second"))

    loop.call_soon(fail_twice)
    loop.call_soon(happened.append, "after")
    with pytest.raises(KeyError, match="planted"):
        loop.advance(1.0)
    assert happened == []
    loop.advance(1.0)
    assert happened == ["after"]


def test_tasks_have_names_and_factories() -> None:
    loop = SimLoop()
    names: list[str] = []

    async def work() -> str | None:
        task = asyncio.current_task()
        return None if task is None else task.get_name()

    def factory(
        loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        names.append("task")
        return asyncio.Task(coroutine, loop=loop, **options)

    assert loop.run_until_complete(loop.create_task(work(), name="named")) == "named"
    loop.set_task_factory(factory)
    assert loop.get_task_factory() is factory
    assert loop.run_until_complete(loop.create_task(work(), name="again")) == "again"
    assert names == ["task"]


def test_debug_mode() -> None:
    async def look() -> bool:
        return asyncio.get_running_loop().get_debug()

    with asyncio.Runner(loop_factory=SimLoop, debug=True) as runner:
        assert runner.run(look())


def test_unhandled_exception_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = SimLoop()

    def fail() -> None:
        raise KeyError("planted")

    loop.call_soon(fail)
    loop.advance(1.0)
    (record,) = caplog.records
    assert record.name == "asyncio"
    assert "Exception in callback" in record.getMessage()


def test_unsupported_loop_calls_raise_usage_error(subtests: pytest.Subtests) -> None:
    calls: list[tuple[Callable[[Any], Coroutine[Any, Any, Any]], str]] = [
        (lambda loop: loop.subprocess_exec(None, "ls"), "SimCluster"),
        (lambda loop: loop.subprocess_shell(None, "ls"), "SimCluster"),
        (lambda loop: loop.connect_read_pipe(None, None), "memory network"),
        (lambda loop: loop.connect_write_pipe(None, None), "memory network"),
        (lambda loop: loop.create_unix_connection(None, "x"), "host and a port"),
        (lambda loop: loop.create_unix_server(None, "x"), "host and a port"),
        (lambda loop: loop.start_tls(None, None, None), "without it"),
        (lambda loop: loop.sendfile(None, None), "write"),
        (lambda loop: loop.sock_recv(None, 1), "create_connection"),
        (lambda loop: loop.sock_sendall(None, b""), "create_connection"),
        (lambda loop: loop.create_connection(None, "h", 1, ssl=True), "without it"),
        (lambda loop: loop.create_server(None, sock=object()), "create_server"),
        (lambda loop: loop.create_datagram_endpoint(None, sock=object()), "create_datagram"),
    ]
    for call, text in calls:
        with subtests.test(text=text):
            loop = SimLoop()
            with pytest.raises(UsageError, match=text):
                loop.run_until_complete(call(loop))

    loop = SimLoop()
    for act in (loop.add_reader, loop.add_writer, loop.remove_reader, loop.remove_writer):
        with pytest.raises(UsageError, match="raw socket"):
            act(0, print)
