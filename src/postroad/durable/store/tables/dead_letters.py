"""Messages that could not be delivered or handled, with the reason, until an operator decides."""

from __future__ import annotations

from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.stored_messages import StoredMessage, encode_stored_message

from .queries import find_dead_letter
from .rows import DeadLetter, sanitize_text


class DeadLetterTable:
    """The dead letters of a store, inside a commit."""

    def __init__(self, database: StoreConnection) -> None:
        self.database = database
        # By how many bytes each sender has more or fewer dead letters after this commit.
        self.bytes_by_sender: dict[str, int] = {}

    def add_outbound(
        self, peer: str, message: StoredMessage, reason: str, detail: str, now_ms: int
    ) -> None:
        """Add a message that a peer rejected."""
        self._add(True, peer, message, reason, detail, 0, now_ms)

    def add_inbound(
        self,
        sender: str,
        message: StoredMessage,
        reason: str,
        detail: str,
        failures: int,
        now_ms: int,
    ) -> None:
        """Add a message that could not be handled here."""
        self._add(False, sender, message, reason, detail, failures, now_ms)

    def _add(
        self,
        is_outbound: bool,
        peer: str,
        message: StoredMessage,
        reason: str,
        detail: str,
        failures: int,
        now_ms: int,
    ) -> None:
        data = encode_stored_message(message)
        if not is_outbound:
            self._count(peer, len(data))
        self.database.execute(
            "INSERT INTO postroad_dead"
            " (is_outbound, peer, queue, reason, detail, failures, died_ms, letter)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                int(is_outbound),
                peer,
                message.queue,
                sanitize_text(reason),
                sanitize_text(detail),
                failures,
                now_ms,
                data,
            ),
        )

    def remove(self, id: int) -> DeadLetter | None:
        """Remove and return a dead letter; None if there is none of this id."""
        dead = find_dead_letter(self.database, id)
        if dead is not None:
            for (size,) in self.database.execute(
                "DELETE FROM postroad_dead WHERE id = ? RETURNING LENGTH(letter)", (id,)
            ):
                if not dead.is_outbound:
                    self._count(dead.peer, -size)
        return dead

    def _count(self, sender: str, size: int) -> None:
        self.bytes_by_sender[sender] = self.bytes_by_sender.get(sender, 0) + size
