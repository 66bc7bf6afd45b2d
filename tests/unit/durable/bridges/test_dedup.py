"""Which pages of a window are new, and which windows cannot be what they claim."""

import msgspec
import pytest

from postroad.core.errors import StreamDivergedError
from postroad.durable.bridges.dedup import SequenceGap, new_batches
from postroad.durable.bridges.protocol import StreamWindow, WireBatch
from tests.support.cases import naming
from tests.support.durable.nodes import Correspondent, make_letters

PAGES = [make_letters(3), make_letters(1), make_letters(2)]


@pytest.fixture
def sender() -> Correspondent:
    return Correspondent(PAGES)


def spans(sender: Correspondent, accepted: int, window: StreamWindow) -> list[tuple[int, int]]:
    """First and last numbers of the fresh pages, after so many pages were accepted."""
    watermark = sender.firsts[accepted] - 1
    fresh = list(new_batches(watermark, sender.chains[accepted], window))
    assert all(it.is_intact for it in fresh)
    return [(it.first, it.last) for it in fresh]


def test_pages_after_the_watermark_are_new_unless_there_is_a_gap(sender: Correspondent) -> None:
    assert spans(sender, 0, sender.window()) == [(1, 3), (4, 4), (5, 6)]
    assert spans(sender, 1, sender.window()) == [(4, 4), (5, 6)]
    assert spans(sender, 2, sender.window(1)) == [(5, 6)]
    assert spans(sender, 3, sender.window()) == []
    assert spans(sender, 3, sender.window(0, 1)) == []
    assert spans(sender, 1, sender.window(1, 2)) == [(4, 4)]
    assert spans(sender, 0, sender.window(0, 0)) == []
    for start in (1, 2):
        with naming(start), pytest.raises(SequenceGap):
            spans(sender, 0, sender.window(start))


def test_changed_or_removed_pages_are_told(sender: Correspondent) -> None:
    window = sender.window()
    changed = msgspec.structs.replace(window.batches[1], data=b"\x90")
    window.batches[1] = changed
    fresh = list(new_batches(0, sender.chains[0], window))
    assert [it.is_intact for it in fresh] == [True, False, True]
    assert fresh[1].batch is changed
    window = sender.window()
    window.batches[0] = msgspec.structs.replace(window.batches[0], data=None)
    first = next(new_batches(0, sender.chains[0], window))
    assert (first.first, first.last, first.is_intact) == (1, 3, True)
    window = sender.window()
    # The chain says something else here; what comes after cannot be checked any more.
    window.batches[1] = WireBatch(1, b"x" * 16, window.batches[1].data)
    fresh = list(new_batches(0, sender.chains[0], window))
    assert [it.is_intact for it in fresh] == [True, False, False]


def refused(watermark: int, chain: bytes, window: StreamWindow) -> list[int]:
    """First numbers of the pages that were taken before the refusal."""
    taken: list[int] = []
    with pytest.raises(StreamDivergedError):
        taken.extend(fresh.first for fresh in new_batches(watermark, chain, window))
    return taken


def test_window_of_another_history_is_refused(sender: Correspondent) -> None:
    other = Correspondent([make_letters(3, body=b"other"), *PAGES[1:]])
    assert refused(3, sender.chains[1], other.window()) == []
    assert refused(3, sender.chains[1], other.window(1)) == []
    assert refused(6, sender.chains[3], other.window()) == []
    other = Correspondent(PAGES, epoch=2)
    assert refused(0, sender.chains[0], other.window()) == []
    other = Correspondent([make_letters(4), make_letters(2)])
    assert refused(3, sender.chains[1], other.window()) == []
