"""Memory budget for unfinished frames, shared by all connections of one messaging service.

A peer can start a large frame on every connection it opens and finish none. So a large frame
reserves its size before more of it is read, and waits while the budget is exhausted: peers that
send much at once are slowed down, not disconnected. One peer gets at most half of the budget for
large frames, so that it cannot block the others. A large frame without progress loses its
connection while others wait for its memory. Waiting frames of the peer with the least memory are
served first; connections from one source are told apart by the names in their hellos.

Bytes of small frames, and of large ones that wait, are in memory already. When these pieces exceed
their half of the budget, the peer that holds the most loses the connection with its oldest piece.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import msgspec

from postroad.core.limits import KIB

# A large frame with less progress than this is stalled, if others wait for its memory.
_BYTES_PER_S_MIN = 64 * KIB
_STALL_CHECK_INTERVAL_S = 1.0


class ShareOwner(Protocol):
    """The connection that a share belongs to."""

    def on_capacity(self) -> None:
        """Resume reading: the memory for the waiting frame is reserved."""

    def abort_frame(self, reason: str) -> None:
        """Close the connection: others need its memory."""


class UnfinishedFrames:
    """The budget of one messaging service. A single frame may have any size."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # A waiting large frame holds the piece read so far, so both halves are needed alike.
        self._pieces_max = self._frames_max = bytes_max // 2
        # Shares that hold pieces and shares that reserved memory, oldest first.
        self._pieces: dict[Share, None] = {}
        self._frames: dict[Share, None] = {}
        self._pieces_bytes = 0
        self._frames_bytes = 0
        self._frames_by_peer: dict[str, int] = {}
        # Shares that wait for memory, first come first served.
        self._waiting: dict[Share, None] = {}

    @property
    def used_bytes(self) -> int:
        """Memory that is in use or reserved."""
        return self._pieces_bytes + self._frames_bytes

    def share(self, peer: str, owner: ShareOwner | None) -> Share:
        """Create the share of a new connection.

        Args:
            peer: key of the per-peer limit; must not be a value that the peer can choose.
            owner: the connection, None if it neither waits nor is evicted.
        """
        return Share(self, peer, owner)

    def set_piece(self, share: Share, size: int) -> None:
        self._pieces_bytes += size - share.piece_bytes
        share.piece_bytes = size
        if size:
            self._pieces.setdefault(share)
        else:
            self._pieces.pop(share, None)

    def set_frame(self, share: Share, size: int) -> None:
        """Set the memory that a share has reserved."""
        change = size - share.frame_bytes
        self._frames_bytes += change
        peer_bytes = self._frames_by_peer.get(share.peer, 0) + change
        if peer_bytes:
            self._frames_by_peer[share.peer] = peer_bytes
        else:
            self._frames_by_peer.pop(share.peer, None)
        share.frame_bytes = size
        share.checked_at = None
        if size:
            self._frames[share] = None
        else:
            self._frames.pop(share, None)

    def fits(self, share: Share, size: int) -> bool:
        """Return whether this size can be reserved now."""
        return self._fits_peer(share, size) and (
            not self._frames or self._frames_bytes + size <= self._frames_max
        )

    def _fits_peer(self, share: Share, size: int) -> bool:
        peer_bytes = self._frames_by_peer.get(share.peer, 0)
        return not peer_bytes or peer_bytes + size <= self._frames_max // 2

    def enqueue(self, share: Share) -> None:
        """Add a share to the waiting queue."""
        share.is_waiting = True
        self._waiting.setdefault(share)

    def dequeue(self, share: Share) -> None:
        """Remove a share from the waiting queue."""
        share.is_waiting = False
        self._waiting.pop(share, None)

    def wake(self) -> None:
        """Resume the waiting shares that fit; one over its peer's limit does not block others."""
        if not self._waiting:
            return
        for share in self._rank(self._waiting):
            if self._frames_bytes >= self._frames_max:
                return
            if share in self._waiting and self.fits(share, share.requested_bytes):
                self.dequeue(share)
                self.set_frame(share, share.requested_bytes)
                if share.owner is not None:
                    share.owner.on_capacity()

    def evict_pieces(self, requester: Share) -> bool:
        """Evict pieces until the rest fits; return False if the requester was evicted itself."""
        while self._pieces_bytes > self._pieces_max and len(self._pieces) > 1:
            bytes_by_peer: Counter[str] = Counter()
            for share in self._pieces:
                bytes_by_peer[share.peer] += share.piece_bytes
            peer, _ = bytes_by_peer.most_common(1)[0]
            victim = next(share for share in self._pieces if share.peer == peer)
            victim.release()
            if victim is requester:
                return False
            self._abort(victim)
        return True

    def evict_stalled(self, requester: Share, now: float) -> None:
        """Evict stalled frames until the requester fits."""
        size = requester.requested_bytes
        stalled = [share for share in self._frames if share.is_stalled(now)]
        # Frames of the peer with the most memory are evicted first.
        for share in self._rank(stalled, most_first=True):
            if self.fits(requester, size):
                break
            if share.peer == requester.peer or self._fits_peer(requester, size):
                self.set_frame(share, 0)
                self._abort(share)
        self.wake()

    def _rank(self, shares: Iterable[Share], *, most_first: bool = False) -> list[Share]:
        """Sort shares by the memory their peers have reserved, least first by default."""
        by_peer = self._frames_by_peer
        by_name: Counter[tuple[str, str]] = Counter()
        for share in self._frames:
            by_name[share.peer, share.name] += share.frame_bytes

        def reserved_bytes(share: Share) -> tuple[int, int]:
            return by_peer.get(share.peer, 0), by_name[share.peer, share.name]

        return sorted(shares, key=reserved_bytes, reverse=most_first)

    def _abort(self, share: Share) -> None:
        if share.owner is not None:
            share.owner.abort_frame(
                f"unfinished frames of all connections exceed unfinished_bytes_max="
                f"{self._bytes_max}; the frame of {share.peer} was evicted; "
                "raise the limit or send smaller frames"
            )


