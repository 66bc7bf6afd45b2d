"""Which pages of a window are new, and which windows cannot be what they claim."""

import msgspec
import pytest

from postroad.core.errors import StreamDivergedError
from postroad.durable.dedup import GapBefore, sift
from postroad.durable.exchange import SentPage, Window
from tests.support.cases import naming
from tests.support.durable.nodes import Correspondent, make_letters

PAGES = [make_letters(3), make_letters(1), make_letters(2)]


@pytest.fixture
def sender() -> Correspondent:
    return Correspondent(PAGES)


def spans(sender: Correspondent, accepted: int, window: Window) -> list[tuple[int, int]]:
    """First and last numbers of the fresh pages, after so many pages were accepted."""
    watermark = sender.firsts[accepted] - 1
    fresh = list(sift(watermark, sender.chains[accepted], window))
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
        with naming(start), pytest.raises(GapBefore):
            spans(sender, 0, sender.window(start))


def test_changed_or_removed_pages_are_told(sender: Correspondent) -> None:
    window = sender.window()
    changed = msgspec.structs.replace(window.pages[1], letters=b"\x90")
    window.pages[1] = changed
    fresh = list(sift(0, sender.chains[0], window))
    assert [it.is_intact for it in fresh] == [True, False, True]
    assert fresh[1].page is changed
    window = sender.window()
    window.pages[0] = msgspec.structs.replace(window.pages[0], letters=None)
    first = next(sift(0, sender.chains[0], window))
    assert (first.first, first.last, first.is_intact) == (1, 3, True)
    window = sender.window()
    # The chain says something else here; what comes after cannot be checked any more.
    window.pages[1] = SentPage(1, b"x" * 16, window.pages[1].letters)
    fresh = list(sift(0, sender.chains[0], window))
    assert [it.is_intact for it in fresh] == [True, False, False]


def refused(watermark: int, chain: bytes, window: Window) -> list[int]:
    """First numbers of the pages that were taken before the refusal."""
    taken: list[int] = []
    with pytest.raises(StreamDivergedError):
        taken.extend(fresh.first for fresh in sift(watermark, chain, window))
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
