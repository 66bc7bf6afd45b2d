"""A stream as its reader sees it, wherever it comes from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Protocol

from .errors import MoleculerError
from .stream_sources import Source

CANCELLED = "STREAM_CANCELLED"
"""The type of the error of a stream that somebody gave up."""


class Flow(Protocol):
    """Where chunks come from."""

    @property
    def has_objects(self) -> bool:
        """Whether chunks are values of any sort."""
        ...

    async def read(self) -> Any:
        """The next chunk; raises StopAsyncIteration after the last one."""
        ...

    async def close(self) -> None:
        """Nobody wants the rest."""
        ...

    def abandon(self) -> None:
        """Nobody can read the rest any more; may be called from anywhere."""
        ...


class IncomingStream:
    """The stream that came with a call as `ctx.stream`, or that is the result of one.

    Read it once, from start to end:

        async with await broker.call("files.get", {"name": "a.bin"}) as stream:
            async for chunk in stream:
                ...

    Chunks are bytes, cut as it suited the way they came; with `Objects` at the other end they are
    the values that were put in, one by one. If the stream breaks off, reading raises what the
    other end raised, as a MoleculerError; the chunks before are given out first. From a service of
    the same node errors come as they are, as with all calls.

    Read slowly, and the other end waits: a Postroad node is told what was read, and sends only a
    few MiB ahead. Nodes of Moleculer cannot be told; what they send too early is kept up to
    `stream_bytes_max`, then the stream fails with type STREAM_OVERFLOW. While somebody waits for a
    chunk, `stream_idle_s` without a sign of life ends the stream with type STREAM_IDLE.

    `aclose()`, or the end of `async with`, before the end of the stream tells the other end to
    stop. The stream of a call is closed when its action is done, and if that answers with a
    stream, when this one is over.
    """

    __slots__ = ("__weakref__", "_flow")

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    @property
    def has_objects(self) -> bool:
        """Whether chunks are values of any sort, and not bytes."""
        return self._flow.has_objects

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await self._flow.read()

    async def aclose(self) -> None:
        """Read no more. Does nothing after the end."""
        await self._flow.close()

    async def __aenter__(self) -> IncomingStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Somebody forgot it half read: the other end would wait for ever.
        self._flow.abandon()

    def __repr__(self) -> str:
        return f"<IncomingStream of {self._flow!r}>"


class LocalFlow:
    """Chunks from this node: each is made when it is asked for.

    Args:
        source: makes them.
        along: a stream to close with this one.
    """

    def __init__(self, source: Source, along: IncomingStream | None = None) -> None:
        source.is_taken = True
        self._source = source
        self._along = along
        self._failure: BaseException | None = None
        self._is_over = False

    @property
    def has_objects(self) -> bool:
        return self._source.has_objects

    async def read(self) -> Any:
        if self._failure is not None:
            raise self._failure
        if self._is_over:
            raise StopAsyncIteration
        try:
            return await anext(self._source)
        except StopAsyncIteration:
            await self.close()
            raise
        except Exception as error:
            self._failure = error
            await self.close()
            raise
        except BaseException:
            # The maker was cancelled too, and would seem to be at its end.
            self._failure = MoleculerError("a read of this stream was cancelled", type=CANCELLED)
            raise

    async def close(self) -> None:
        if not self._is_over:
            self._is_over = True
            await self._source.aclose()
            if self._along is not None:
                await self._along.aclose()

    def abandon(self) -> None:
        """Python closes what nobody refers to."""
        return

    def __repr__(self) -> str:
        return f"<LocalFlow {'over' if self._is_over else 'open'}>"
