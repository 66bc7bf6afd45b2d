"""What streams are made of: any async iterable, checked chunk by chunk."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Generic, TypeVar

from postroad.core.errors import UsageError

from .errors import MoleculerError
from .transit import logger
from .ways import AT_ONCE

T = TypeVar("T")

BAD_CHUNK = "STREAM_BAD_CHUNK"
"""The type of the error that a stream with a wrong chunk ends with."""


class Objects(Generic[T]):
    """A stream whose chunks are values of any sort, as params are, instead of bytes.

    Wrap what you stream, at either end of a call:

        await broker.call("prices.store", stream=Objects(prices()))

        @action
        def watch(self, ctx: Context) -> Objects[Price]:
            return Objects(self._prices())

    Each value arrives as one chunk; it must be small enough for one packet, and not None.
    """

    def __init__(self, values: AsyncIterable[T]) -> None:
        self._values = values

    def __aiter__(self) -> AsyncIterator[T]:
        return aiter(self._values)

    def __repr__(self) -> str:
        return f"Objects({self._values!r})"


class Source:
    """A stream about to be sent. Gives bytes, or values if it is in object mode.

    Attributes:
        has_objects: whether its chunks are values of any sort.
        is_taken: whether somebody reads it, and closes it in the end.
    """

    def __init__(self, stream: AsyncIterable[Any]) -> None:
        """Raises UsageError if it cannot be a stream."""
        if not is_async_iterable(stream):
            raise UsageError(
                f"a stream is an async iterable, not {type(stream).__name__}; "
                "an async generator makes one of anything"
            )
        self.has_objects = (
            isinstance(stream, Objects) or getattr(stream, "has_objects", False) is True
        )
        self._iterator = aiter(stream)
        self.is_taken = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        """The next chunk that is not empty; raises MoleculerError for one that cannot be sent."""
        while True:
            value = await anext(self._iterator)
            if self.has_objects:
                return _checked_object(value)
            if chunk := _checked_bytes(value):
                return chunk

    async def aclose(self) -> None:
        """There are no more readers. What the stream's own end raises is only logged."""
        close = getattr(self._iterator, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except Exception:
            logger.exception("a stream could not be closed")


def is_async_iterable(value: Any) -> bool:
    """Whether a value can be iterated over asynchronously; quicker than `isinstance`."""
    kind = type(value)
    return kind not in AT_ONCE and hasattr(kind, "__aiter__")


def _checked_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise MoleculerError(
        f"a chunk of a stream must be bytes, not {type(value).__name__}; "
        "wrap a stream of values in Objects(...)",
        type=BAD_CHUNK,
    )


def _checked_object(value: Any) -> Any:
    if value is None:
        # Nodes of the original system would take it for the end.
        raise MoleculerError("a chunk of a stream must not be None", type=BAD_CHUNK)
    return value
