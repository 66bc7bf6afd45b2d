"""Deletes from the outbox what a peer has accepted, in a commit of the bridge that may do so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postroad.durable.bridges.fencing import check_fencing_token
from postroad.durable.bridges.protocol import MessageRejection, StreamAck
from postroad.durable.bridges.send_window import StreamIdentity
from postroad.durable.store.mutations import Mutation
from postroad.durable.store.tables.store_tables import StoreTables


class OutboxAckMutation(Mutation):
    """Removes the messages that a peer has accepted; rejected ones become dead letters."""

    __slots__ = ("_chain", "_on_acked", "_rejections", "_stream", "acked")

    def __init__(
        self,
        stream: StreamIdentity,
        ack: StreamAck,
        rejections: Sequence[MessageRejection],
        on_complete: Callable[[OutboxAckMutation, Exception | None], None],
    ) -> None:
        super().__init__()
        self._on_acked = on_complete
        self._stream = stream
        self._chain = ack.chain
        self._rejections = rejections
        self.acked = ack.watermark

    @property
    def epoch(self) -> int:
        """The epoch its numbers are of."""
        return self._stream.epoch

    def apply(self, tables: StoreTables) -> None:
        check_fencing_token(tables.database, self._stream.token)
        tables.outbox.ack(
            self._stream.peer,
            self._stream.epoch,
            self.acked,
            self._chain,
            self._rejections,
            tables.now_ms,
        )

    def on_complete(self, error: Exception | None) -> None:
        self._on_acked(self, error)
