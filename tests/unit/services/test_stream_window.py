"""How much of a stream may be on its way."""

from postroad.core.limits import KIB, MIB
from postroad.services.stream_window import (
    REPORTED_BYTES,
    REPORTED_PARTS,
    SHARED_BYTES,
    WINDOW_BYTES,
    WINDOW_PARTS,
    ReadCount,
    SendWindow,
    SharedWindow,
)
from tests.support.cases import each


class Sender:
    """A stream that notes when it is woken."""

    def __init__(self, shared: SharedWindow) -> None:
        self.times_woken = 0
        self.window = SendWindow(shared, self.wake)

    def wake(self) -> None:
        self.times_woken += 1


def test_window_is_full_by_parts_or_bytes() -> None:
    window = Sender(SharedWindow()).window
    for seq in range(1, WINDOW_PARTS + 1):
        assert not window.is_full
        window.send(seq, 1, 1)
    assert window.is_full
    window.hear(WINDOW_PARTS, 0)
    assert window.is_full
    window.hear(1, 1)
    assert not window.is_full
    window.hear(0, 0)
    window.hear(WINDOW_PARTS + 5, WINDOW_PARTS + 5)
    assert not window.is_full
    window.send(1, 10 * WINDOW_BYTES, 1)
    assert window.is_full
    window.hear(1, 1)
    window.send(2, WINDOW_BYTES - 1, 1)
    assert not window.is_full
    window.send(3, 1, 1)
    assert window.is_full


def test_streams_to_a_node_share_its_window() -> None:
    shared = SharedWindow()
    first, second = Sender(shared).window, Sender(shared).window
    first.send(1, 1, SHARED_BYTES)
    assert first.is_full
    assert not first.is_used_up
    # One part may always be on its way.
    assert not second.is_full
    second.send(1, 1, 1)
    assert second.is_full
    # What came may wait for its reader, and nobody else waits for that.
    first.hear(1, 0)
    assert not second.is_full
    assert shared.bytes == 1
    second.close()
    assert shared.bytes == 0


def test_room_is_passed_on_in_turn() -> None:
    shared = SharedWindow()
    senders = [Sender(shared) for _ in range(4)]
    for number, sender in enumerate(senders):
        sender.window.send(1, 1, SHARED_BYTES // 2)
        assert sender.window.is_full == (number > 0)
    for sender in senders[1:]:
        sender.window.wait()
        sender.window.wait()
    assert [it.times_woken for it in senders] == [0, 0, 0, 0]
    # What is left is still too much.
    senders[0].window.close()
    senders[0].window.close()
    senders[3].window.close()
    assert [it.times_woken for it in senders] == [0, 0, 0, 0]
    assert shared.bytes == SHARED_BYTES
    senders[1].window.hear(1, 0)
    assert [it.times_woken for it in senders] == [0, 1, 1, 0]
    senders[1].window.send(2, 1, 1)
    senders[2].window.send(2, 1, 1)
    senders[2].window.close()
    assert [it.times_woken for it in senders] == [0, 1, 1, 0]
    assert shared.bytes == 1


def test_stream_is_woken_by_its_own_reader() -> None:
    sender, other = Sender(shared := SharedWindow()), Sender(shared)
    sender.window.send(1, WINDOW_BYTES, 1)
    sender.window.wait()
    other.window.send(1, 1, 1)
    other.window.hear(1, 1)
    assert sender.times_woken == 0
    sender.window.hear(1, 0)
    assert sender.times_woken == 0
    sender.window.hear(1, 1)
    assert sender.times_woken == 1


@each(0, 1, 50 * KIB, 256 * KIB, MIB, 10 * MIB)
def test_reader_always_tells_before_a_sender_waits_for_ever(size: int) -> None:
    """Whatever is on its way: once all of it is read, the sender has been told enough."""
    window, count = Sender(SharedWindow()).window, ReadCount()
    sent = 0
    for _ in range(10):
        while not window.is_full:
            sent += 1
            window.send(sent, size, 1)
        while count.read < sent:
            count.add_arrived(size)
            if count.add_read(size):
                window.hear(*count.tell())
        assert not window.is_full


def test_what_was_told() -> None:
    count = ReadCount()
    assert count.is_told
    for _ in range(REPORTED_PARTS - 1):
        assert not count.add_arrived(1)
    assert not count.is_told
    assert count.add_arrived(1)
    assert count.tell() == (REPORTED_PARTS, 0)
    assert count.is_told
    for _ in range(REPORTED_PARTS - 1):
        assert not count.add_read(1)
    assert not count.is_told
    assert count.add_read(1)
    assert count.tell() == (REPORTED_PARTS, REPORTED_PARTS)
    assert count.is_told
    assert count.add_read(REPORTED_BYTES)
