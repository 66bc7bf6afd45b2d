"""What waits to be sent to one destination."""

from __future__ import annotations

import asyncio
from collections import deque

from postroad.cells import CellAddress, CellDomain, CellPath
from postroad.core import tracing
from postroad.core.limits import KIB, MIB

LETTER_BYTES = 64 * KIB
"""A letter with more in it than this gets no further packet."""
WINDOW_BYTES = 1 * MIB
"""So much may be under way to a node before it has confirmed any of it. All domains on the way
keep it in memory if the node is slow, and share what room they have among all who send."""
PACKET_BYTES = 150
"""What a packet takes in memory besides its bytes."""


class Letter:
    """Packets that go together."""

    __slots__ = ("packets", "size", "span", "turn")

    def __init__(self, turn: int) -> None:
        # Of whoever published the first of them.
        self.span = tracing.current_span() if tracing.tracer is not None else None
        self.packets: list[tuple[str, bytes]] = []
        self.size = 0
        # Later packets belong to a later one.
        self.turn = turn


class Lane:
    """Letters to one destination, in order.

    Args:
        path: where they go.
        letter_bytes: a letter gets no packet that makes it larger than this, but for its first.
        is_confirmed: whether the destination is a single cell, which can be asked how far it is.
    """

    __slots__ = (
        "_letter_bytes",
        "_room",
        "confirmed",
        "is_blocked",
        "is_confirmed",
        "letters",
        "path",
        "sent",
        "waiting",
    )

    def __init__(self, path: CellPath, *, letter_bytes: int, is_confirmed: bool) -> None:
        self.path = path
        self.is_confirmed = is_confirmed
        self._letter_bytes = letter_bytes
        self.letters: deque[Letter] = deque()
        # Bytes that wait here, and of those that have left, how many there are and how many of
        # them are known to have come.
        self.waiting = self.sent = self.confirmed = 0
        # Whether something will see to it that letters are sent once that is possible.
        self.is_blocked = False
        self._room = asyncio.Event()
        self._room.set()

    @property
    def under_way(self) -> int:
        """Bytes that have left and may not have come."""
        return self.sent - self.confirmed

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be missed if it was forgotten."""
        return not self.letters and not self.under_way

    def add(self, word: str, data: bytes, size: int, turn: int) -> bool:
        """Add a packet, which counts for so many bytes; whether a letter was begun for it."""
        letter = self.letters[-1] if self.letters else None
        is_new = letter is None or letter.turn != turn or letter.size + size > self._letter_bytes
        if letter is None or is_new:
            letter = Letter(turn)
            self.letters.append(letter)
        letter.packets.append((word, data))
        letter.size += size
        self.waiting += size
        if self.waiting + self.sent - self.confirmed > WINDOW_BYTES:
            self._room.clear()
        return is_new

    def take_first(self) -> Letter:
        """Remove the first letter, to send it."""
        letter = self.letters.popleft()
        self.waiting -= letter.size
        self.tell_room()
        return letter

    def put_back(self, letter: Letter) -> None:
        """It could not be sent now."""
        self.letters.appendleft(letter)
        self.waiting += letter.size

    def send(self, domain: CellDomain, sender: CellAddress, data: bytes) -> None:
        """Send a letter; raises what the domain raises."""
        domain.send_nowait(self.path, data, sender=sender)

    def confirm(self, sent: int) -> None:
        """All that was sent has come, up to this count of bytes."""
        self.confirmed = max(self.confirmed, sent)
        self.tell_room()

    def tell_room(self) -> None:
        """Let those go on who wait for room, if there is any."""
        if self.waiting + self.under_way <= WINDOW_BYTES:
            self._room.set()

    async def room(self) -> None:
        """Wait until not much is waiting or under way."""
        await self._room.wait()

    def clear(self) -> int:
        """Give up what waits; says how many packets that were."""
        lost = sum(len(letter.packets) for letter in self.letters)
        self.letters.clear()
        self.waiting = 0
        self.confirmed = self.sent
        self._room.set()
        return lost


class TopicLane(Lane):
    """Letters to all who subscribe to a topic; it is no error if there is nobody."""

    __slots__ = ("_topic",)

    def __init__(self, topic: str) -> None:
        super().__init__(CellPath.of(topic), letter_bytes=0, is_confirmed=False)
        self._topic = topic

    def send(self, domain: CellDomain, sender: CellAddress, data: bytes) -> None:
        """Publish a letter."""
        domain.publish(self._topic, data, sender=sender)


class QueueLane(Lane):
    """Letters to a queue: each packet has one of its own, and so a consumer of its own."""

    __slots__ = ()

    def __init__(self, queue: str) -> None:
        super().__init__(CellPath.of(queue), letter_bytes=0, is_confirmed=False)


class NodeLane(Lane):
    """Letters to a node, and what is known of it.

    Args:
        node_id: the node.
        name: of its cell; good enough to send to, if the address is not known.
        letter_bytes: how much of many packets goes together.
    """

    __slots__ = (
        "_name",
        "address",
        "heard",
        "heard_before",
        "is_asked",
        "missing_since",
        "node_id",
        "watched_until",
    )

    def __init__(self, node_id: str, name: str, letter_bytes: int = LETTER_BYTES) -> None:
        super().__init__(CellPath.of(name), letter_bytes=letter_bytes, is_confirmed=True)
        self.node_id = node_id
        self._name = name
        self.address: CellAddress | None = None
        # Whether it was asked something since the last look, and how long answers may take.
        self.is_asked = False
        self.watched_until = 0.0
        # How often it gave a sign of life, now and at the last look.
        self.heard = self.heard_before = 0
        # Since when nobody knows the way to it; None if somebody does.
        self.missing_since: float | None = None

    def move(self, address: CellAddress | None) -> None:
        """It is at this address; None if that is not known."""
        self.address = address
        self.path = CellPath.of(self._name if address is None else address)
