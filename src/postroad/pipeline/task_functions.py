"""Ways to call a task function with many segments: one by one, as Arrow batches, or awaited."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from postroad.core.errors import MissingExtraError
from postroad.pipeline.functions import Function, InvalidResultError, normalize_result
from postroad.pipeline.job import Segment
from postroad.pipeline.time_limits import (
    AGAIN_S,
    CallWatch,
    FunctionTimeoutError,
    TimeLimit,
    TimeLimitReached,
)

if TYPE_CHECKING:
    import pyarrow as pa


Results: TypeAlias = tuple[list[Any], dict[int, Exception]]
"""What a function returned, one for each segment, and what it raised, by position."""
Report: TypeAlias = Callable[[int, Any, Exception | None], None]
"""Called with the place of a segment and its result or exception, as soon as it is known."""


def map_function(
    function: Function, segments: Sequence[Any], limit: TimeLimit | None = None
) -> Results:
    """Call a function with each segment, or whatever else it takes.

    Call `drop_tracebacks` with what it raised when nobody asks any more where that was.
    """
    results: list[Any] = []
    raised: dict[int, Exception] = {}
    if limit is None:
        _map_rest(function, segments, results, raised)
        return results, raised
    # One timer for all calls; nothing is done for each.
    with CallWatch(limit, results.__len__) as watch:
        while len(results) < len(segments):
            try:
                rest = segments[len(results) :] if results else segments
                _map_rest(function, rest, results, raised)
            except TimeLimitReached:
                if watch.is_over:
                    raise
                # Another one may have been interrupted if that one ended in this very moment.
                if watch.blamed == len(results):
                    raised[len(results)] = limit.error()
                    results.append(None)
    return results, raised


def _map_rest(
    function: Function, segments: Sequence[Any], results: list[Any], raised: dict[int, Exception]
) -> None:
    for segment in segments:
        # As quick as a loop in C, which would take a StopIteration for its end.
        try:
            results.append(function(segment))
        except Exception as error:
            raised[len(results)] = error
            results.append(None)


def drop_tracebacks(*errors: BaseException) -> None:
    """Take the tracebacks from exceptions and those behind them: they keep all segments alive."""
    waiting: list[BaseException | None] = list(errors)
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        error.__traceback__ = None
        waiting += (error.__cause__, error.__context__)
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions


class ArrowFunction:
    """Calls a function of record batches with one segment, or with many."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def bind(self, **given: Any) -> ArrowFunction:
        """The same with further keyword arguments."""
        return ArrowFunction(partial(self._function, **given))

    def __call__(self, segment: Segment) -> Segment:
        return self._call([segment])[0]

    def call_batch(
        self,
        segments: Sequence[Segment],
        limit: TimeLimit | None = None,
        report: Report | None = None,
    ) -> Results:
        """Call it with all at once; culprits are found by halves, and late ones one by one."""
        results: list[Any] = [None] * len(segments)
        raised: dict[int, Exception] = {}
        left = [(0, len(segments))] if segments else []
        while left:
            start, stop = left.pop()
            made, errors = map_function(self._call, [segments[start:stop]], limit)
            if not errors:
                results[start:stop] = made[0]
            elif stop - start == 1:
                raised[start] = errors[0]
            elif isinstance(errors[0], FunctionTimeoutError):
                left += [(place, place + 1) for place in range(start, stop)]
            else:
                middle = (start + stop) // 2
                left += [(start, middle), (middle, stop)]
        for place, result in enumerate(results if report is not None else ()):
            assert report is not None
            report(place, result, raised.get(place))
        return results, raised

    def _call(self, segments: Sequence[Segment]) -> list[Segment]:
        made = self._function(to_record_batch(segments))
        rows = getattr(made, "num_rows", None)
        if rows != len(segments):
            found = f"{rows} rows" if rows is not None else type(made).__name__
            raise InvalidResultError(
                f"an arrow function returns a record batch with a row for each of"
                f" {len(segments)} rows, not {found}"
            )
        made_segments: list[Segment] = made.to_pylist()
        return made_segments