class Share(msgspec.Struct, eq=False):
    """The part of the budget that one connection uses."""

    budget: UnfinishedFrames
    peer: str
    owner: ShareOwner | None
    name: str = ""
    """Name in the hello of the peer; set before anything is reserved."""
    piece_bytes: int = 0
    frame_bytes: int = 0
    is_waiting: bool = False
    """Whether the owner must not read until `on_capacity`."""
    requested_bytes: int = 0
    """The size that it waits for."""
    received_bytes: int = 0
    """Bytes received of the frame with reserved memory."""
    checked_at: float | None = None
    checked_bytes: int = 0
    """The received bytes at the last stall check."""

    def hold_piece(self, size: int) -> bool:
        """Count bytes that arrived already; return False if this connection must close instead."""
        self.budget.set_piece(self, size)
        return self.budget.evict_pieces(self)

    def reserve(self, size: int) -> bool:
        """Reserve memory for a frame; return False if the owner must wait for `on_capacity`."""
        if self.is_waiting:
            return False
        if not self.budget.fits(self, size):
            self.requested_bytes = size
            self.budget.enqueue(self)
            return False
        self.budget.set_frame(self, size)
        return True

    def evict_stalled(self, now: float) -> None:
        """Evict stalled frames of other connections if this one waits."""
        if self.is_waiting:
            self.budget.evict_stalled(self, now)

    def is_stalled(self, now: float) -> bool:
        """Return whether the frame made too little progress since the last check."""
        since = self.checked_at
        if since is not None:
            progress = self.received_bytes - self.checked_bytes
            if now - since < _STALL_CHECK_INTERVAL_S:
                return False
            if progress < _BYTES_PER_S_MIN * (now - since):
                return True
        self.checked_at, self.checked_bytes = now, self.received_bytes
        return False

    def release(self) -> None:
        """Return all memory and stop waiting."""
        budget = self.budget
        if self.is_waiting:
            budget.dequeue(self)
        if self.piece_bytes:
            budget.set_piece(self, 0)
        if self.frame_bytes:
            budget.set_frame(self, 0)
            budget.wake()
