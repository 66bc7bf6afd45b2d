"""What was sent and what was handled, and the rules that hold at every moment."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from postroad.cells import CellMessage
from postroad.testing import SimCluster, require


class Disturbance:
    """Adds up the time during which at least one reason for delay held."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._reasons = 0
        self._since = 0.0
        self._total_s = 0.0

    def begin(self) -> None:
        if not self._reasons:
            self._since = self._now()
        self._reasons += 1

    def end(self) -> None:
        self._reasons -= 1
        if not self._reasons:
            self._total_s += self._now() - self._since

    @property
    def total_s(self) -> float:
        """Seconds until now; the difference of two looks is what lies between them."""
        lasting_s = self._now() - self._since if self._reasons else 0.0
        return self._total_s + lasting_s


MARGIN_S = 0.75
"""Of all times: what the ways take, and turns of the loop."""


class Way(enum.Enum):
    CALL = "call"
    TELL = "message"
    PUBLISH = "publication"


class Sent(NamedTuple):
    number: int
    way: Way
    sender: str
    """The process that sends it."""
    destination: str
    time: float
    timeout_s: float | None
    disturbed_s: float
    paused_s: float
    """How much there had been of both before."""

    def __str__(self) -> str:
        return f"{self.way.value} {self.number} of {self.sender} to {self.destination}"


class Handling(NamedTuple):
    place: str
    """The process and the cell."""
    id: bytes
    order: int
    """How many were handled before, by anybody."""


class Books:
    """Everybody's messages of one run."""

    def __init__(self, sim: SimCluster, disturbance: Disturbance, pauses: Disturbance) -> None:
        self._sim = sim
        self._disturbance = disturbance
        self._pauses = pauses
        self._sent: list[Sent] = []
        self.handled: dict[int, list[Handling]] = defaultdict(list)
        self._ids: dict[bytes, str] = {}
        # Calls whose callers were told that nobody handled them.
        self._denied: dict[int, str] = {}
        self._order = count()

    # Sending.

    def write(
        self, way: Way, sender: str, destination: str, timeout_s: float | None = None
    ) -> Sent:
        sent = Sent(
            len(self._sent),
            way,
            sender,
            destination,
            self._sim.now,
            timeout_s,
            self._disturbance.total_s,
            self._pauses.total_s,
        )
        self._sent.append(sent)
        return sent

    def check_reply(self, sent: Sent, reply: bytes) -> None:
        require(number_in(reply) == sent.number, f"{sent} got {reply[:40]!r} as its reply")
        require(bool(self.handled[sent.number]), f"{sent} was answered, but handled by nobody")

    def deny(self, sent: Sent, error: Exception) -> None:
        """The sender of a message was told that nobody handled it, and nobody will."""
        where = [receipt.place for receipt in self.handled[sent.number]]
        require(not where, f"{sent} was handled by {where}, but its sender got {error!r}")
        self._denied[sent.number] = type(error).__name__

    # Handling.

    def handle(self, place: str, message: CellMessage) -> Sent:
        sent = self._sent[number_in(message.payload)]
        self._check_once(sent, place, message)
        self._check_time(sent, place)
        require(
            sent.number not in self._denied,
            f"{place} handles {sent}, whose sender was told {self._denied.get(sent.number)}",
        )
        home = sent.sender.partition("#")[0]
        # Whoever is on the path sends it on as its own.
        require(
            ":" in sent.destination
            or (message.sender is not None and message.sender.domain == home),
            f"{place} takes {message.sender} for the sender of {sent}",
        )
        is_logical = "@" not in sent.destination
        require(
            message.route_name == (sent.destination if is_logical else None),
            f"{place} is told that {sent} was sent to {message.route_name}",
        )
        self.handled[sent.number].append(Handling(place, message.id, next(self._order)))
        return sent

    def order_of(self, sent: Sent) -> int:
        return self.handled[sent.number][0].order

    def _check_once(self, sent: Sent, place: str, message: CellMessage) -> None:
        """Every attempt is handled once, and every copy of a publication."""
        if sent.way is Way.PUBLISH:
            places = [receipt.place for receipt in self.handled[sent.number]]
            require(place not in places, f"{place} gets a second copy of {sent}")
            return
        before = self._ids.setdefault(message.id, place)
        is_first = all(receipt.id != message.id for receipt in self.handled[sent.number])
        require(is_first, f"{place} handles {sent}, as {before} did in the same attempt")

    def _check_time(self, sent: Sent, place: str) -> None:
        if sent.timeout_s is None:
            return
        late_s = self._sim.now - sent.time - sent.timeout_s
        excused_s = self._pauses.total_s - sent.paused_s + MARGIN_S
        if not place.endswith(f"@{sent.sender}") or ":" in sent.destination:
            # It was on the network, where time is not counted.
            excused_s += self._disturbance.total_s - sent.disturbed_s
        require(late_s <= excused_s, f"{place} handles {sent}, {late_s:.3f} s too late")


def write_number(number: int, padding: int = 0) -> bytes:
    return b"%d %s" % (number, b"." * padding)


def number_in(payload: bytes) -> int:
    return int(payload.split(maxsplit=1)[0])
