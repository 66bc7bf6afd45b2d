"""What was sent and what came, and the rules that hold at every moment."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from postroad.services.kinds import Kind
from postroad.testing import require


class Sent(NamedTuple):
    number: int
    kind: Kind
    sender: str
    """The id of the node that sends it."""
    to: str | None
    """The id of a node, or None for all."""
    action: str | None = None
    """Of a balanced topic."""

    @property
    def is_for_all(self) -> bool:
        return self.to is None and self.action is None

    def __str__(self) -> str:
        to = self.action or self.to or "all"
        return f"{self.kind} {self.number} of {self.sender!r} to {to!r}"


class Ledger:
    def __init__(self) -> None:
        self._sent: list[Sent] = []
        self.came: dict[int, list[str]] = defaultdict(list)
        """By the number of a packet, the ids of the nodes it came to."""
        self._stays: dict[int, list[object]] = defaultdict(list)
        # By the number of a packet, those that must have come before it.
        self._in_order: dict[int, tuple[int, ...]] = {}

    def write(self, kind: Kind, sender: str, to: str | None, action: str | None = None) -> Sent:
        sent = Sent(len(self._sent), kind, sender, to, action)
        self._sent.append(sent)
        return sent

    def expect_order(self, packets: list[Sent]) -> None:
        numbers = tuple(it.number for it in packets)
        for place, number in enumerate(numbers):
            self._in_order[number] = numbers[:place]

    def receive(self, node_id: str, stay: object, kind: Kind, data: bytes) -> None:
        """A packet came to a node, during this stay of it in a domain.

        What was sent to all may come once more to a node that moved: it is among all there, too.
        """
        sent = self._sent[number_in(data)]
        came = self.came[sent.number]
        require(kind is sent.kind, f"{sent} came to {node_id!r} as {kind}")
        require(data == write_packet(sent, len(data)), f"{sent} came to {node_id!r} garbled")
        is_first = stay not in self._stays[sent.number] if sent.is_for_all else not came
        require(is_first, f"{sent} came to {node_id!r}, and before that to {came}")
        require(sent.to in (None, node_id), f"{sent} came to {node_id!r}")
        missing = [it for it in self._in_order.get(sent.number, ()) if not self.came[it]]
        require(not missing, f"{sent} came to {node_id!r} before {missing}")
        self._stays[sent.number].append(stay)
        came.append(node_id)


def write_packet(sent: Sent, size: int = 0) -> bytes:
    return (b"%d " % sent.number).ljust(size, b".")


def number_in(data: bytes) -> int:
    return int(data.split(b" ", 1)[0])
