"""When a peer that does not read is given up."""

from postroad.net.connections.disconnect import WriteStallDetector
from postroad.wire import NEVER


def test_write_stall_detector_without_progress_is_stalled() -> None:
    watch = WriteStallDetector(30)
    assert watch.deadline == NEVER
    assert not watch.is_stalled(0, 1e9)
    watch.start(1_000, 5)
    assert watch.deadline == 35
    assert not watch.is_stalled(1_000, 34.9)
    assert watch.is_stalled(1_000, 35)
    assert watch.deadline == NEVER, "said once"

    watch = WriteStallDetector(30)
    watch.start(1_000, 5)
    assert not watch.is_stalled(1_001, 35)
    assert watch.deadline == 65
    assert watch.is_stalled(1_001, 65)

    watch = WriteStallDetector(30)
    watch.start(1_000, 5)
    watch.stop()
    assert watch.deadline == NEVER
    assert not watch.is_stalled(1_000, 35)


def test_write_stall_detector_extended_waits_longer() -> None:
    watch = WriteStallDetector(30)
    watch.extend_until(50)
    assert watch.deadline == NEVER, "nothing is expected"
    watch.start(1_000, 5)
    watch.extend_until(20)
    assert watch.deadline == 35
    watch.extend_until(50)
    assert not watch.is_stalled(1_000, 49)
    assert watch.is_stalled(1_000, 50)
