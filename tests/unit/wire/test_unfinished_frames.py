"""The total of what connections hold of frames that are not whole."""

from __future__ import annotations

from postroad.core.limits import KIB
from postroad.wire import Share, UnfinishedFrames

TOTAL = 600
"""Of which half is for pieces and half for frames, 150 of one peer."""


class FakeLink:
    """A connection that only notes what it is told."""

    def __init__(self, total: UnfinishedFrames, peer: str) -> None:
        self.events: list[str] = []
        self.share: Share = total.share(peer, self)

    def on_capacity(self) -> None:
        self.events.append("room")

    def abort_frame(self, reason: str) -> None:
        assert "unfinished_bytes_max" in reason
        self.events.append("given up")
        self.share.release()


def links(total: UnfinishedFrames, *peers: str) -> list[FakeLink]:
    return [FakeLink(total, peer) for peer in peers]


def test_one_frame_alone_may_have_any_size() -> None:
    total = UnfinishedFrames(TOTAL)
    first, second = links(total, "a", "b")
    assert first.share.reserve(10_000)
    assert total.used_bytes == 10_000
    assert not second.share.reserve(1)
    first.share.release()
    assert second.events == ["room"]
    assert total.used_bytes == 1


def test_reserve_without_capacity_waits_and_resumes_in_order() -> None:
    total = UnfinishedFrames(TOTAL)
    one, two, three, four = links(total, "a", "b", "c", "d")
    assert one.share.reserve(150)
    assert two.share.reserve(150)
    assert not three.share.reserve(120)
    assert not three.share.reserve(120)
    assert not four.share.reserve(60)
    assert three.share.is_waiting and four.share.is_waiting

    one.share.release()
    assert three.events == ["room"] and four.events == []
    assert not three.share.is_waiting
    two.share.release()
    assert four.events == ["room"]
    assert total.used_bytes == 180


def test_one_peer_gets_half_of_the_budget_and_blocks_no_other() -> None:
    total = UnfinishedFrames(TOTAL)
    one, two, three, other = links(total, "greedy", "greedy", "greedy", "other")
    assert one.share.reserve(100)
    assert not two.share.reserve(100)
    assert not three.share.reserve(100)
    assert other.share.reserve(150)
    other.share.release()
    assert two.events == []
    one.share.release()
    assert two.events == ["room"] and three.events == []


def test_released_share_in_the_queue_is_not_resumed() -> None:
    total = UnfinishedFrames(TOTAL)
    one, two = links(total, "a", "a")
    assert one.share.reserve(150)
    assert not two.share.reserve(1)
    two.share.release()
    one.share.release()
    assert two.events == []
    assert total.used_bytes == 0


def test_a_frame_that_stands_still_is_given_up_when_another_waits() -> None:
    total = UnfinishedFrames(TOTAL)
    still, moving, waiting = links(total, "a", "b", "c")
    assert still.share.reserve(150)
    assert moving.share.reserve(150)
    assert not waiting.share.reserve(150)
    for now in (0.0, 1.0):
        # The first look only notes how far they are.
        assert still.events == waiting.events == []
        moving.share.received_bytes += 64 * KIB
        still.share.received_bytes += 10
        waiting.share.evict_stalled(now)
    assert still.events == ["given up"]
    assert moving.events == []
    assert waiting.events == ["room"]


def test_frequent_checks_evict_no_progressing_frame() -> None:
    total = UnfinishedFrames(TOTAL)
    slow, one, two = links(total, "a", "b", "b")
    assert slow.share.reserve(300)
    for link in (one, two):
        assert not link.share.reserve(150)
    for moment in range(40):
        slow.share.received_bytes += 8 * KIB
        (one, two)[moment % 2].share.evict_stalled(moment / 8)
    assert slow.events == []


def test_the_frames_of_the_peer_that_holds_the_most_go_first() -> None:
    total = UnfinishedFrames(TOTAL)
    small, one, two, waiting = links(total, "small", "large", "large", "late")
    for link, size in ((small, 140), (one, 75), (two, 75)):
        assert link.share.reserve(size)
    assert not waiting.share.reserve(50)
    for now in (0.0, 1.0):
        waiting.share.evict_stalled(now)
    assert waiting.events == ["room"]
    assert one.events == ["given up"]
    assert small.events == two.events == []


def test_share_over_its_peer_limit_evicts_no_other_peer() -> None:
    total = UnfinishedFrames(TOTAL)
    own, other, waiting = links(total, "a", "b", "a")
    assert own.share.reserve(140)
    assert other.share.reserve(150)
    assert not waiting.share.reserve(50)
    for now in (0.0, 1.0):
        waiting.share.evict_stalled(now)
    assert own.events == ["given up"]
    assert other.events == []
    assert waiting.events == ["room"]


def test_waiting_shares_of_one_host_least_memory_first() -> None:
    total = UnfinishedFrames(TOTAL)
    names = ("greedy", "greedy", "greedy", "calm")
    one, two, three, calm = links(total, *["host"] * 4)
    for link, name in zip((one, two, three, calm), names, strict=True):
        link.share.name = name
    assert one.share.reserve(75)
    assert two.share.reserve(75)
    assert not three.share.reserve(75)
    assert not calm.share.reserve(75)
    for now in (0.0, 1.0):
        three.share.evict_stalled(now)
    assert one.events + two.events == ["given up"]
    assert calm.events == ["room"]
    assert three.events == []


def test_when_pieces_are_too_many_the_peer_with_most_loses_its_oldest() -> None:
    total = UnfinishedFrames(TOTAL)
    calm, first, second, late = links(total, "calm", "greedy", "greedy", "late")
    for link, size in ((calm, 75), (first, 60), (second, 60)):
        assert link.share.hold_piece(size)
    assert late.share.hold_piece(117)
    assert first.events == ["given up"]
    assert calm.events == second.events == late.events == []
    assert total.used_bytes == 252

    assert not late.share.hold_piece(270)
    assert late.events == []
    assert total.used_bytes == 135
