"""Who runs next: queues of callbacks, timers, virtual time and seeded choice between processes.

The loop's hot path. Time moves only when nothing is ready, to the moment of the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context, copy_context
from itertools import count
from random import Random
from typing import TypeVarTuple

from postroad.testing.simulation.failures import LivenessFailure
from postroad.testing.simulation.process import CURRENT_PROCESS, SimProcess

CALLBACKS_PER_MOMENT_MAX = 500_000
"""More callbacks without any time passing mean that it never will."""

# Cancelled timers are swept out when there are so many, and more than of the others.
_CANCELLED_MAX = 100
# How many callbacks pass between two calls of `on_sweep`.
_SWEEP_STEP = 10_000

Ts = TypeVarTuple("Ts")
_Timer = tuple[float, int, asyncio.TimerHandle, SimProcess]


class SimScheduler(asyncio.AbstractEventLoop):
    """The part of the loop that runs callbacks."""

    def __init__(self, rng: Random, callbacks_per_moment_max: int) -> None:
        self._random = rng.random
        self._per_moment_max = callbacks_per_moment_max
        self._now = 0.0
        # Lanes with something to run.
        self._ready: list[SimProcess] = []
        self._timers: list[_Timer] = []
        self._order = count()
        self._cancelled = 0
        # Callbacks run so far, and how many there were when time last moved.
        self.callbacks = 0
        self._callbacks_before = 0
        self._next_sweep = _SWEEP_STEP
        # Called every now and then, after a fixed number of callbacks.
        self.on_sweep: Callable[[], object] | None = None
        # Set when the loop has to end after the callback that runs.
        self._is_halted = False
        # The failure to raise, and all there have been: one may be reported more than once.
        self._failure: BaseException | None = None
        self._failures: list[BaseException] = []
        self._is_closed = False
        # What belongs to no simulated process: the test itself, and the network.
        self.own: SimProcess
        # Whose callback runs; code in a context that names no process belongs to it.
        self._active: SimProcess
        # Told of each failure when it is reported.
        self.on_failure: Callable[[BaseException], object] | None = None

    # Scheduling.

    def time(self) -> float:
        """Seconds of virtual time since the loop was made."""
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback when those of its process that wait now have run."""
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
        """The same: nothing of a simulation runs in another thread."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback in so many seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a moment of virtual time."""
        if self._is_closed:
            self._check_closed()
        if context is None:
            context = copy_context()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        process = context.get(CURRENT_PROCESS) or self._active
        if not process.is_dead:
            heapq.heappush(self._timers, (when, next(self._order), timer, process))
            timer._scheduled = True  # type: ignore[attr-defined]  # Asks for the call below.
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by timers that are cancelled; part of asyncio's interface of loops."""
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
        """Run nothing of the process until it is resumed."""
        process.is_paused = True
        self._mark_idle(process)

    def resume(self, process: SimProcess) -> None:
        """Run what has waited, and go on."""
        process.is_paused = False
        if process.queue and not process.is_listed:
            self._mark_ready(process)

    def kill(self, process: SimProcess) -> None:
        """Run nothing of the process ever again."""
        self._mark_idle(process)
        process.kill()

    # Running.

    def fail(self, error: BaseException) -> None:
        """End the run with an error, after the callback that runs; the first one counts."""
        if not self.has_failed_with(error):
            self._failures.append(error)
            if self._failure is None:
                self._failure = error
            if self.on_failure is not None:
                self.on_failure(error)
        self._is_halted = True

    def has_failed_with(self, error: BaseException) -> bool:
        """Whether that very error was reported already."""
        return any(failure is error for failure in self._failures)

    def next_moment(self) -> float | None:
        """When something is to run: now if anything is ready, None if nothing is planned."""
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
            if not handle._cancelled:  # Quicker than its method.
                self.callbacks += 1
                self._active = process
                handle._run()
            # This frame may outlive its end in a traceback; what has run must not.
            del handle
            if self._is_halted:
                return
            if self.callbacks > last:
                self._callbacks_before = self.callbacks
                raise LivenessFailure(
                    f"{self._per_moment_max} callbacks at one moment: time stands still"
                )

    def _move_time(self, moment: float) -> None:
        """Make the timers of a moment ready."""
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
        """Make it a moment at which nothing happens."""
        self._now = max(self._now, until)
        self._callbacks_before = self.callbacks

    def _check_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
