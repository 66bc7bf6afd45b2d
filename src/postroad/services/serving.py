"""Calls of other nodes: a request comes in, an action runs, a response goes out."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from postroad.core import ThrottledLogger, tracing

from .context import Context
from .error_form import error_to_wire
from .errors import (
    MoleculerError,
    QueueIsFullError,
    RequestRejectedError,
    ServiceNotAvailableError,
    ServiceNotFoundError,
)
from .incoming_stream import IncomingStream
from .inflow import Inflow
from .kinds import VERSION
from .packets import Request, Response
from .request_streams import RequestStreams
from .running import finish, within_time
from .stream_sources import Source, is_async_iterable
from .streaming import Streaming
from .streams import REPORTED
from .traces import serving
from .transit import Done, Transit, logger
from .ways import Handler, Way, is_awaitable

if TYPE_CHECKING:
    from .broker import Broker

_LOG_INTERVAL_S = 10.0
_MILLISECONDS = 1000
# What ends the task, or the program, once the caller has been told.
_ENDING = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)
_UNTELLABLE = MoleculerError("the action failed with an error that cannot be sent")


class Serving:
    """Runs actions of this node for others."""

    def __init__(
        self,
        broker: Broker,
        transit: Transit,
        way_to: Callable[[str], tuple[str, Way] | None],
        streaming: Streaming,
        *,
        serving_max: int,
        tells_stacks: bool,
    ) -> None:
        """`way_to` gives the service and the way of an action of this node."""
        self._broker = broker
        self._node_id = broker.node_id
        self._transit = transit
        self._way_to = way_to
        self._streaming = streaming
        self._request_streams = RequestStreams(streaming, transit)
        self._serving_max = serving_max
        self._tells_stacks = tells_stacks
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        self.is_closed = False
        """Whether everything is refused: the node has not opened yet, or is stopping."""

    def __len__(self) -> int:
        return len(self._running)

    def receive(self, request: Request, done: Done | None) -> None:
        """A request came, or a part of the stream of one."""
        flow = None
        if request.stream or request.seq:
            flow = self._open_stream(request)
            if flow is None:
                _call(done)
                return
        found = self._way_to(request.action)
        if found is None or self.is_closed or len(self._running) >= self._serving_max:
            self._respond_error(request, None, self._refusal(request, found is not None))
            if flow is not None:
                flow.close_now()
            _call(done)
            return
        service, way = found
        ctx = self._context(request, service, way)
        if tracing.tracer is None:
            self._begin(request, ctx, way, flow, done)
            return
        ctx.span = serving(self._node_id, request)
        with ctx.span.scope:
            self._begin(request, ctx, way, flow, done)

    def _begin(
        self, request: Request, ctx: Context, way: Way, flow: Inflow | None, done: Done | None
    ) -> None:
        if flow is not None:
            # At once: some transporters bring only so much of what nobody is done with.
            _call(done)
            self._run_task(self._run_with_stream(request, ctx, way.run, flow), None)
            return
        if way.plain is None:
            self._run_task(self._run(request, ctx, way.run), done)
            return
        result = self._run_plain(request, ctx, way)
        if result is None:
            _call(done)
        else:
            self._run_task(self._run(request, ctx, lambda ctx: within_time(ctx, result)), done)

    def _run_task(self, handling: Coroutine[Any, Any, None], done: Done | None) -> None:
        task = self._loop.create_task(handling)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if done is not None:
            task.add_done_callback(lambda _: done())

    async def finish(self, timeout_s: float) -> int:
        """Wait for what runs, then end it; says how much had to be ended."""
        return await finish(self._running, timeout_s)

    def _refusal(self, request: Request, is_known: bool) -> Exception:
        told = {"action": request.action, "nodeID": self._node_id}
        if self.is_closed:
            return ServiceNotAvailableError(data=told)
        return QueueIsFullError(data=told) if is_known else ServiceNotFoundError(data=told)

    def _context(self, request: Request, service: str, way: Way) -> Context:
        said_s = None if request.timeout is None else request.timeout / _MILLISECONDS
        ctx = Context(
            self._broker,
            params=request.params,
            meta=request.meta,
            headers=request.headers,
            action=request.action,
            id=request.id,
            request_id=request.request_id or "",
            parent_id=request.parent_id,
            level=request.level,
            caller=request.caller,
            node_id=request.sender,
            tracing=request.tracing,
            timeout_s=way.timeout_s if said_s is None else said_s,
            started_at=self._loop.time(),
        )
        ctx.service = service
        return ctx

    def _run_plain(self, request: Request, ctx: Context, way: Way) -> Awaitable[Any] | None:
        """Run an action that gives its result at once; if it does not, what is to be waited for."""
        assert way.plain is not None
        try:
            result = way.plain(ctx)
        except BaseException as error:
            self._respond_failure(request, ctx, error)
            return None
        if is_awaitable(result):
            way.plain = None  # From now on it runs as what it is.
            waited_for: Awaitable[Any] = result
            return waited_for
        if is_async_iterable(result):
            return _given(result)
        self._respond(request, ctx, result)
        return None

    async def _run(self, request: Request, ctx: Context, handler: Handler) -> None:
        try:
            result = await handler(ctx)
        except BaseException as error:
            self._respond_failure(request, ctx, error)
        else:
            if is_async_iterable(result):
                await self._respond_stream(request, ctx, result)
            else:
                self._respond(request, ctx, result)

    # Streams.

    def _open_stream(self, request: Request) -> Inflow | None:
        """Take a part of a stream; gives the stream if this is the part that opens it."""
        try:
            return self._request_streams.receive(request)
        except QueueIsFullError as error:
            self._respond_error(request, None, error)
            return None

    async def _run_with_stream(
        self, request: Request, ctx: Context, handler: Handler, flow: Inflow
    ) -> None:
        ctx.headers.pop(REPORTED, None)
        ctx.stream = stream = IncomingStream(flow)
        try:
            await self._run(request, ctx, handler)
        finally:
            await stream.aclose()

    async def _respond_stream(
        self, request: Request, ctx: Context, result: AsyncIterable[Any]
    ) -> None:
        source = None
        try:
            source = Source(result)
            response = self._response(request, ctx, None)
            stream = self._streaming.send(response, source, request.sender)
        except Exception as error:
            self._respond_error(request, ctx, error)
            if source is not None:
                await source.aclose()
            return
        await stream.run()
        _end(ctx)

    # Responses.

    def _respond_failure(self, request: Request, ctx: Context, error: BaseException) -> None:
        """An action raised something, or was ended: that is the answer, whatever it is."""
        _end(ctx, error)
        if isinstance(error, asyncio.CancelledError):
            told = {"action": request.action, "nodeID": self._node_id}
            self._respond_error(request, ctx, RequestRejectedError(data=told))
        else:
            self._respond_error(request, ctx, error)
        if isinstance(error, _ENDING):
            raise error

    def _response(self, request: Request, ctx: Context, result: Any) -> Response:
        return Response(
            id=request.id,
            meta=ctx.meta,
            headers=ctx.response_headers,
            success=True,
            data=result,
            ver=VERSION,
            sender=self._node_id,
        )

    def _respond(self, request: Request, ctx: Context, result: Any) -> None:
        _end(ctx)
        try:
            self._transit.send(self._response(request, ctx, result), request.sender)
        except Exception as error:
            self._respond_error(request, ctx, error)

    def _respond_error(
        self, request: Request, ctx: Context | None, error: BaseException, *, has_data: bool = True
    ) -> None:
        stack = _stack_of(error) if self._tells_stacks and has_data else None
        response = Response(
            id=request.id,
            meta=ctx.meta if ctx is not None and has_data else {},
            headers=ctx.response_headers if ctx is not None and has_data else None,
            success=False,
            error=error_to_wire(
                error, node_id=self._node_id, action=request.action, stack=stack, has_data=has_data
            ),
            ver=VERSION,
            sender=self._node_id,
        )
        try:
            self._transit.send(response, request.sender)
        except Exception as failure:
            if self._transit.is_connected and (has_data or error is not _UNTELLABLE):
                # Something in it cannot be sent; somebody waits for the answer.
                left = error if has_data else _UNTELLABLE
                self._respond_error(request, ctx, left, has_data=False)
                return
            self._log.log(
                request.action,
                self._loop.time(),
                "no response to %s for %s: %s",
                *(request.sender, request.action, failure),
            )


def _end(ctx: Context, error: BaseException | None = None) -> None:
    if ctx.span is not None:
        ctx.span.end(error)


async def _given(result: Any) -> Any:
    return result


def _call(done: Done | None) -> None:
    if done is not None:
        done()


def _stack_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
