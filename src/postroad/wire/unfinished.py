"""What connections hold of frames that are not whole yet: one total for all of a service.

A peer can begin a large frame on every connection it opens and end none. So a large frame reserves
its size before it is read on, and waits while there is no room: honest peers that send much at once
are slowed down, not cut off. One peer gets half of that room at most, so that it cannot keep the
others out; and a frame that stands still while others wait for its room loses its connection. Who
has the least goes on first, told apart by the names they claim where nothing better is known.

What has arrived of a frame before that, or of a small one, cannot wait. When such pieces are too
many, the peer that holds the most loses the connection that has held one for longest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from postroad.core.limits import KIB

# A frame that makes less progress while others wait for its room stands still.
_BYTES_PER_S_MIN = 64 * KIB
_LOOK_INTERVAL_S = 1.0


class Owner(Protocol):
    """The connection of a share."""

    def on_room(self) -> None:
        """The frame that waited may go on."""

    def give_up_frame(self, reason: str) -> None:
        """Others need the room: end the connection."""


class UnfinishedFrames:
    """The total. One frame alone may have any size."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # As large frames wait, each with what was read of it, both need about as much.
        self._pieces_max = self._frames_max = bytes_max // 2
        # Shares that hold pieces, and those that have reserved room, in the order they began to.
        self._pieces: dict[Share, None] = {}
        self._frames: dict[Share, None] = {}
        self._pieces_bytes = 0
        self._frames_bytes = 0
        self._frames_by_peer: dict[str, int] = {}
        # Those that wait for room, first come first served.
        self._waiting: dict[Share, None] = {}

    @property
    def held_bytes(self) -> int:
        """How much of the total is taken."""
        return self._pieces_bytes + self._frames_bytes

    def share(self, peer: str, owner: Owner | None) -> Share:
        """The part of a new connection; `peer` is whom it counts for, nothing a peer can choose."""
        return Share(self, peer, owner)

    def set_piece(self, share: Share, size: int) -> None:
        """Count what a share keeps."""
        self._pieces_bytes += size - share.piece_bytes
        share.piece_bytes = size
        if size:
            self._pieces.setdefault(share)
        else:
            self._pieces.pop(share, None)

    def set_frame(self, share: Share, size: int) -> None:
        """Count what a share has reserved."""
        change = size - share.frame_bytes
        self._frames_bytes += change
        held = self._frames_by_peer.get(share.peer, 0) + change
        if held:
            self._frames_by_peer[share.peer] = held
        else:
            self._frames_by_peer.pop(share.peer, None)
        share.frame_bytes = size
        share.looked_at = None
        if size:
            self._frames[share] = None
        else:
            self._frames.pop(share, None)

    def fits(self, share: Share, size: int) -> bool:
        """Whether so much can be reserved."""
        return self._peer_has_room(share, size) and (
            not self._frames or self._frames_bytes + size <= self._frames_max
        )

    def _peer_has_room(self, share: Share, size: int) -> bool:
        held = self._frames_by_peer.get(share.peer, 0)
        return not held or held + size <= self._frames_max // 2

    def wait(self, share: Share) -> None:
        """Take a place in the line."""
        share.is_waiting = True
        self._waiting.setdefault(share)

    def leave(self, share: Share) -> None:
        """Leave the line."""
        share.is_waiting = False
        self._waiting.pop(share, None)

    def wake(self) -> None:
        """Let those go on that fit; one that its own peer keeps waiting keeps nobody else."""
        if not self._waiting:
            return
        for share in self._rank(self._waiting):
            if self._frames_bytes >= self._frames_max:
                return
            if share in self._waiting and self.fits(share, share.wanted_bytes):
                self.leave(share)
                self.set_frame(share, share.wanted_bytes)
                if share.owner is not None:
                    share.owner.on_room()

    def cut_pieces(self, asking: Share) -> bool:
        """Have pieces given up until all fit; False if it was the turn of who asks."""
        while self._pieces_bytes > self._pieces_max and len(self._pieces) > 1:
            held: Counter[str] = Counter()
            for share in self._pieces:
                held[share.peer] += share.piece_bytes
            peer, _ = held.most_common(1)[0]
            victim = next(share for share in self._pieces if share.peer == peer)
            victim.release()
            if victim is asking:
                return False
            self._give_up(victim)
        return True

    def cut_stalled(self, asking: Share, now: float) -> None:
        """Have frames given up that stand still, as far as who asks needs their room."""
        size = asking.wanted_bytes
        stalled = [share for share in self._frames if share.is_stalled(now)]
        # Those of the peer that holds the most come first.
        for share in self._rank(stalled, most_first=True):
            if self.fits(asking, size):
                break
            if share.peer == asking.peer or self._peer_has_room(asking, size):
                self.set_frame(share, 0)
                self._give_up(share)
        self.wake()

    def _rank(self, shares: Iterable[Share], *, most_first: bool = False) -> list[Share]:
        """Put those first whose peers have the least already, or the most."""
        by_peer = self._frames_by_peer
        by_name: Counter[tuple[str, str]] = Counter()
        for share in self._frames:
            by_name[share.peer, share.name] += share.frame_bytes

        def held(share: Share) -> tuple[int, int]:
            return by_peer.get(share.peer, 0), by_name[share.peer, share.name]

        return sorted(shares, key=held, reverse=most_first)

    def _give_up(self, share: Share) -> None:
        if share.owner is not None:
            share.owner.give_up_frame(explain(self._bytes_max, share.peer))


