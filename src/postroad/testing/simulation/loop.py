"""An asyncio event loop with virtual time, seeded scheduling and a memory network."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast
from weakref import WeakValueDictionary

from postroad.core.errors import UsageError
from postroad.testing.simulation.loop_scheduler import CALLBACKS_PER_MOMENT_MAX, SimScheduler
from postroad.testing.simulation.network import MemoryNetwork
from postroad.testing.simulation.process import CURRENT_PROCESS, ExceptionHandler, SimProcess
from postroad.testing.simulation.simulation import EventLog, LivenessFailure

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

_NO_SUBPROCESS = ("a subprocess", "add a node to the SimCluster that does its work")
_NO_PIPE = ("a pipe", "use a connection of the memory network")
_NO_UNIX_SOCKET = ("a Unix socket", "use a host and a port")
_NO_TLS = ("TLS", "run the node without it, and test TLS over real sockets")
_NO_RAW_SOCKET = (
    "a raw socket",
    "use create_connection, create_server or create_datagram_endpoint",
)


def _unsupported(feature: str, remedy: str) -> Any:
    """Return a method that raises a UsageError, which names what to use instead."""

    def method(*args: object, **options: object) -> NoReturn:
        raise UsageError(f"{feature} cannot be simulated: {remedy}")

    return method


def check_endpoint_options(ssl: object = None, sock: object = None) -> None:
    """Raise a UsageError for options of an endpoint that the memory network does not have."""
    if ssl:
        _unsupported(*_NO_TLS)()
    if sock is not None:
        _unsupported(*_NO_RAW_SOCKET)()


logger = logging.getLogger("asyncio")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Maximum virtual time of a function in an executor.
_EXECUTOR_S_MAX = 0.001


class SimLoop(SimScheduler):
    """Runs unchanged asyncio code in virtual time, deterministically for each seed.

    with asyncio.Runner(loop_factory=lambda: SimLoop(seed=7)) as runner:
        runner.run(main())
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        log: EventLog | None = None,
        callbacks_per_moment_max: int = CALLBACKS_PER_MOMENT_MAX,
    ) -> None:
        super().__init__(Random(f"{seed}/loop"), callbacks_per_moment_max)
        self._is_running = False
        self.slow_callback_duration = 0.1
        self._debug = False
        # Called for unhandled exceptions, instead of logging them.
        self.on_unhandled: Callable[[dict[str, Any]], object] | None = None
        self._task_factory: Callable[..., asyncio.Future[Any]] | None = None
        self._async_generators: WeakValueDictionary[int, AsyncGenerator[Any, Any]]
        self._async_generators = WeakValueDictionary()
        self._generator_count = 0
        self._executor_rng = Random(f"{seed}/executor")
        self.log = EventLog(self.time) if log is None else log
        self.network = MemoryNetwork(self, Random(f"{seed}/network"), self.log)
        self.own = self._active = SimProcess("test", self.network.own_host, self.fail)
        self.network.context = self.own.context

    @property
    def current_process(self) -> SimProcess:
        """The process of the code that is running."""
        return CURRENT_PROCESS.get() or self._active

    # Running.

    def run_forever(self) -> None:
        """Run until stopped; raise LivenessFailure if nothing is scheduled any more."""
        self.run_until_time(math.inf)

    def run_until_time(self, deadline: float) -> None:
        """Run until stopped, or until nothing is scheduled before the deadline."""
        self._check_closed()
        with self._running():
            while not self._is_halted:
                self._run_ready()
                if self._is_halted:
                    break
                moment = self.next_moment()
                if moment is None:
                    raise LivenessFailure("deadlock: all tasks wait and nothing is scheduled")
                if moment > deadline:
                    self._pass_time(deadline)
                    return
                self._move_time(moment)
            if self._failure is None:
                self._run_last_batch()
        self.raise_failure()

    def advance(self, until: float) -> None:
        """Run everything scheduled until a time, and set the clock to that time."""
        self._check_closed()
        with self._running():
            while True:
                self._is_halted = False
                self._run_ready()
                if self._failure is not None:
                    break
                moment = self.next_moment()
                if moment is None or moment > until:
                    self._pass_time(until)
                    break
                self._move_time(moment)
        self.raise_failure()

    def _run_last_batch(self) -> None:
        """Run the callbacks that were ready when the loop was stopped, as asyncio does."""
        for process in list(self._ready):
            for _ in range(len(process.queue)):
                if not process.is_listed or not process.queue:
                    break  # The process was paused or killed meanwhile.
                handle = process.queue.popleft()
                if not handle.cancelled():
                    self.callbacks += 1
                    self._active = process
                    handle._run()
            if not process.queue:
                self._mark_idle(process)

    @contextmanager
    def _running(self) -> Iterator[None]:
        if self._is_running:
            raise RuntimeError("This event loop is already running")
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                "cannot run a simulation inside another event loop: run it from plain functions"
            )
        hooks = sys.get_asyncgen_hooks()
        self._is_running = True
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(self._on_generator_started, self._on_generator_finalized)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)
            self._is_running = self._is_halted = False
            self._active = self.own

    def raise_failure(self) -> None:
        """Raise the failure of the run, if there is one."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def run_until_complete(
        self, future: Generator[Any, None, T] | Awaitable[T] | Coroutine[Any, Any, T]
    ) -> T:
        self._check_closed()
        is_ours = not asyncio.isfuture(future)
        waited = asyncio.ensure_future(cast("Awaitable[T]", future), loop=self)
        waited.add_done_callback(self._stop_after)
        try:
            self.run_forever()
        except BaseException:
            if is_ours and waited.done() and not waited.cancelled():
                waited.exception()  # Mark it as retrieved: the caller gets another exception.
            raise
        finally:
            waited.remove_done_callback(self._stop_after)
        if not waited.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return waited.result()

    def _stop_after(self, future: asyncio.Future[Any]) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop `run_forever` after the callbacks that are ready."""
        self._is_halted = True

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Drop all callbacks; nothing can be scheduled any more."""
        if self._is_running:
            raise RuntimeError("Cannot close a running event loop")
        self._is_closed = True
        self._timers.clear()
        for process in list(self._ready):
            self._mark_idle(process)
            process.queue.clear()

    # Futures, tasks, executors.

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        self._check_closed()
        if context is not None:
            options["context"] = context
        if self._task_factory is None:
            task = asyncio.Task(
                cast("Coroutine[Any, Any, T]", coro), loop=self, name=name, **options
            )
        else:
            task = cast("asyncio.Task[T]", self._task_factory(self, coro, **options))
            if name is not None:
                task.set_name(name)
        ((context and context.get(CURRENT_PROCESS)) or self.current_process).track(task)
        return task

    def set_task_factory(self, factory: Callable[..., asyncio.Future[Any]] | None) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        """Return the factory of tasks; None means asyncio's."""
        return self._task_factory

    def run_in_executor(
        self, executor: object, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run the function now; its result arrives a little later, as from another thread."""
        self._check_closed()
        future: asyncio.Future[T] = self.create_future()
        # As in another thread, the function sees no running loop.
        asyncio._set_running_loop(None)
        try:
            settle = partial(future.set_result, func(*args))
        except Exception as error:
            settle = partial(future.set_exception, error)
        finally:
            asyncio._set_running_loop(self if self._is_running else None)
        delay_s = self._executor_rng.uniform(0, _EXECUTOR_S_MAX)
        self.call_later(delay_s, lambda: None if future.done() else settle())
        return future

    def set_default_executor(self, executor: object) -> None:
        """Ignore the executor: functions run in the thread of the loop."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there is no executor."""

    # Asynchronous generators.

    def _on_generator_started(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generator_count += 1
        self._async_generators[self._generator_count] = generator

    def _on_generator_finalized(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not (self._is_closed or self.current_process.is_dead):
            self.create_task(generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Close the asynchronous generators that were started and have not finished."""
        generators = list(self._async_generators.values())
        self._async_generators.clear()
        await asyncio.gather(
            *(generator.aclose() for generator in generators), return_exceptions=True
        )

    # Errors and debugging.

    def get_exception_handler(self) -> ExceptionHandler | None:
        """Return the handler of unhandled exceptions in the process of the caller."""
        return self.current_process.exception_handler

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        """Set the handler of unhandled exceptions in the process of the caller."""
        self.current_process.exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an unhandled exception; in a SimCluster it fails the run."""
        if self.on_unhandled is not None:
            self.on_unhandled(context)
            return
        lines = [str(context.get("message") or "Unhandled exception in event loop")]
        lines += [f"{key}: {context[key]!r}" for key in sorted(context) if key != "message"]
        logger.error("\n".join(lines), exc_info=context.get("exception"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Handle an exception that asyncio reports as unhandled."""
        handler = self.current_process.exception_handler
        if handler is None:
            self.default_exception_handler(context)
            return
        try:
            handler(self, context)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.default_exception_handler(
                {"message": "Unhandled error in exception handler", "exception": error}
            )

    def get_debug(self) -> bool:
        """Whether asyncio's debug mode is on."""
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        """Turn asyncio's debug mode on or off."""
        self._debug = enabled

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Set the handler of a signal that the test sends to the process of the caller."""
        self.current_process.signal_handlers[int(sig)] = (callback, args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.current_process.signal_handlers.pop(int(sig), None) is not None

    # Connections, servers and other resources.

    subprocess_exec = _unsupported(*_NO_SUBPROCESS)
    subprocess_shell = _unsupported(*_NO_SUBPROCESS)
    connect_read_pipe = _unsupported(*_NO_PIPE)
    connect_write_pipe = _unsupported(*_NO_PIPE)
    create_unix_connection = _unsupported(*_NO_UNIX_SOCKET)
    create_unix_server = _unsupported(*_NO_UNIX_SOCKET)
    start_tls = _unsupported(*_NO_TLS)
    sendfile = _unsupported("sendfile", "read the file and write() its content")
    connect_accepted_socket = _unsupported(*_NO_RAW_SOCKET)
    sock_recv = _unsupported(*_NO_RAW_SOCKET)
    sock_recv_into = _unsupported(*_NO_RAW_SOCKET)
    sock_recvfrom = _unsupported(*_NO_RAW_SOCKET)
    sock_recvfrom_into = _unsupported(*_NO_RAW_SOCKET)
    sock_sendall = _unsupported(*_NO_RAW_SOCKET)
    sock_sendto = _unsupported(*_NO_RAW_SOCKET)
    sock_sendfile = _unsupported(*_NO_RAW_SOCKET)
    sock_connect = _unsupported(*_NO_RAW_SOCKET)
    sock_accept = _unsupported(*_NO_RAW_SOCKET)
    add_reader = _unsupported(*_NO_RAW_SOCKET)
    remove_reader = _unsupported(*_NO_RAW_SOCKET)
    add_writer = _unsupported(*_NO_RAW_SOCKET)
    remove_writer = _unsupported(*_NO_RAW_SOCKET)

    async def getaddrinfo(
        self, host: bytes | str | None, port: bytes | str | int | None, **options: Any
    ) -> list[tuple[Any, ...]]:
        """Resolve a name with the name service of the memory network."""
        return await self.network.resolve(host, port, **options)

    async def getnameinfo(self, sockaddr: tuple[Any, ...], flags: int = 0) -> tuple[str, str]:
        """Return the name of the host at an address."""
        return await self.network.getnameinfo(sockaddr)

    async def create_connection(
        self,
        protocol_factory: Callable[[], ProtocolT],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        local_addr: tuple[str, int] | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, ProtocolT]:
        check_endpoint_options(ssl=ssl, sock=sock)
        return await self.network.connect(protocol_factory, host, port, local_addr)

    async def create_server(  # type: ignore[override]  # Rejects some options.
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[str] | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        start_serving: bool = True,
        **options: Any,
    ) -> asyncio.Server:
        """Listen at the simulated host of the caller."""
        check_endpoint_options(ssl=ssl, sock=sock)
        server = self.network.listen(protocol_factory, host, port or 0)
        if start_serving:
            await server.start_serving()
        return cast("asyncio.Server", server)

    async def create_datagram_endpoint(  # type: ignore[override]  # Rejects some options.
        self,
        protocol_factory: Callable[[], ProtocolT],
        local_addr: tuple[str, int] | None = None,
        remote_addr: tuple[str, int] | None = None,
        *,
        sock: object = None,
        **options: Any,
    ) -> tuple[asyncio.DatagramTransport, ProtocolT]:
        """Open a datagram socket at the simulated host of the caller."""
        check_endpoint_options(sock=sock)
        if local_addr is None and remote_addr is None and not options.get("family"):
            raise ValueError("unexpected address family")
        return await self.network.open_datagrams(protocol_factory, local_addr, remote_addr)
