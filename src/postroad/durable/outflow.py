"""What is sent to one peer, and when. Pure: answers and time come in, windows come out."""

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

from .config import MailConfig
from .exchange import Answer, Refusal, SentPage, Verdict, Window
from .store.rows import OutPage, Peer

# What a page takes in a frame besides its letters.
_PAGE_OVERHEAD = 48


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that stay the same while one bridge talks to one peer."""

    peer: str
    store: bytes
    epoch: int
    token: int


def compare(peer: Peer, answer: Answer, chain_here: bytes | None) -> None:
    """Raise StreamMismatchError unless both stores agree on what was delivered.

    Args:
        peer: what this store remembers.
        answer: what the peer's store remembers.
        chain_here: the chain after the peer's watermark, as this store knows it.
    """
    advice = "decide what to do with the mail that waits, then start a new epoch"
    if answer.watermark < peer.settled:
        raise ReceiverStateLostError(
            f"{peer.name!r} has acknowledged {peer.settled} messages and remembers "
            f"{answer.watermark}: its store is an old copy, and what is between is lost there; "
            f"{advice}"
        )
    if answer.watermark > peer.head:
        raise SenderStateLostError(
            f"{peer.name!r} has {answer.watermark} messages of this node, which remembers having "
            f"posted {peer.head}: this node's store is an old copy; {advice}"
        )
    if chain_here != answer.chain:
        raise StreamDivergedError(
            f"message {answer.watermark} to {peer.name!r} is not the one that was delivered there: "
            f"one of the two stores is an old copy that went on by itself; {advice}"
        )


def refusals_between(answer: Answer, before: int) -> list[Refusal]:
    """What a peer refuses of the messages it has accepted now: each at most once, in order."""
    refusals: list[Refusal] = []
    for refusal in answer.refusals:
        if before < refusal.number <= answer.watermark:
            refusals.append(refusal)
            before = refusal.number
    return refusals


class Outflow:
    """Windows to one peer, from an offer to the first trouble.

    Attributes:
        accepted: number of the last message that the peer has.
        sent: number of the last message that is on its way.
        is_full: whether the peer had no room for what it was sent last.
    """

    def __init__(self, course: Course, config: MailConfig, answer: Answer) -> None:
        self._course = course
        self._config = config
        self.accepted = self.sent = answer.watermark
        self._version = answer.version
        self._chain = answer.chain
        self._credit = answer.credit
        # Bytes of the windows on their way.
        self._flying: deque[int] = deque()
        self._flying_bytes = 0
        self.is_full = False

    @property
    def room(self) -> int:
        """Bytes that may be sent now; less than 1 if none."""
        if len(self._flying) >= self._config.windows_max:
            return 0
        return min(self._config.window_bytes, self._credit - self._flying_bytes)

    @property
    def in_flight(self) -> int:
        """Windows on their way."""
        return len(self._flying)

    def choose(self, pages: Sequence[OutPage]) -> Sequence[OutPage]:
        """Those of the next pages that make a window now."""
        room = self.room
        if room <= 0:
            return ()
        for index, page in enumerate(pages):
            room -= page.size + _PAGE_OVERHEAD
            if room < 0:
                # A page larger than a window goes alone.
                return pages[: max(index, 1)]
        return pages

    def send(self, pages: Sequence[OutPage], settled: int, now_ms: int) -> Window:
        """Make a window of the next pages.

        Args:
            settled: number up to which this store has durably removed what the peer accepted; the
                peer forgets then what it refused up to there.
        """
        window = Window(
            self._course.store,
            self._course.epoch,
            self._course.token,
            settled,
            now_ms,
            self.sent + 1,
            self._chain,
            [SentPage(page.last - page.first + 1, page.chain, page.letters) for page in pages],
            self._version,
        )
        size = sum(page.size for page in pages)
        self._flying.append(size)
        self._flying_bytes += size
        self.sent, self._chain = pages[-1].last, pages[-1].chain
        return window

    def on_answer(self, answer: Answer) -> bool:
        """The peer answered the oldest window; False if one must begin again with an offer."""
        self._flying_bytes -= self._flying.popleft()
        if answer.watermark > self.sent:
            raise MalformedPayloadError(
                f"{self._course.peer!r} accepts message {answer.watermark}, and {self.sent} is the "
                "last one it was sent"
            )
        self.accepted = max(self.accepted, answer.watermark)
        self._credit = answer.credit
        self.is_full = answer.verdict is Verdict.FULL
        if answer.verdict is Verdict.DIVERGED:
            raise StreamDivergedError(
                f"{self._course.peer!r} says that what it was sent does not continue what it has"
            )
        return answer.verdict is Verdict.ACCEPTED