class Share:
    """What one connection holds."""

    __slots__ = (
        "_looked_bytes",
        "_total",
        "frame_bytes",
        "is_waiting",
        "looked_at",
        "name",
        "owner",
        "peer",
        "piece_bytes",
        "received_bytes",
        "wanted_bytes",
    )

    def __init__(self, total: UnfinishedFrames, peer: str, owner: Owner | None) -> None:
        self._total = total
        self.peer = peer
        # What the peer calls itself; set before anything is reserved.
        self.name = ""
        self.owner = owner
        self.piece_bytes = 0
        self.frame_bytes = 0
        # Whether its owner must read no more until it is told of room; and for how much.
        self.is_waiting = False
        self.wanted_bytes = 0
        # What has arrived of the frame it has reserved room for, and how much of that when
        # somebody who waits last looked.
        self.received_bytes = 0
        self.looked_at: float | None = None
        self._looked_bytes = 0

    def keep(self, size: int) -> bool:
        """Hold so much that has arrived already; False if this connection must end for it."""
        self._total.set_piece(self, size)
        return self._total.cut_pieces(self)

    def reserve(self, size: int) -> bool:
        """Have room for a frame; False if its owner has to wait until it is told."""
        if self.is_waiting:
            return False
        if not self._total.fits(self, size):
            self.wanted_bytes = size
            self._total.wait(self)
            return False
        self._total.set_frame(self, size)
        return True

    def look(self, now: float) -> None:
        """It has waited for a while: have frames given up that stand still."""
        if self.is_waiting:
            self._total.cut_stalled(self, now)

    def is_stalled(self, now: float) -> bool:
        """Whether its frame has hardly gone on since the last look."""
        since = self.looked_at
        if since is not None:
            progress = self.received_bytes - self._looked_bytes
            if now - since < _LOOK_INTERVAL_S:
                return False
            if progress < _BYTES_PER_S_MIN * (now - since):
                return True
        self.looked_at, self._looked_bytes = now, self.received_bytes
        return False

    def release(self) -> None:
        """Hold nothing, and wait for nothing."""
        total = self._total
        if self.is_waiting:
            total.leave(self)
        if self.piece_bytes:
            total.set_piece(self, 0)
        if self.frame_bytes:
            total.set_frame(self, 0)
            total.wake()


def explain(bytes_max: int, peer: str) -> str:
    """Why a connection had to end."""
    return (
        f"frames that are not whole exceed {bytes_max} bytes, the limit unfinished_bytes_max; "
        f"{peer} held this one too long"
    )
