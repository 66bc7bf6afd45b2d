"""The send window to one peer. Pure: acks and time come in, windows come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from postroad.core.errors import (
    MalformedPayloadError,
    ReceiverStateLostError,
    SenderStateLostError,
    StreamDivergedError,
)
from postroad.durable.bridges.protocol import (
    MessageRejection,
    StreamAck,
    StreamWindow,
    WindowStatus,
    WireBatch,
)
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.store.tables.rows import OutboxBatch, PeerState

# Bytes of a batch in a frame besides its messages.
_BATCH_OVERHEAD_BYTES = 48


class StreamIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a stream, which stays the same while a bridge runs."""

    peer: str
    store: bytes
    epoch: int
    token: int


def check_stream_consistency(peer: PeerState, ack: StreamAck, local_chain: bytes | None) -> None:
    """Raise StreamMismatchError unless both stores agree on what was delivered.

    Args:
        peer: what this store remembers.
        ack: what the peer's store remembers.
        local_chain: the chain after the peer's watermark, as this store knows it.
    """
    advice = "decide what to do with the messages that wait, then start a new epoch"
    if ack.watermark < peer.acked_seq:
        raise ReceiverStateLostError(
            f"{peer.name!r} has acknowledged {peer.acked_seq} messages and remembers "
            f"{ack.watermark}: its store is an old copy, and what is between is lost there; "
            f"{advice}"
        )
    if ack.watermark > peer.last_seq:
        raise SenderStateLostError(
            f"{peer.name!r} has {ack.watermark} messages of this node, which remembers having "
            f"sent {peer.last_seq}: this node's store is an old copy; {advice}"
        )
    if local_chain != ack.chain:
        raise StreamDivergedError(
            f"message {ack.watermark} to {peer.name!r} is not the one that was delivered there: "
            f"one of the two stores is an old copy that went on by itself; {advice}"
        )


def new_rejections(ack: StreamAck, before: int) -> list[MessageRejection]:
    """Return the rejections among newly accepted messages: each at most once, in order."""
    rejections: list[MessageRejection] = []
    for rejection in ack.rejections:
        if before < rejection.number <= ack.watermark:
            rejections.append(rejection)
            before = rejection.number
    return rejections


class BridgeSendWindow:
    """The sliding window to one peer, from the opening of a stream to its first error.

    Attributes:
        accepted: number of the last message that the peer has acknowledged.
        sent: number of the last message that was sent.
        is_full: whether the peer had no credit for the last window.
    """

    def __init__(self, stream: StreamIdentity, config: DurableQueuesConfig, ack: StreamAck) -> None:
        self._stream = stream
        self._config = config
        self.accepted = self.sent = ack.watermark
        self._version = ack.version
        self._chain = ack.chain
        self._credit = ack.credit
        # Bytes of the windows in flight.
        self._in_flight_windows: deque[int] = deque()
        self._in_flight_bytes = 0
        self.is_full = False

    @property
    def available_bytes(self) -> int:
        """Bytes that may be sent now; less than 1 if none."""
        if len(self._in_flight_windows) >= self._config.windows_max:
            return 0
        return min(self._config.window_bytes, self._credit - self._in_flight_bytes)

    @property
    def in_flight(self) -> int:
        """The number of windows in flight."""
        return len(self._in_flight_windows)

    def select_batches(self, batches: Sequence[OutboxBatch]) -> Sequence[OutboxBatch]:
        """Return the next batches that fit into a window now."""
        available_bytes = self.available_bytes
        if available_bytes <= 0:
            return ()
        for index, batch in enumerate(batches):
            available_bytes -= batch.size + _BATCH_OVERHEAD_BYTES
            if available_bytes < 0:
                # A batch larger than a window is sent alone.
                return batches[: max(index, 1)]
        return batches

    def next_window(self, batches: Sequence[OutboxBatch], acked: int, now_ms: int) -> StreamWindow:
        """Return a window of the next batches.

        Args:
            acked: number up to which this store has durably removed what the peer accepted; the
                peer then drops its rejections up to there.
        """
        window = StreamWindow(
            self._stream.store,
            self._stream.epoch,
            self._stream.token,
            acked,
            now_ms,
            self.sent + 1,
            self._chain,
            [WireBatch(batch.last - batch.first + 1, batch.chain, batch.data) for batch in batches],
            self._version,
        )
        size = sum(batch.size for batch in batches)
        self._in_flight_windows.append(size)
        self._in_flight_bytes += size
        self.sent, self._chain = batches[-1].last, batches[-1].chain
        return window

    def on_ack(self, ack: StreamAck) -> bool:
        """Apply the ack of the oldest window; False if the stream must be opened again."""
        self._in_flight_bytes -= self._in_flight_windows.popleft()
        if ack.watermark > self.sent:
            raise MalformedPayloadError(
                f"{self._stream.peer!r} accepts message {ack.watermark}, and {self.sent} is the "
                "last one it was sent"
            )
        self.accepted = max(self.accepted, ack.watermark)
        self._credit = ack.credit
        self.is_full = ack.status is WindowStatus.FULL
        if ack.status is WindowStatus.DIVERGED:
            raise StreamDivergedError(
                f"{self._stream.peer!r} reports that the stream does not continue what it has"
            )
        return ack.status is WindowStatus.ACCEPTED
