"""What inputs that read a stream of a server have in common."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from postroad.pipeline.job import Segment

from .medium import InputConnector, Position
from .options import CODECS, check_codec, check_flag, check_positive

SLICE_SEGMENTS = 10_000
SLICE_BYTES = 4 * 1024 * 1024
PAUSE_S = 0.05
"""How often to look whether there is more, where nobody tells."""


class StreamSplitPlanner(Protocol):
    """Knows how far a stream is read, and asks the server for more."""

    async def open(self, is_bounded: bool) -> None:
        """Connect; a bounded stream ends with what is there now."""

    async def close(self) -> None:
        """Let go of the connection, also if `open` failed."""

    async def wait(self, timeout_s: float) -> None:
        """Return when there may be more, or after some time."""

    async def on_settled(self, places: Sequence[Position]) -> None:
        """Tell the server that slices are done."""


A = TypeVar("A", bound=StreamSplitPlanner)


class StreamInput(InputConnector, Generic[A]):
    """A stream: one process keeps account of it, and any can read slices.

    Args:
        codec: how segments are encoded, `json` or `msgpack`.
        until_empty: whether to end with what is there when the job begins.
        slice_segments: how many segments a slice has at most.
        slice_bytes: about how long a slice is at most.
    """

    def __init__(
        self, codec: str, until_empty: bool, slice_segments: int, slice_bytes: int
    ) -> None:
        self._codec = check_codec(codec)
        self.is_bounded = check_flag("until_empty", until_empty)
        self._slice_segments = check_positive("slice_segments", slice_segments)
        self._slice_bytes = check_positive("slice_bytes", slice_bytes)
        self._opened: A | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    @abstractmethod
    def _make_account(self, unsettled: Sequence[Position]) -> A:
        """What keeps account of the stream, not opened yet."""

    @abstractmethod
    def _close_reader(self) -> None:
        """Let go of what this process reads slices with; may block."""

    @property
    def _account(self) -> A:
        assert self._opened is not None, "open() comes first"
        return self._opened

    async def open(self, unsettled: Sequence[Position]) -> None:
        account = self._make_account(unsettled)
        try:
            await account.open(self.is_bounded)
        except BaseException:
            await account.close()
            raise
        self._opened = account

    async def close(self) -> None:
        account, self._opened = self._opened, None
        try:
            if account is not None:
                await account.close()
        finally:
            await asyncio.to_thread(self._close_reader)

    async def wait(self, timeout_s: float) -> None:
        if self.is_bounded:
            await asyncio.sleep(min(timeout_s, PAUSE_S))
        else:
            await self._account.wait(timeout_s)

    async def on_committed(self, places: Sequence[Position]) -> None:
        await self._account.on_settled(places)

    @property
    def decode(self) -> Callable[[bytes], Segment]:
        return CODECS[self._codec]
