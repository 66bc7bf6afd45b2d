"""Scheduling: queues of callbacks, timers, virtual time, seeded choice between processes.

The hot path of the loop. Time moves only when nothing is ready, to the time of the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context, copy_context
from itertools import count
from random import Random
from typing import TypeVarTuple

from postroad.testing.simulation.process import CURRENT_PROCESS, SimProcess
from postroad.testing.simulation.simulation import LivenessFailure

CALLBACKS_PER_MOMENT_MAX = 500_000
"""More callbacks at one moment of virtual time mean an endless loop."""

# Cancelled timers are removed when there are so many, and more than half are cancelled.
_CANCELLED_MAX = 100
# Callbacks between two calls of `on_sweep`.
_SWEEP_STEP = 10_000

Ts = TypeVarTuple("Ts")
_Timer = tuple[float, int, asyncio.TimerHandle, SimProcess]


class SimScheduler(asyncio.AbstractEventLoop):
    """The part of the loop that runs callbacks."""

    def __init__(self, rng: Random, callbacks_per_moment_max: int) -> None:
        self._random = rng.random
        self._per_moment_max = callbacks_per_moment_max
        self._now = 0.0
        # Processes with callbacks to run.
        self._ready: list[SimProcess] = []
        self._timers: list[_Timer] = []
        self._order = count()
        self._cancelled = 0
        # Callbacks run so far, and their number when time last moved.
        self.callbacks = 0
        self._callbacks_before = 0
        self._next_sweep = _SWEEP_STEP
        # Called after every fixed number of callbacks.
        self.on_sweep: Callable[[], object] | None = None
        # Set when the loop has to stop after the current callback.
        self._is_halted = False
        # The failure to raise, and all failures: one may be reported more than once.
        self._failure: BaseException | None = None
        self._failures: list[BaseException] = []
        self._is_closed = False
        # The process of the test itself and of the network.
        self.own: SimProcess
        # The process of the current callback; code in a context without a process belongs to it.
        self._active: SimProcess
        # Called for each failure.
        self.on_failure: Callable[[BaseException], object] | None = None

    # Scheduling.

    def time(self) -> float:
        """Return the seconds of virtual time since the loop was created."""
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback after those of its process that are ready now."""
        if self._is_closed:
            self._check_closed()
        if context is None:
            context = copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        process = context.get(CURRENT_PROCESS) or self._active
        process.queue.append(handle)
        if not process.is_listed:
            self._mark_ready(process)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback like call_soon(): a simulation has one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback after so many seconds of virtual time."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a virtual time."""
        if self._is_closed:
            self._check_closed()
        if context is None:
            context = copy_context()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        process = context.get(CURRENT_PROCESS) or self._active
        if not process.is_dead:
            heapq.heappush(self._timers, (when, next(self._order), timer, process))
            timer._scheduled = True  # type: ignore[attr-defined]  # Requests the call below.
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Count a cancelled timer; asyncio calls this method of loops."""
        if not handle._scheduled:  # type: ignore[attr-defined]  # As above.
            return
        self._cancelled += 1
        if self._cancelled > _CANCELLED_MAX and 2 * self._cancelled > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # Processes.

    def _mark_ready(self, process: SimProcess) -> None:
        if not (process.is_dead or process.is_paused):
            process.is_listed = True
            self._ready.append(process)

    def _mark_idle(self, process: SimProcess) -> None:
        if process.is_listed:
            process.is_listed = False
            self._ready.remove(process)

    def pause(self, process: SimProcess) -> None:
        """Run no callback of the process until it is resumed."""
        process.is_paused = True
        self._mark_idle(process)

    def resume(self, process: SimProcess) -> None:
        """Run the callbacks that have waited, and continue."""
        process.is_paused = False
        if process.queue and not process.is_listed:
            self._mark_ready(process)

    def kill(self, process: SimProcess) -> None:
        """Drop all callbacks of the process, now and in the future."""
        self._mark_idle(process)
        process.kill()

    # Running.

    def fail(self, error: BaseException) -> None:
        """Fail the run with an error, after the current callback; the first error counts."""
        if not self.has_failed_with(error):
            self._failures.append(error)
            if self._failure is None:
                self._failure = error
            if self.on_failure is not None:
                self.on_failure(error)
        self._is_halted = True

    def has_failed_with(self, error: BaseException) -> bool:
        """Whether this error object was reported already."""
        return any(failure is error for failure in self._failures)

    def next_moment(self) -> float | None:
        """Return the time of the next callback: now if one is ready, None if none is scheduled."""
        if self._ready:
            return self._now
        timers = self._timers
        while timers and (timers[0][2].cancelled() or timers[0][3].is_dead):
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False  # type: ignore[attr-defined]  # As above.
            self._cancelled -= timer.cancelled()
        return max(timers[0][0], self._now) if timers else None

    def _run_ready(self) -> None:
        """Run callbacks until none is ready or the loop is halted."""
        ready = self._ready
        random = self._random
        last = self._callbacks_before + self._per_moment_max
        while ready:
            index = int(random() * len(ready)) if len(ready) > 1 else 0
            process = ready[index]
            queue = process.queue
            handle = queue.popleft()
            if not queue:
                process.is_listed = False
                ready[index] = ready[-1]
                ready.pop()
            if not handle._cancelled:  # Faster than its method.
                self.callbacks += 1
                self._active = process
                handle._run()
            # A traceback may keep this frame alive; it must not keep the handle alive.
            del handle
            if self._is_halted:
                return
            if self.callbacks > last:
                self._callbacks_before = self.callbacks
                raise LivenessFailure(
                    f"{self._per_moment_max} callbacks without progress of virtual time: "
                    "endless loop?"
                )

    def _move_time(self, moment: float) -> None:
        """Move the clock to a time, and make its timers ready."""
        self._now = moment
        self._callbacks_before = self.callbacks
        timers = self._timers
        while timers and timers[0][0] <= moment:
            _, _, timer, process = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]  # As above.
            if timer.cancelled():
                self._cancelled -= 1
                continue
            process.queue.append(timer)
            if not process.is_listed:
                self._mark_ready(process)
        if self.callbacks >= self._next_sweep:
            self._next_sweep = self.callbacks + _SWEEP_STEP
            if self.on_sweep is not None:
                self.on_sweep()

    def _pass_time(self, until: float) -> None:
        """Move the clock to a time without timers."""
        self._now = max(self._now, until)
        self._callbacks_before = self.callbacks

    def _check_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
