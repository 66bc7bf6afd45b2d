"""Streams from other nodes: which there are, and how much of them waits to be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from .errors import MoleculerError, RequestRejectedError
from .inflow import Inflow, StreamKey
from .kinds import VERSION
from .packets import StreamProgress

_REMEMBERED_MAX = 4_096

Tell: TypeAlias = Callable[[StreamProgress, str], None]
"""Sends a packet to a node; never raises."""


class StreamLimits(NamedTuple):
    """Of the streams that come in."""

    streams_max: int
    bytes_max: int
    """What waits to be read of one stream."""
    all_bytes_max: int
    """What waits to be read of all."""
    idle_s: float
    """How long a reader waits for a sign of life; 0 for ever."""


class IncomingStreams:
    """All streams on their way in."""

    def __init__(self, node_id: str, limits: StreamLimits, tell: Tell) -> None:
        self._node_id = node_id
        self.limits = limits
        self.tell = tell
        self.loop = asyncio.get_running_loop()
        self._flows: dict[StreamKey, Inflow] = {}
        # Those that are over, the oldest first: their late parts must not open new ones.
        self._former: dict[StreamKey, None] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._flows)

    @property
    def bytes_waiting(self) -> int:
        """What waits to be read."""
        return self._bytes

    def get(self, key: StreamKey) -> Inflow | None:
        return self._flows.get(key)

    def is_former(self, key: StreamKey) -> bool:
        """Whether a stream is over, not long ago."""
        return key in self._former

    def begin(self, key: StreamKey) -> Inflow | None:
        """A new stream, whichever part came first; None if there are too many."""
        if len(self._flows) >= self.limits.streams_max:
            return None
        flow = self._flows[key] = Inflow(key, self)
        return flow

    def refuse(self, key: StreamKey) -> None:
        """Take no part of a stream."""
        self._former[key] = None
        if len(self._former) > _REMEMBERED_MAX:
            del self._former[next(iter(self._former))]

    def forget(self, key: StreamKey) -> None:
        """A stream is over."""
        if self._flows.pop(key, None) is not None:
            self.refuse(key)

    def hold(self, more: int, held: int) -> bool:
        """So much more waits, and so much of the same stream; whether that is all right."""
        self._bytes += more
        limits = self.limits
        is_growing = more > 0
        return not is_growing or (held <= limits.bytes_max and self._bytes <= limits.all_bytes_max)

    def release(self, size: int) -> None:
        """So much was read, or dropped."""
        self._bytes -= size

    def hear(self, key: StreamKey, sent: int) -> None:
        """The sender of a stream says that it is alive."""
        flow = self._flows.get(key)
        if flow is not None:
            flow.hear(sent)
        else:
            self.cancel(key)

    def cancel(self, key: StreamKey) -> None:
        """Tell the sender of a stream that nobody wants it."""
        self.tell(self.progress(key, is_cancelled=True), key.peer)

    def lose_node(self, node_id: str) -> None:
        """A node is gone: its streams break off."""
        for flow in [it for it in self._flows.values() if it.key.peer == node_id]:
            told = {"nodeID": node_id}
            flow.fail(RequestRejectedError(f"Stream closed by {node_id}", data=told))

    def fail_all(self, error: MoleculerError) -> None:
        for flow in [*self._flows.values()]:
            flow.fail(error)

    def drop_unopened(self, before: float) -> None:
        """Forget streams of which parts came long ago, but never the first one."""
        for flow in [it for it in self._flows.values() if not it.is_open]:
            if flow.moved_at < before:
                flow.close_now()

    @property
    def has_unopened(self) -> bool:
        return any(not it.is_open for it in self._flows.values())

    def progress(self, key: StreamKey, **told: Any) -> StreamProgress:
        return StreamProgress(
            id=key.id, is_request=key.is_request, **told, ver=VERSION, sender=self._node_id
        )
