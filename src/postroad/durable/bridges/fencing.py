"""What a bridge manager commits, if it may: the one that took the last token of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postroad.core import Address, to_address
from postroad.core.errors import FencedError
from postroad.durable.bridges.protocol import MessageRejection, StreamAck
from postroad.durable.bridges.send_window import StreamIdentity
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.mutations import Mutation
from postroad.durable.store.tables.schema import read_meta, write_meta
from postroad.durable.store.tables.store_tables import StoreTables

TOKEN = "bridge.token"
PLACE = "bridge.place"


def check_fencing_token(database: StoreConnection, token: int) -> None:
    """Raise FencedError if another bridge manager has taken over the store."""
    newest_token = int(read_meta(database, TOKEN) or 0)
    if newest_token != token:
        raise FencedError(f"bridge manager {newest_token} has taken over from {token}")


def acquire_fencing_token(tables: StoreTables, name: str, address: Address) -> int:
    """Take over the store as its bridge manager, and say where that is."""
    token = int(read_meta(tables.database, TOKEN) or 0) + 1
    write_meta(tables.database, TOKEN, str(token))
    write_meta(tables.database, PLACE, f"{name} {address}")
    return token


def find_manager(database: StoreConnection) -> tuple[str, Address] | None:
    """The name and address of the manager that took over last."""
    place = read_meta(database, PLACE)
    if place is None:
        return None
    name, _, address = place.partition(" ")
    return name, to_address(address)


class OutboxAckMutation(Mutation):
    """What a peer has accepted is removed; what it refused becomes dead letters."""

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
