"""Takes letters that come for a node of services, and hands out what is in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from postroad.cells import Cell, CellAddress, CellMessage
from postroad.core import ThrottledLogger
from postroad.core.errors import MalformedPayloadError

from .cells_letters import KINDS, decode_letter
from .transporter import Listener

logger = logging.getLogger("postroad.services.transporters")

_LOG_INTERVAL_S = 10.0


class PacketCell(Cell):
    """Takes packets for a node of services."""

    def __init__(
        self,
        name: str,
        receive: Callable[[CellMessage], None],
        *,
        consume: Iterable[str],
        subscribe: Iterable[str] = (),
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name, consume=consume, subscribe=subscribe)
        self._receive = receive
        self._on_stop = on_stop

    def handle(self, message: CellMessage) -> None:
        """Hand a message over."""
        self._receive(message)

    async def on_stop(self) -> None:
        """The cell is removed, or the whole domain stops."""
        if self._on_stop is not None:
            self._on_stop()


class Incoming:
    """What comes for one node.

    Args:
        listener: gets the packets.
        own: the address of the node's cell.
        broadcast: the topic that everybody subscribes to.
        hear: told of everybody who sent a letter; gives the node, or None if it cannot be one.
    """

    def __init__(
        self,
        listener: Listener,
        own: CellAddress,
        broadcast: str,
        hear: Callable[[CellAddress], str | None],
    ) -> None:
        self._listener = listener
        self._own = own
        self._broadcast = broadcast
        self._hear = hear
        self._now = asyncio.get_running_loop().time
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        # Whether packets are welcome; those that come before are nobody's business.
        self.is_open = False
        self.malformed = self.unknown = 0

    def receive(self, message: CellMessage) -> None:
        """Take a letter; one that is none harms nobody."""
        sender = message.sender
        if not self.is_open or sender is None:
            return
        if message.route_name == self._broadcast and sender == self._own:
            return
        try:
            packets = decode_letter(message.payload)
        except MalformedPayloadError as error:
            self.malformed += 1
            self._warn(f"malformed {sender}", "dropped what %s sent: %s", sender, error)
            return
        node_id = self._hear(sender)
        if node_id is None:
            self.malformed += 1
            self._warn(f"forged {sender}", "dropped what %s sent: it is no such node", sender)
            return
        received = self._listener.received
        for word, data in packets:
            kind = KINDS.get(word)
            if kind is not None:
                received(kind, data, sender=node_id)
            else:
                self.unknown += 1
                self._warn(f"unknown {sender}", "dropped a %.80r of %s", word, sender)

    def _warn(self, key: str, text: str, *args: object) -> None:
        self._log.log(key, self._now(), f"cells: {text}", *args)
