"""Calls with a stream, and results that are one."""

from __future__ import annotations

from typing import Any

from .context import Context
from .incoming_stream import IncomingStream, LocalFlow
from .stream_sources import Source, is_async_iterable
from .ways import Way


async def call_with_stream(ctx: Context, way: Way, source: Source) -> Any:
    """Make a call, at this node or at another one, with a stream that goes along."""
    if ctx.endpoint is None or not ctx.endpoint.is_local:
        ctx.stream = source  # type: ignore[assignment]  # It is not for reading.
        return await way.run(ctx)
    ctx.stream = stream = IncomingStream(LocalFlow(source))
    try:
        result = await way.run(ctx)
        if is_async_iterable(result):
            return IncomingStream(LocalFlow(Source(result), along=stream))
    except BaseException:
        await stream.aclose()
        raise
    await stream.aclose()
    return result


def as_stream(result: Any) -> Any:
    """A result of this node as its caller gets it: a stream if it can be one."""
    if not is_async_iterable(result) or isinstance(result, IncomingStream):
        return result
    return IncomingStream(LocalFlow(Source(result)))