def to_record_batch(segments: Sequence[Segment]) -> pa.RecordBatch:
    """Segments as columns, with the keys of all; raises ArrowInvalid if they do not match."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtraError("parquet", "tasks of kind arrow") from None
    names = dict.fromkeys(name for segment in segments for name in segment)
    columns = {name: [segment.get(name) for segment in segments] for name in names}
    return pa.RecordBatch.from_pydict(columns)


def is_async(function: Function) -> bool:
    """Whether what a function returns is to be awaited."""
    while isinstance(function, partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004 - not whether it is callable
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class GroupFunction:
    """Calls a function of groups with its arguments as one: the key, segments, and the state."""

    def __init__(self, function: Function, has_state: bool) -> None:
        self._function = function
        self._has_state = has_state

    def __call__(self, arguments: tuple[Any, ...], **given: Any) -> dict[str, Any]:
        return self._take(self._function(*arguments, **given))

    async def call_async(self, arguments: tuple[Any, ...], **given: Any) -> dict[str, Any]:
        """The same, where it is to be awaited."""
        return self._take(await self._function(*arguments, **given))

    def _take(self, result: Any) -> dict[str, Any]:
        if not self._has_state:
            return {"segments": normalize_result(result), "state": None}
        if not isinstance(result, tuple) or len(result) != 2:
            raise InvalidResultError(
                "a function of groups with state returns segments and the state, as a tuple of"
                f" two, not {type(result).__name__}"
            )
        return {"segments": normalize_result(result[0]), "state": result[1]}


class FunctionLoop:
    """The event loop of a process that runs all asynchronous functions of a job."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._inherited: list[asyncio.AbstractEventLoop | None] = []

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run until it is done."""
        if self._loop is None or self._process != os.getpid():
            # To close that of the process this one was forked from would harm it.
            self._inherited.append(self._loop)
            self._loop, self._process = asyncio.new_event_loop(), os.getpid()
        self._loop.run_until_complete(coroutine)

    def close(self) -> None:
        """Cancel what was left behind, and let the loop go."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=AGAIN_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class AsyncFunction:
    """Calls a coroutine function with up to `concurrency` segments at a time."""

    def __init__(self, function: Function, concurrency: int, loop: FunctionLoop) -> None:
        self._function = function
        self._concurrency = concurrency
        self._loop = loop

    def bind(self, **given: Any) -> AsyncFunction:
        """The same with further keyword arguments."""
        return AsyncFunction(partial(self._function, **given), self._concurrency, self._loop)

    def __call__(self, segment: Segment) -> Any:
        results, raised = self.call_batch([segment])
        if raised:
            raise raised[0]
        return results[0]

    def call_batch(
        self,
        segments: Sequence[Segment],
        limit: TimeLimit | None = None,
        report: Report | None = None,
    ) -> Results:
        """Call it with all of them; results are in the order of the segments."""
        calls = _AsyncCalls(self._function, segments, limit, report)
        if limit is None:
            self._loop.run(calls.run(self._concurrency))
        else:
            with CallWatch(limit, calls.position) as watch:
                calls.watch = watch
                self._loop.run(calls.run(self._concurrency))
        return calls.results, calls.raised


class _AsyncCalls:
    """Calls of one function with some segments: workers that each take the next one."""

    def __init__(
        self,
        function: Function,
        segments: Sequence[Segment],
        limit: TimeLimit | None,
        report: Report | None,
    ) -> None:
        self._function = function
        self._segments = segments
        self._limit = limit
        self._report = report
        self.results: list[Any] = [None] * len(segments)
        self.raised: dict[int, Exception] = {}
        self.watch: CallWatch | None = None
        self._unfinished = set(range(len(segments)))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beats = 0
        self._places: Iterator[int] = iter(range(len(segments)))
        # What each worker is at, and since when.
        self._at: dict[asyncio.Task[None], tuple[int, float]] = {}

    def position(self) -> int:
        """Stays the same only as long as one of the calls keeps all others from going on."""
        if self._loop is None or asyncio.current_task(self._loop) not in self._at:
            self._beats += 1
        return self._beats

    async def run(self, concurrency: int) -> None:
        """Call it for all; a worker whose function does not even end when cancelled is left."""
        self._loop = asyncio.get_running_loop()
        look_s = None if self._limit is None else self._limit.look_s
        count = min(concurrency, len(self._segments))
        workers = {asyncio.create_task(self._work()) for _ in range(count)}
        while workers:
            done, workers = await asyncio.wait(
                workers, timeout=look_s, return_when=asyncio.FIRST_EXCEPTION
            )
            # A function that blocks the loop keeps this from going up.
            self._beats += 1
            ended = [worker for worker in done if self._was_interrupted(worker)]
            for worker in [*ended, *(worker for worker in workers if self._is_lost(worker))]:
                workers.discard(worker)
                place, _ = self._at.pop(worker)
                self._finish(place, None, self._timeout())
                workers.add(asyncio.create_task(self._work()))
        for place in sorted(self._unfinished):
            self._finish(place, None, self._timeout())

    def _was_interrupted(self, worker: asyncio.Task[None]) -> bool:
        """Whether it was, just outside of a call that took too long; raises what else ended it."""
        is_over = self.watch is not None and self.watch.is_over
        if isinstance(worker.exception(), TimeLimitReached) and not is_over:
            return worker in self._at
        worker.result()
        return False

    def _is_lost(self, worker: asyncio.Task[None]) -> bool:
        if self._limit is None or worker not in self._at:
            return False
        late_s = asyncio.get_running_loop().time() - self._at[worker][1] - self._limit.seconds
        return late_s > AGAIN_S

    async def _work(self) -> None:
        worker, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert worker is not None
        for place in self._places:
            self._at[worker] = (place, loop.time())
            result, error = await self._call(place)
            if self._at.get(worker, (-1, 0.0))[0] != place:
                return
            self._finish(place, result, error)
        self._at.pop(worker, None)

    async def _call(self, place: int) -> tuple[Any, Exception | None]:
        timeout = asyncio.timeout(None if self._limit is None else self._limit.seconds)
        try:
            async with timeout:
                return await self._function(self._segments[place]), None
        except Exception as error:
            return None, self._timeout() if timeout.expired() else error
        except asyncio.CancelledError:
            worker = asyncio.current_task()
            if worker is not None and worker.cancelling():
                raise
            return None, RuntimeError("it was cancelled")
        except TimeLimitReached:
            if self.watch is not None and self.watch.is_over:
                raise
            return None, self._timeout()

    def _timeout(self) -> Exception:
        assert self._limit is not None
        return self._limit.error()

    def _finish(self, place: int, result: Any, error: Exception | None) -> None:
        if place not in self._unfinished:
            return
        self._unfinished.discard(place)
        self.results[place] = result
        if error is not None:
            self.raised[place] = error
        if self._report is not None:
            self._report(place, result, error)
